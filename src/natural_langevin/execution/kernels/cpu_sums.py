"""Sums over samples of per-sample gradients on the CPU, by one pass of the native library.

From torch's operations every G_n is written and read again, patches of convolutions before it, and
the gradient and the bias's row are two more products of the size of the first. ``native/sums.h``
forms some units of G_n at a time in the cache and adds up what is asked of them. To torch it is one
operation, which ``vmap`` and the traces of steps know.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin.execution.kernels.native import build
from natural_langevin.execution.kernels.native.layout import SampleSums, pointer


def _sample_sums(a: Tensor, delta: Tensor, bias: Tensor | None, table: Tensor | None) -> Tensor:
    """a (chain, B, inputs), delta (chain, B, T, O), bias (chain, B, O), table (T, I) int32 ->
    sum_n G_n^2, sum_n G_n and with a bias sum_n b_n G_n: (sum, chain, O, I)."""
    chains, batch, positions, out = delta.shape
    shared = chains > 1 and a.stride(0) == 0
    a = a[:1].contiguous() if shared else a.contiguous()
    delta = delta.contiguous() if table is None else delta.mT.contiguous()
    bias = None if bias is None else bias.contiguous()
    width = a.shape[-1] // positions if table is None else table.shape[1]
    found = a.new_empty(2 + (bias is not None), chains, out, width)
    work = SampleSums(
        chains=chains, batch=batch, out=out, inputs=a.shape[-1], positions=positions,
        apart=0 if shared else a[0].numel(), a=pointer(a), delta=pointer(delta),
        bias=pointer(bias), table=pointer(table),
        sums=(ctypes.c_void_p * 3)(*map(pointer, found)), **{"in": width},
    )  # fmt: skip
    library = build.library(a.dtype)
    assert library is not None
    if library.sample_sums(ctypes.byref(work), threads.of_engines()):
        raise MemoryError("the native library could not allocate its buffers")
    return found


def _of_chains(info: Any, axes: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
    """Inside vmap: more chains."""
    *tensors, table = given

    def first(value: Tensor | None, axis: int | None) -> Tensor | None:
        if value is None:
            return None
        count = info.batch_size
        value = value.expand(count, *value.shape) if axis is None else value.movedim(axis, 0)
        # Of one chain each, as everywhere: no copy of what all of them share.
        return value.squeeze(1) if value.shape[1] == 1 else value.flatten(0, 1)

    found = _operation()(*(first(t, axis) for t, axis in zip(tensors, axes, strict=False)), table)
    return found.unflatten(1, (info.batch_size, -1)), 1


_DEFINING = threading.Lock()


@cache
def _operation() -> Any:
    """``_sample_sums`` as torch knows it: defined once in a process, loaded twice or not."""
    name, known = "natural_langevin::sample_sums", torch.ops.natural_langevin
    with _DEFINING:
        if not hasattr(known, "sample_sums"):
            schema = "(Tensor a, Tensor delta, Tensor? bias, Tensor? table) -> Tensor"
            torch.library.define(name, schema)
            torch.library.impl(name, "CPU", _sample_sums)
            torch.library.register_vmap(name, _of_chains)
    return known.sample_sums.default


class NativeSums:
    """The sums of one map."""

    def __call__(
        self, a: Tensor, delta: Tensor, bias: Tensor | None, table: Tensor | None
    ) -> tuple[Tensor, ...]:
        one = (t if t is None else t.detach()[None] for t in (a, delta, bias))
        found: Tensor = _operation()(*one, table)
        return tuple(found[:, 0])

    def serves(self, dtype: torch.dtype) -> bool:
        """Whether there is a library for these numbers."""
        return dtype in build.DTYPES and build.library(dtype) is not None
