"""Trajectories of ``dynamics.Adjusted`` by the native engine, but for their ends.

Between its ends a trajectory is plain leapfrog steps, which the engine takes as it takes those of
any dynamics (``dynamics.adjusted.Leapfrog``). Where it ends, energies are compared and a new one
begins: that is the general step's.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from natural_langevin.data.streams import Stream
from natural_langevin.dynamics.adjusted import Adjusted, Leapfrog
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.kernels.native.engine import NativeMLP
from natural_langevin.execution.kernels.native.planner import plan_native
from natural_langevin.execution.stepping import overwrite


class Trajectories:
    """The steps between the ends of trajectories."""

    def __init__(
        self,
        integrator: Adjusted,
        dynamics: LangevinDynamics,
        rates: RatesTable,
        num_data: float,
        moving: State,
        executor: NativeMLP,
    ) -> None:
        """``moving``: the state that the executor's steps are written over."""
        self._integrator, self._dynamics, self._rates = integrator, dynamics, rates
        self._num_data, self._moving, self._executor = num_data, moving, executor
        self.name = executor.name

    def inside(self, step: int) -> int:
        """How many steps from this one on it takes."""
        return self._integrator.inside(step)

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """The state after steps ``start`` to ``start + count - 1``, which end no trajectory."""
        on, integrator, moving = self._dynamics, self._integrator, self._moving
        factor = on.factor(state.metric, state.params, self._num_data)
        free = integrator.free(on, state, factor, self._num_data)
        for name in ("params", "metric", "own", "diverged"):
            overwrite(getattr(moving, name), getattr(free, name))
        self._executor.rates.step_size.copy_(2 * state.own.step_size)  # read where it lies
        self._executor.run(moving, 0, count)
        moving.step.fill_(start + count)
        rows = self._rates.values[start - self._rates.start :][:count]
        mean = 1 - (1 - rows[:, -1]).prod()
        state = integrator.caught(on, state, moving, factor, self._num_data, mean)
        return state, Info(state.own.loss, state.diverged >= 0)


def plan_trajectories(
    dynamics: LangevinDynamics, state: State, stream: Stream, rates: RatesTable, num_data: float
) -> Trajectories | str:
    """The engine for the steps between the ends of trajectories, or why there is none; "" of other
    dynamics."""
    integrator = dynamics.integrator
    if type(integrator) is not Adjusted:
        return ""
    if integrator.steps == 1:
        return "every step of it is accepted or not"
    if dynamics.factor(state.metric, state.params, num_data).inverse is None:
        return "a metric whose factor has no inverse"
    inner = replace(dynamics, integrator=Leapfrog(), keep_mean=False)
    moving = inner.init({k: p.clone() for k, p in state.params.items()})
    moving = moving._replace(metric=pytree.tree_map(torch.clone, state.metric))
    size = rates.row(int(state.step)).step_size
    table = RatesTable.build(
        1.0, stop=integrator.steps, chains=state.chains, dtype=size.dtype, device=size.device
    )
    table.step_size.copy_(2 * size)
    found = plan_native(inner, moving, stream, table, num_data)
    if isinstance(found, str):
        return found
    return Trajectories(integrator, dynamics, rates, num_data, moving, found)
