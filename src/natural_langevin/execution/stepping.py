"""One step: its inputs are read at the state's counter, its result is written in place.

Nothing here waits for the host. The step counter lives in the state, rates and data in tensors that
stay where they are, so that the same function serves eagerly, compiled and captured. Nothing that
differs between two runs of the same network is a constant of compiled code: N is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Batch
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Kind, Rates, RatesTable


class StepInputs(NamedTuple):
    """What a step needs from outside."""

    batch: Batch
    rates: Rates
    num_data: Tensor
    chain_axis: bool  # whether the batch has one


class StepData:
    """A stream, its rates and N. ``order`` holds the current epoch's permutations."""

    def __init__(self, stream: Stream, rates: RatesTable, num_data: float) -> None:
        self.stream, self.rates = stream, rates
        self.count = rates.values.new_tensor(float(num_data))
        self.order: Tensor | None = None
        self._epoch = -1

    def shuffle(self, step: int) -> None:
        """Puts the permutations of this step's epoch where the step looks for them."""
        if not isinstance(self.stream, InMemory):
            return
        epoch = step // self.stream.batches_per_epoch
        if epoch != self._epoch:
            order = self.stream.order(epoch)
            if self.order is None:
                self.order = order.clone()
            else:
                self.order.copy_(order)
            self._epoch = epoch

    def inputs(self, state: State, batch: Batch | None, kind: Kind) -> StepInputs:
        """This step's minibatch and rates; in memory, looked up at the state's own counter."""
        step: Tensor | int = state.step
        if state.step.device.type == "cpu" and not torch.compiler.is_compiling():
            step = int(step)  # at hand, and looked up in fewer operations
        rates = self.rates.at(step, kind)
        if batch is not None:
            return StepInputs(batch, rates, self.count, self.stream.chain_axis)
        assert isinstance(self.stream, InMemory)
        assert self.order is not None
        return StepInputs(self.stream.gather(self.order, step), rates, self.count, True)


#: A step that writes over the state: (dynamics, data, state, batch, kind) -> Info.
InPlaceStep = Callable[[LangevinDynamics, StepData, State, Batch | None, Kind], Info]


def pure_step(
    dynamics: LangevinDynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
) -> tuple[State, Info]:
    """A new state; the old one stays as it is."""
    batch, rates, count, chain_axis = data.inputs(state, batch, kind)
    return dynamics.step(state, batch, rates, count, chain_axis=chain_axis)


def step_in_place(
    dynamics: LangevinDynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
) -> Info:
    """Like ``pure_step``, but the result is written over the old state, in the same memory."""
    new, info = pure_step(dynamics, data, state, batch, kind)
    overwrite(state, new)
    return info


def overwrite(old: Any, new: Any) -> None:
    """Copies a new tree of tensors over the old one, but for those that are the same object."""
    if isinstance(old, Tensor):
        if old is not new:
            old.copy_(new)
    elif isinstance(old, dict):
        for name, value in old.items():
            overwrite(value, new[name])
    elif isinstance(old, tuple | list):
        for a, b in zip(old, new, strict=True):
            overwrite(a, b)
    else:  # torch's own way with trees knows more kinds, and takes ten times as long
        for a, b in zip(pytree.tree_leaves(old), pytree.tree_leaves(new), strict=True):
            if a is not b:
                a.copy_(b)


def shape_of(tree: Any) -> tuple[Any, ...]:
    """Structure, shapes, dtypes and devices of a tree of tensors: what compiled code relies on."""
    leaves, spec = pytree.tree_flatten(tree)
    return str(spec), *((tuple(t.shape), t.dtype, t.device) for t in leaves if torch.is_tensor(t))
