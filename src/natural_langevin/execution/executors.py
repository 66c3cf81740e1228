"""Executors: engines that take many steps of a run at once.

``PLANNERS`` are asked in order when a run begins. A planner returns an executor that computes
exactly the update that ``dynamics.kernels`` names, or None; it never guesses from types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from natural_langevin.data.streams import Stream
from natural_langevin.dynamics.base import Dynamics, Info, State
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.kernels.native.planner import plan_native
from natural_langevin.execution.kernels.whole_steps.planner import plan_whole_steps


class Executor(Protocol):
    """Advances one run."""

    #: For ``posterior.config``: which way the steps went.
    name: str

    def run(self, state: State, start: int, count: int) -> Info:
        """Steps ``start`` to ``start + count - 1``, written over ``state``; Info of the last."""


Planner = Callable[[Dynamics, State, Stream, RatesTable, float], Executor | None]

PLANNERS: list[Planner] = [plan_native, plan_whole_steps]


def plan_executor(
    dynamics: Dynamics, state: State, stream: Stream, rates: RatesTable, num_data: float
) -> Executor | None:
    """The first executor that takes this run."""
    for try_plan in PLANNERS:
        executor = try_plan(dynamics, state, stream, rates, num_data)
        if executor is not None:
            return executor
    return None
