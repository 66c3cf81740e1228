"""The update of a linear layer on the CPU: BLAS products, then one compiled pass over the state.

The general path spends its time on noise and on passes over memory: the compiler's vector code
for logarithms, cosines and integer hashes is several times slower than it need be, and every
intermediate is written out. ``cpu_linear.cpp`` does a row at a time in the cache. It is built with
the compiler and the cache that ``torch.compile`` itself uses.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from natural_langevin.execution.kernels.layer import KIND_NUMBER, LayerInputs, LayerState, LayerTask
from natural_langevin.statistics import DeferredCall

#: torch.compile writes its vector code itself and asks the compiler not to; here it should. The
#: mathematics stays strict: no reordering of sums beyond the one that is written as a reduction.
_FLAGS = ("-ftree-loop-vectorize", "-fno-math-errno", "-ffp-contract=fast")


class _Layer(ctypes.Structure):
    """``struct Layer`` of the C++ file."""

    _fields_ = (
        [(n, ctypes.c_int64) for n in ("chains", "outputs", "inputs", "weight_start", "bias_start")]
        + [(n, ctypes.c_float) for n in ("share", "early")]
        + [(n, ctypes.c_int) for n in ("adapts", "fresh")]
        + [
            (n, ctypes.c_void_p)
            for n in (
                "gradient", "statistics", "bias_gradient", "bias_square", "theta", "mean", "second",
                "cross", "bias", "bias_mean", "bias_second", "momentum", "bias_momentum", "prior",
                "damping", "numbers", "keys",
            )
        ]
    )  # fmt: skip


@cache
def library() -> Any:
    """The compiled library. Raises where there is no C++ compiler."""
    from torch._inductor.codecache import CppCodeCache

    here = Path(__file__).parent
    source = (here / "cpu_linear.cpp").read_text()
    # Put in by hand: torch's cache knows a library by its source alone, not by what it includes.
    shared = (here / "native" / "random_bits.h").read_text()
    source = source.replace('#include "native/random_bits.h"', shared)
    found = CppCodeCache.load(source, extra_flags=_FLAGS)
    found.linear_update.restype = found.linear_noise.restype = None
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


def update_(
    task: LayerTask, state: LayerState, call: tuple[Tensor, ...], inputs: LayerInputs
) -> None:
    """Writes the layer's new state over the old one, for all chains; ``call`` is arranged."""
    a, delta, bias_gradient, *fisher = call
    chains, outputs, width = state.weight.shape
    pieces = task.scratch
    if "gradient" not in pieces:
        pieces["gradient"] = torch.empty(chains, outputs, width)
    if fisher and "statistics" not in pieces:
        pieces["statistics"] = torch.empty(chains, outputs, fisher[0].shape[-1])
    torch.bmm(delta.mT, a, out=pieces["gradient"])
    if fisher:
        torch.bmm(fisher[1].mT, fisher[0], out=pieces["statistics"])
    layer = _Layer(
        chains, outputs, width, task.weight_start, task.bias_start, 1 / a.shape[-2],
        float(task.scheme == 2), inputs.adapts, inputs.fresh,
        pointer(pieces["gradient"]), pointer(pieces.get("statistics")), pointer(bias_gradient),
        pointer(fisher[2] if fisher else None), pointer(state.weight),
        pointer(state.weight_mean), pointer(state.weight_second), pointer(state.cross),
        pointer(state.bias), pointer(state.bias_mean), pointer(state.bias_second),
        pointer(state.momentum), pointer(state.bias_momentum),
        pointer(task.prior), pointer(task.damping), pointer(inputs.numbers), pointer(inputs.keys),
    )  # fmt: skip
    library().linear_update(KIND_NUMBER[task.kind], int(task.has_bias), ctypes.byref(layer))


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Where a tensor's numbers lie; NULL for None."""
    if tensor is None:
        return ctypes.c_void_p(None)
    assert tensor.is_contiguous(), "the kernel reads memory as it lies"
    return ctypes.c_void_p(tensor.data_ptr())
