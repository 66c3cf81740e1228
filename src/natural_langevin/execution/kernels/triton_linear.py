"""The update of a linear layer on a GPU: how the kernels of ``triton_linear_kernels`` are launched.

Two launches a layer, one for its weights and a small one for its biases.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.gpu_build import launch
from natural_langevin.execution.kernels.layer import (
    KIND_NUMBER,
    Given,
    LayerInputs,
    LayerState,
    LayerTask,
)
from natural_langevin.execution.kernels.triton_linear_kernels import (
    bias_kernel,
    given_kernel,
    linear_kernel,
)
from natural_langevin.statistics import DeferredCall


def dot_precision() -> str:
    """TF32 where ``torch.set_float32_matmul_precision`` allows it, otherwise full float32."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


class Tile(NamedTuple):
    """Units, inputs and samples of a program; warps, pipeline stages, registers of a thread at most
    (None: as many as the compiler likes), how many tiles of a row a program walks along, and
    whether it reads the state before it forms products."""

    units: int
    inputs: int
    samples: int
    warps: int = 4
    stages: int = 2
    registers: int | None = None
    walks: int = 1
    ahead: bool = False


#: Chosen on an H200, by rule for everybody: another choice is another order of summation.
FEW, MANY, MANY_FROM = Tile(16, 32, 32, 2, 3), Tile(16, 32, 32, 2, 3), 48
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


class Grid(NamedTuple):
    """How a layer's weights are divided among programs."""

    tile: Tile
    walks: int  # tiles of inputs that a program walks along
    step: int  # 2: a tile takes every second unit
    paired: bool  # whether both normals of a pair are made at once
    tiles_o: int
    tiles_i: int

    @property
    def parts(self) -> int:
        """Programs that share a tile of units."""
        return -(-self.tiles_i // self.walks)


def divided(chains: int, outputs: int, width: int, *, given: bool) -> Grid:
    """The grid of a layer with ``width`` inputs; ``given``: the gradient is formed already."""
    tile = GIVEN if given else MANY if chains >= MANY_FROM else FEW
    # Rows of normals begin with a block, or every second with half a one. Then tiles take every
    # second unit, whose gradients lie apart: not worth it for a single tile.
    paired = not given and width % 16 == 0 and tile.inputs % 32 == 0
    paired = paired and (width % 32 == 0 or tile.walks > 1)
    step = 2 if paired and width % 32 else 1
    tiles_o = -(-outputs // (tile.units * step)) * step
    tiles_i = -(-(width + 16 * (step - 1)) // tile.inputs)
    walks = 1 if given or tiles_i == 1 else tile.walks
    return Grid(tile, walks, step, paired, tiles_o, tiles_i)


def update_(
    task: LayerTask, state: LayerState, call: Any, inputs: LayerInputs, run: Any = launch
) -> None:
    """Writes the layer's new state over the old one, for all chains; ``call`` is arranged, or what
    ``Given`` holds. ``run``: ``gpu_build.launch`` or ``build``."""
    chains, outputs = state.weight.shape[:2]
    width = state.weight[0, 0].numel()
    grid = divided(chains, outputs, width, given=isinstance(call, Given))
    tile, parts = grid.tile, grid.parts
    scratch, none = task.scratch, state.weight  # ``none``: a pointer that no kernel follows
    if not scratch:
        scratch["sums"] = none.new_empty(chains, outputs), none.new_empty(chains, outputs)
        scratch["rows"] = none.new_empty(chains, parts, outputs)
    kind, fresh, rows = KIND_NUMBER[task.kind], int(inputs.fresh), scratch["rows"]
    own = {
        "KIND": kind, "HAS_BIAS": task.has_bias, "ADAPTS": inputs.adapts and kind > 0,
        "BLOCK_O": tile.units, "BLOCK_I": tile.inputs, "num_warps": tile.warps,
        "EACH": task.each is not None, **_flags(state),
    }  # fmt: skip
    buffers = (
        state.weight, _or(state.weight_mean, none), _or(state.weight_second, none),
        _or(state.cross, none), _or(state.bias, none), _or(state.bias_second, none),
        _or(state.momentum, none), _or(task.each, none), task.prior, task.damping, inputs.numbers,
        inputs.keys,
    )  # fmt: skip
    programs = grid.tiles_o * parts, chains
    if isinstance(call, Given):
        sums = _or(call.bias_gradient, none), _or(call.bias_second, none)
        run(
            given_kernel, programs, call.gradient, _or(call.second, none), _or(call.cross, none),
            *sums, *buffers, rows, width, outputs, grid.tiles_i, task.weight_start, fresh, **own,
        )  # fmt: skip
    else:
        a, delta, fisher = call
        sums = scratch["sums"]
        run(
            linear_kernel, programs, a, delta, _or(fisher, delta), *buffers, *sums, rows,
            a.shape[-2], width, outputs, a.stride(0), grid.tiles_i, parts,
            task.weight_start, fresh, SAME=fisher is None, PRECISION=dot_precision(),
            WALKS=grid.walks, STEP=grid.step, PAIRED=grid.paired,
            AHEAD=tile.ahead, BLOCK_B=tile.samples, num_stages=tile.stages,
            maxnreg=tile.registers, **own,
        )  # fmt: skip
    if task.has_bias:
        _move_biases(task, state, inputs, sums, parts, run)


def _move_biases(
    task: LayerTask,
    state: LayerState,
    inputs: LayerInputs,
    sums: tuple[Tensor, Tensor],
    parts: int,
    run: Any,
) -> None:
    """The second launch. ``sums``: the biases' gradient and squares."""
    none, block, (chains, outputs) = state.weight, 128, state.weight.shape[:2]
    run(
        bias_kernel, (-(-outputs // block), chains), state.bias, _or(state.bias_mean, none),
        _or(state.bias_second, none), _or(state.bias_momentum, none), task.prior, task.damping,
        inputs.numbers, inputs.keys, *sums, task.scratch["rows"], outputs, parts,
        task.bias_start, int(inputs.fresh), KIND=KIND_NUMBER[task.kind], BLOCK=block,
        **_flags(state),
    )  # fmt: skip


def _flags(state: LayerState) -> dict[str, bool]:
    """What kernels must know of a layer's buffers: whether there are means, and momenta."""
    return {"HAS_MEAN": state.weight_mean is not None, "MOVES": state.momentum is not None}


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor
