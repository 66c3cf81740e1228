"""Training of a stage: the run loop of the library, with its own clock and checkpoint.

Every draw is a function of its address, so a stage that goes on from its checkpoint ends with the
same numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.provenance import versions
from natural_langevin._internal.trees import copy_tree_
from natural_langevin.cli.experiments.table1.ensemble import Ensemble
from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine
from natural_langevin.run import loop
from natural_langevin.run.checkpoint import RunCheckpoint
from natural_langevin.run.collector import LossTrace
from natural_langevin.run.loop import RunPlan

#: Looks at the training loss of a stage.
LOOKS = 100


class DivergedError(RuntimeError):
    """Some chains became non-finite; the argument counts them."""


class Outcome(NamedTuple):
    """The last state, the training losses (look, chain) at their steps, and training seconds.

    The seconds are those of all updates at the pace they had once compiled; scoring is left out.
    """

    state: State
    steps: list[int]
    losses: Tensor
    seconds: float


class TimedEngine:
    """An engine whose ``clock`` holds seconds and the updates they were spent on."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._warm = engine, False
        self.clock = torch.zeros(2, dtype=torch.float64)
        self.notify: Callable[[str], None] = lambda text: None

    @property
    def arithmetic(self) -> str:
        """The engine's."""
        return self._engine.arithmetic

    def prepare(self, state: State) -> None:
        """Decides which way steps are run."""
        self._engine.prepare(state)

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """``count`` updates, with their time added to the clock."""
        self._engine.notify = self.notify
        started = time.monotonic()
        state, info = self._engine.run(state, start, count)
        if info.loss.is_cuda:
            torch.cuda.synchronize()
        if self._warm:  # the first piece compiles and captures
            self.clock += torch.tensor([time.monotonic() - started, count])
        self._warm = True
        return state, info


class StageCollector:
    """Collects the losses, and adds the kept iterates' predictions to an ensemble, if any."""

    def __init__(
        self, looks: int, chains: int, clock: Tensor, ensemble: Ensemble | None, *, strict: bool
    ) -> None:
        self.trace = LossTrace(looks, chains)
        self._clock, self._ensemble, self._strict = clock, ensemble, strict

    @property
    def kept(self) -> int:
        """How many iterates are in the ensemble so far."""
        return 0 if self._ensemble is None else int(self._ensemble.kept)

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""
        return {
            "ensemble": {} if self._ensemble is None else self._ensemble.state(),
            "trace": self.trace.values,
            "looks": torch.tensor(self.trace.count),
            "clock": self._clock,
        }

    def begin(self, found: dict[str, Any] | None) -> None:
        """Starts anew, or where the checkpoint's tree ``found`` left off."""
        if found is not None:
            copy_tree_(self.tree(), found)
            self.trace.count = int(found["looks"])

    def keep(self, state: State) -> None:
        """Scores the networks of all chains."""
        if self._ensemble is not None:
            self._ensemble.add(state.params)

    def look(self, state: State, info: Info) -> None:
        """Notes the losses; where no chain may be lost, one that is ends the training."""
        self.trace.add(state, info)
        if self._strict and (broken := int(info.diverged.sum())):
            raise DivergedError(broken)


def train(
    engine: Engine,
    state: State,
    *,
    steps: int,
    burn_in: int,
    thin: int,
    checkpoint: Path,
    config: dict[str, Any],
    title: str,
    progress: bool,
    ensemble: Ensemble | None = None,
    stop_if_diverged: bool = False,
) -> Outcome:
    """Runs to ``steps`` updates, with the kept iterates' predictions added to ``ensemble``."""
    plan = RunPlan(steps, burn_in, thin, look_every=max(1, steps // LOOKS), save_end=False)
    timed, chains = TimedEngine(engine), len(next(iter(state.params.values())))
    collector = StageCollector(plan.looks, chains, timed.clock, ensemble, strict=stop_if_diverged)
    with contextlib.closing(RunCheckpoint(checkpoint, config, {"versions": versions()})) as saved:
        state, _ = loop.run(
            plan, timed, state, collector, saved=saved,
            found=saved.load(loop.tree(state, collector)), title=title, progress=progress,
        )  # fmt: skip
    looks = [int(step) for step in collector.trace.seen[:, 0]]
    seconds = steps * float(timed.clock[0] / timed.clock[1].clamp_min(1))
    return Outcome(state, looks, collector.trace.seen[:, 1:].float(), seconds)
