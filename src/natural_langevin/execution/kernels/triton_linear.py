"""The update of a linear layer on a GPU: how the kernels of ``triton_linear_kernels`` are launched.

Two launches a layer, one for its weights and a small one for its biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from natural_langevin._internal.gpu_build import Launch, launch
from natural_langevin._internal.gpu_kernels import dot_precision
from natural_langevin.execution.kernels.layer import (
    KIND_NUMBER,
    MANY_FROM,
    Given,
    LayerInputs,
    LayerState,
    LayerTask,
    LayerWork,
)
from natural_langevin.execution.kernels.triton_linear_kernels import (
    bias_kernel,
    given_kernel,
    linear_kernel,
)
from natural_langevin.statistics import DeferredCall


class Tile(NamedTuple):
    """Units, inputs and samples of a program; warps, and pipeline stages."""

    units: int
    inputs: int
    samples: int
    warps: int = 4
    stages: int = 2


#: Chosen on an H200, for one chain and for many, by rule for everybody: another choice is another
#: order of summation.
TILE = Tile(16, 32, 16, 2, 4)
#: For many chains programs of one warp: none waits for another, and one chain alone has too few.
MANY = TILE._replace(warps=1, stages=5)
#: Where gradients are given.
GIVEN = Tile(16, 64, 32)


def arrange(task: LayerTask, call: DeferredCall, adapts: bool) -> DeferredCall:
    """The call with its features side by side. A batch that all chains share stays one batch."""

    def rows(tensor: Tensor, shared: bool) -> Tensor:
        if shared and tensor.stride(0) == 0:
            return tensor[:1].contiguous().expand_as(tensor)
        return tensor.contiguous()

    fisher = None if call.fisher_delta is None else rows(call.fisher_delta, False)
    return DeferredCall(rows(call.input, True), rows(call.delta, False), fisher)


def update_(layers: Sequence[LayerWork], inputs: LayerInputs) -> None:
    """Writes the layers' new states over the old ones."""
    for layer in layers:
        update_layer_(*layer, inputs)


def update_layer_(
    task: LayerTask, state: LayerState, call: Any, inputs: LayerInputs, run: Launch = launch
) -> None:
    """Writes the layer's new state over the old one, for all chains; ``call`` is arranged, or what
    ``Given`` holds. ``run``: ``gpu_build.launch`` or ``build``."""
    chains, outputs = state.weight.shape[:2]
    width = state.weight[0, 0].numel()
    tile = GIVEN if isinstance(call, Given) else MANY if chains >= MANY_FROM else TILE
    tiles_o, tiles_i = -(-outputs // tile.units), -(-width // tile.inputs)
    scratch, none = task.scratch, state.weight  # ``none``: a pointer that no kernel follows
    if not scratch:
        scratch["sums"] = none.new_empty(chains, outputs), none.new_empty(chains, outputs)
        # Of what weights add to their biases and, where a kick and noise part ways, of the noise.
        scratch["rows"] = none.new_empty(1 + (task.scheme == 2), chains, tiles_i, outputs)
    kind, fresh, rows = KIND_NUMBER[task.kind], int(inputs.fresh), scratch["rows"]
    own = {
        "KIND": kind, "HAS_BIAS": task.has_bias, "ADAPTS": inputs.adapts and kind > 0,
        "BLOCK_O": tile.units, "BLOCK_I": tile.inputs, "num_warps": tile.warps,
        "EACH": task.each is not None, **_flags(task, state),
    }  # fmt: skip
    buffers = (
        state.weight, _or(state.weight_mean, none), _or(state.weight_second, none),
        _or(state.cross, none), _or(state.bias, none), _or(state.bias_second, none),
        _or(state.momentum, none), _or(task.each, none), task.prior, task.damping, inputs.numbers,
        inputs.keys,
    )  # fmt: skip
    programs = tiles_o * tiles_i, chains
    if isinstance(call, Given):
        sums = _or(call.bias_gradient, none), _or(call.bias_second, none)
        run(
            given_kernel, programs, call.gradient, _or(call.second, none), _or(call.cross, none),
            *sums, *buffers, rows, width, outputs, tiles_i, task.weight_start, fresh, **own,
        )  # fmt: skip
    else:
        a, delta, fisher = call
        sums = scratch["sums"]
        run(
            linear_kernel, programs, a, delta, _or(fisher, delta), *buffers, *sums, rows,
            a.shape[-2], width, outputs, a.stride(0), tiles_i, task.weight_start, fresh,
            SAME=fisher is None, PRECISION=dot_precision(), BLOCK_B=tile.samples,
            # Rows of whole blocks of noise: both normals of a pair are made at once.
            PAIRED=width % 32 == 0 and tile.inputs % 32 == 0, num_stages=tile.stages, **own,
        )  # fmt: skip
    if task.has_bias:
        _move_biases(task, state, inputs, sums, tiles_i, run)


def _move_biases(
    task: LayerTask,
    state: LayerState,
    inputs: LayerInputs,
    sums: tuple[Tensor, Tensor],
    tiles_i: int,
    run: Launch,
) -> None:
    """The second launch. ``sums``: the biases' gradient and squares."""
    none, block, (chains, outputs) = state.weight, 128, state.weight.shape[:2]
    run(
        bias_kernel, (-(-outputs // block), chains), state.bias, _or(state.bias_mean, none),
        _or(state.bias_second, none), _or(state.bias_momentum, none), task.prior, task.damping,
        inputs.numbers, inputs.keys, *sums, task.scratch["rows"], outputs, tiles_i,
        task.bias_start, int(inputs.fresh), KIND=KIND_NUMBER[task.kind], BLOCK=block,
        TILES=16, **_flags(task, state),
    )  # fmt: skip


def _flags(task: LayerTask, state: LayerState) -> dict[str, int]:
    """What all kernels must know of a layer: whether there are means, and what momenta do."""
    return {"HAS_MEAN": state.weight_mean is not None, "SCHEME": task.scheme}


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor
