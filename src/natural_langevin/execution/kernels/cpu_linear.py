"""The update of a layer on the CPU by one pass of the native library, from the inputs and output
gradients of a linear layer, or from a gradient and statistics that are given.

For networks whose forward and backward passes are torch's. The general path spends its time on
noise and on passes over memory, with every intermediate written out; ``native/linear.h`` does some
units at a time in the cache, by the engine's own products and update.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin.execution.kernels.layer import (
    KIND_NUMBER,
    Given,
    LayerCall,
    LayerInputs,
    LayerState,
    LayerTask,
    LayerWork,
)
from natural_langevin.execution.kernels.native import build
from natural_langevin.execution.kernels.native.layout import POINTERS, LinearUpdate, pointer
from natural_langevin.statistics import DeferredCall


def arrange(task: LayerTask, call: DeferredCall, adapts: bool) -> LayerCall:
    """The call itself: its sums are formed where they are used."""
    a, delta, fisher = call
    share = a.shape[-2] ** -0.5
    own = None if fisher is None or not adapts else fisher.contiguous()
    return LayerCall(a.contiguous(), delta.contiguous(), own, share, share)


def update_(layers: Sequence[LayerWork], inputs: LayerInputs) -> None:
    """Writes the layers' new states over the old ones, for all chains."""
    every = [_filled(*layer, inputs) for layer in layers]
    places = (ctypes.c_void_p * len(every))(*map(ctypes.addressof, every))
    library = build.library(torch.float32)
    assert library is not None
    if library.linear_update(places, len(every), threads.of_engines()):
        raise MemoryError("the native library could not allocate its buffers")


def _filled(
    task: LayerTask, state: LayerState, found: Given | LayerCall, inputs: LayerInputs
) -> LinearUpdate:
    call = found if isinstance(found, LayerCall) else None
    sums = found if isinstance(found, Given) else found.given
    layer = _prepared(task, state, given=call is None)
    layer.adapts, layer.fresh = inputs.adapts, inputs.fresh
    layer.gradient, layer.bias_gradient = pointer(sums.gradient), pointer(sums.bias_gradient)
    layer.squares, layer.products = pointer(sums.second), pointer(sums.cross)
    layer.bias_square = pointer(sums.bias_second)
    if call is not None:
        layer.batch, layer.scale, layer.share = call.a.shape[1], call.scale, call.share
        layer.a, layer.delta = pointer(call.a), pointer(call.delta)
        layer.fisher = pointer(call.fisher)
    layer.numbers, layer.keys = pointer(inputs.numbers), pointer(inputs.keys)
    return layer


def _prepared(task: LayerTask, state: LayerState, *, given: bool) -> LinearUpdate:
    """What stays the same from step to step; sums that are ``given`` are means."""
    known, place = task.scratch.get(given), state.weight.data_ptr()
    if known is not None and known[0] == place and all(map(operator.is_, known[1], state)):
        layer: LinearUpdate = known[2]
        return layer
    chains, outputs = state.weight.shape[:2]
    width = state.weight[0, 0].numel()
    if state.bias is None and given:  # no units: rows that threads can share
        outputs, width = _rows(outputs * width)
    layer = LinearUpdate(
        chains=chains, out=outputs, share=1.0,
        start=(task.weight_start, task.bias_start), metric=KIND_NUMBER[task.kind],
        baoab=task.scheme == 2, theta=pair(state.weight, state.bias),
        mean=pair(state.weight_mean, state.bias_mean),
        momentum=pair(state.momentum, state.bias_momentum),
        second=pair(state.weight_second, state.bias_second), cross=pointer(state.cross),
        prior=pointer(task.prior), damping=pointer(task.damping), **{"in": width},
    )  # fmt: skip
    task.scratch[given] = place, state, layer
    return layer


@cache
def _rows(count: int) -> tuple[int, int]:
    """A vector of ``count`` as rows of equal length, not too long for the cache."""
    rows = next((r for r in range(-(-count // 4096), count // 256 + 1) if count % r == 0), 1)
    return rows, count // rows


def pair(weight: Tensor | None, bias: Tensor | None) -> Any:
    """Where the numbers of a weight and of its bias lie."""
    return POINTERS(pointer(weight), pointer(bias))
