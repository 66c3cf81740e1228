"""The update of a layer on the CPU, from products of the BLAS or from a gradient and statistics
that are given, by one pass of the native library.

For networks whose forward and backward passes are torch's. The general path spends its time on
noise and on passes over memory, with every intermediate written out; ``native/linear.h`` does a
unit at a time in the cache, by the engine's own update.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin.execution.kernels.layer import (
    KIND_NUMBER,
    Given,
    LayerInputs,
    LayerState,
    LayerTask,
)
from natural_langevin.execution.kernels.native import build
from natural_langevin.statistics import DeferredCall

_Pair = ctypes.c_void_p * 2


class _Layer(ctypes.Structure):
    """``LinearUpdate`` of ``native/linear.h``."""

    _fields_ = (
        [(n, ctypes.c_int64) for n in ("chains", "out", "in", "threads")]
        + [("start", ctypes.c_int64 * 2)]
        + [(n, ctypes.c_int64) for n in ("metric", "adapts", "fresh", "baoab")]
        + [("share", ctypes.c_double)]
        + [("width", ctypes.c_int64)]
        + [
            (n, ctypes.c_void_p)
            for n in ("gradient", "squares", "products", "bias_gradient", "bias_square")
        ]
        + [(n, _Pair) for n in ("theta", "mean", "momentum", "second")]
        + [(n, ctypes.c_void_p) for n in ("cross", "prior", "damping", "numbers", "keys")]
    )  # fmt: skip


@cache
def library() -> Any:
    """The native library. Raises where there is none."""
    found = build.library(torch.float32)
    if found is None:
        raise RuntimeError("there is no native library")
    found.linear_update.restype = found.linear_bytes.restype = ctypes.c_int64
    if found.linear_bytes() != ctypes.sizeof(_Layer):
        raise RuntimeError("the native library has another layout")
    return found


def arrange(task: LayerTask, call: DeferredCall, adapts: bool) -> tuple[Tensor, ...]:
    """a, delta, sum delta; for a Fisher metric that ``adapts`` [a^2, a] (or a^2), delta~^2 and its
    sum as well."""
    a, delta, fisher = call
    if task.kind in ("euclidean", "rmsprop") or not adapts:
        return a.contiguous(), delta.contiguous(), delta.sum(1)
    squares = (delta if fisher is None else fisher).square()
    moments = a.square()
    if task.kind == "quasi-diagonal" and task.has_bias:
        moments = torch.cat([moments, a], dim=-1)
    return a.contiguous(), delta.contiguous(), delta.sum(1), moments, squares, squares.sum(1)


def update_(task: LayerTask, state: LayerState, call: Any, inputs: LayerInputs) -> None:
    """Writes the layer's new state over the old one, for all chains; ``call`` is arranged, or what
    ``Given`` holds."""
    chains, outputs = state.weight.shape[:2]
    width = state.weight[0, 0].numel()
    sums = call if isinstance(call, Given) else _products(task, state, call)
    share = 1.0 if sums is call else 1 / call[0].shape[-2]
    second, cross = sums.second, sums.cross
    apart = width if second is None else second.stride(1)
    if state.bias is None and sums is call:  # no units: rows that threads can share
        outputs, width = _rows(outputs * width)
        apart = width
    layer = _Layer(
        chains, outputs, width, threads.of_engines(), (task.weight_start, task.bias_start),
        KIND_NUMBER[task.kind], inputs.adapts, inputs.fresh, task.scheme == 2, share, apart,
        pointer(sums.gradient), _address(second), _address(cross), pointer(sums.bias_gradient),
        pointer(sums.bias_second), pair(state.weight, state.bias),
        pair(state.weight_mean, state.bias_mean), pair(state.momentum, state.bias_momentum),
        pair(state.weight_second, state.bias_second), pointer(state.cross),
        pointer(task.prior), pointer(task.damping), pointer(inputs.numbers), pointer(inputs.keys),
    )  # fmt: skip
    if library().linear_update(ctypes.byref(layer)):
        raise MemoryError("the native library could not allocate its buffers")


def _products(task: LayerTask, state: LayerState, call: tuple[Tensor, ...]) -> Given:
    """The sums over the batch of an arranged call; both statistics lie side by side."""
    a, delta, bias_gradient, *fisher = call
    pieces, (chains, outputs, width) = task.scratch, state.weight.shape
    if "gradient" not in pieces:
        pieces["gradient"] = torch.empty(chains, outputs, width)
    if fisher and "statistics" not in pieces:
        pieces["statistics"] = torch.empty(chains, outputs, fisher[0].shape[-1])
    torch.bmm(delta.mT, a, out=pieces["gradient"])
    if not fisher:
        return Given(pieces["gradient"], None, None, bias_gradient, None)
    both = torch.bmm(fisher[1].mT, fisher[0], out=pieces["statistics"])
    cross = both[..., width:] if both.shape[-1] > width else None
    return Given(pieces["gradient"], both[..., :width], cross, bias_gradient, fisher[2])


@cache
def _rows(count: int) -> tuple[int, int]:
    """A vector of ``count`` as rows of equal length, not too long for the cache."""
    rows = next((r for r in range(-(-count // 4096), count // 256 + 1) if count % r == 0), 1)
    return rows, count // rows


def pair(weight: Tensor | None, bias: Tensor | None) -> Any:
    """Where the numbers of a weight and of its bias lie."""
    return _Pair(pointer(weight), pointer(bias))


def _address(statistics: Tensor | None) -> int | None:
    """Where rows begin that may lie apart; NULL for None."""
    return None if statistics is None else statistics.data_ptr()


def pointer(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie; NULL for None."""
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the kernel reads memory as it lies"
    return tensor.data_ptr()
