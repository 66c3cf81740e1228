"""Steps until a part is done or its time is over; then it can go on another time.

The run loop of the library, with a clock of the updates and an end at a given time."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from natural_langevin.dynamics.base import Info
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.stepping import overwrite
from natural_langevin.run import loop
from natural_langevin.run.checkpoint import RunCheckpoint
from natural_langevin.run.loop import DivergenceError, RunPlan

#: Steps between two looks at the clock, where no iterate is kept.
LOOK_EVERY = 100


class Keeper(Protocol):
    """What takes the kept iterates."""

    def tree(self) -> dict[str, Any]:
        """Everything a checkpoint must hold."""

    def keep(self, state: Any) -> None:
        """Takes an iterate."""


class Ran(NamedTuple):
    """The last state, updates done, and seconds: of the updates, and of this call in all."""

    state: Any
    updates: int
    seconds: float
    wall: float


class _Clocked:
    """An engine whose updates' seconds are added to ``clock``, those of compiling too."""

    def __init__(self, engine: Engine, clock: Tensor) -> None:
        self._engine, self._clock = engine, clock
        self.notify: Callable[[str], None] = engine.notify

    def run(self, state: Any, start: int, count: int) -> tuple[Any, Info]:
        began = time.monotonic()
        state, info = self._engine.run(state, start, count)
        bool(info.diverged.any())  # waits for the device
        self._clock += time.monotonic() - began
        return state, info

    @property
    def arithmetic(self) -> str:
        return self._engine.arithmetic


class _Kept:
    """A keeper, and the clock, as the run loop's collector."""

    def __init__(self, keeper: Keeper, clock: Tensor) -> None:
        self._keeper, self._clock = keeper, clock
        self._count = torch.zeros((), dtype=torch.int64)

    @property
    def kept(self) -> int:
        return int(self._count)

    def tree(self) -> dict[str, Any]:
        return {"keeper": self._keeper.tree(), "clock": self._clock, "kept": self._count}

    def begin(self, found: dict[str, Any] | None) -> None:
        if found is not None:
            overwrite(self.tree(), found)

    def keep(self, state: Any) -> None:
        self._keeper.keep(state)
        self._count += 1

    def look(self, state: Any, info: Info) -> None:
        """Losses are said, not kept."""


class _Deadline:
    """Ends a run in time, and says how far it is."""

    def __init__(self, steps: int, clock: Tensor, deadline: float, say: Callable[[str], None]):
        self._steps, self._clock, self._deadline, self._say = steps, clock, deadline, say
        self._begun = False

    def look(self, state: Any, info: Info, done: int, kept: int) -> None:
        self._begun = True
        if done % max(1, self._steps // 6) == 0:
            loss, lost = float(info.loss[~info.diverged].mean()), int(info.diverged.sum())
            spent = float(self._clock)
            self._say(f"{done} updates, {spent:.1f} s, loss {loss:.4f}, {lost} diverged")

    def ends(self, state: Any, done: int, kept: int) -> bool:
        if not self._begun:  # however little time there is, every call gets somewhat further
            self._say(f"goes on at update {done}")
            return False
        return done < self._steps and time.monotonic() >= self._deadline


def advance(
    engine: Engine,
    state: Any,
    keeper: Keeper,
    *,
    steps: int,
    burn_in: int,
    thin: int,
    folder: Path,
    config: dict[str, Any],
    deadline: float,
    say: Callable[[str], None],
) -> Ran:
    """``steps`` updates, or as many as there is time for until ``deadline`` (``time.monotonic``).

    What is under way then is left in ``folder``, where the same call goes on; a finished part
    leaves nothing there."""
    started = time.monotonic()
    clock = torch.zeros((), dtype=torch.float64)
    # A checkpoint of hundreds of chains takes seconds: there is one where the time is over.
    plan = RunPlan(
        steps, burn_in, thin, save_every=steps, look_every=min(LOOK_EVERY, thin), save_end=False
    )
    with contextlib.closing(RunCheckpoint(folder, config)) as saved:
        try:
            kept = _Kept(keeper, clock)
            state, _ = loop.run(
                plan, _Clocked(engine, clock), state, kept, saved=saved,
                found=saved.load(loop.tree(state, kept)), progress=False,
                watcher=_Deadline(steps, clock, deadline, say),
            )  # fmt: skip
        except DivergenceError:  # there is nothing to go on with
            shutil.rmtree(folder, ignore_errors=True)
            raise
    done = int(state.step)
    if done < steps:
        say(f"time is over at update {done} of {steps}: the same command goes on from there")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Ran(state, done, float(clock), time.monotonic() - started)
