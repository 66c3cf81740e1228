"""A run: steps in order, with iterates kept, losses looked at and checkpoints written between."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from natural_langevin._internal.progress import Progress
from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine
from natural_langevin.sampling.checkpoint import Saved
from natural_langevin.sampling.collector import Collector

log = logging.getLogger("natural_langevin")

#: Steps between two looks at the loss and at divergence, each of which waits for the device.
LOOK_EVERY = 50
#: Seconds between two checkpoints, where the user does not count them in steps.
SAVE_SECONDS = 60


class DivergenceError(RuntimeError):
    """Every chain became non-finite."""


@dataclass(frozen=True)
class Plan:
    """Which iterates are kept and looked at. Iterate k is the parameter after k updates.

    Kept are burn_in + thin, burn_in + 2 thin, ...; ``every`` counts steps between checkpoints."""

    steps: int
    burn_in: int
    thin: int
    every: int | None = None

    @property
    def looks(self) -> int:
        return -(-self.steps // LOOK_EVERY)

    def keeps(self, done: int) -> bool:
        return done > self.burn_in and (done - self.burn_in) % self.thin == 0

    def looks_at(self, done: int) -> bool:
        return done % LOOK_EVERY == 0 or done == self.steps

    def stop(self, done: int) -> int:
        """The next iterate after ``done`` at which there is something to do."""
        kept = self.burn_in + self.thin * (max(0, done - self.burn_in) // self.thin + 1)
        look = LOOK_EVERY * (done // LOOK_EVERY + 1)
        saved = self.every * (done // self.every + 1) if self.every else self.steps
        return min(kept, look, saved, self.steps)


class Team(Protocol):
    """Several processes on one run. They stop, save and give up together."""

    @property
    def first(self) -> bool:
        """Whether this is the one that shows progress."""

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Each flag, whether any process raised it."""

    def waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Around what may wait for the others."""


class Alone:
    """A run of one process."""

    first = True

    def any(self, flags: Sequence[bool]) -> list[bool]:
        return list(flags)

    def waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def run(
    plan: Plan,
    engine: Engine,
    state: State,
    collector: Collector,
    *,
    saved: Saved | None = None,
    title: str = "",
    progress: bool = True,
    team: Team | None = None,
) -> State:
    """All steps after those that ``state`` (or the checkpoint's) has seen; the last state.

    A ``team`` compares notes whenever losses are looked at: whether anybody was interrupted, it is
    time for a checkpoint, or any chain is running."""
    alone, team = team is None, team or Alone()
    found = None
    if saved is not None:
        found = saved.load({"state": state, "collector": collector.tree()})
    if found is not None:
        state = found["state"]
        log.info("resuming at step %d", int(state.step))
    collector.begin(None if found is None else found["collector"])
    done, written = int(state.step), time.monotonic()
    with (
        Progress(title, plan.steps, shown=progress and team.first) as bar,
        _interrupts(saved) as interrupted,
    ):
        engine.say = bar.say
        while done < plan.steps:
            stop = plan.stop(done)
            with team.waiting(f"the steps up to {stop}"):
                state, info = engine.run(state, done, stop - done)
            done = stop
            if plan.keeps(done):
                collector.keep(state)
            stopped, late = bool(interrupted), time.monotonic() - written > SAVE_SECONDS
            if plan.looks_at(done):
                collector.look(state, info)
                bar.update(done, f"loss {_mean_loss(info):.4f}  {collector.kept} kept")
                running = bool((state.diverged < 0).any())
                stopped, late, running = team.any([stopped, late, running])
                _check_divergence(state, running)
            elif not alone:  # the others could not know
                stopped = late = False
            due = done % plan.every == 0 if plan.every else late
            if saved is not None and (due or stopped or done == plan.steps):
                saved.save({"state": state, "collector": collector.tree()})
                written = time.monotonic()
            if stopped:
                log.warning("interrupted at step %d: run the same again to go on from there", done)
                raise KeyboardInterrupt
    return state


@contextlib.contextmanager
def _interrupts(saved: Any) -> Iterator[list[bool]]:
    """With a checkpoint, the first Ctrl-C waits until a step is done; the second does not.

    Signals belong to the main thread, and to whoever has taken them over from Python: elsewhere
    nothing is changed."""
    noticed: list[bool] = []
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if saved is None or not usual or threading.current_thread() is not threading.main_thread():
        yield noticed
        return

    def notice(number: int, frame: Any) -> None:
        if noticed:
            raise KeyboardInterrupt
        noticed.append(True)

    signal.signal(signal.SIGINT, notice)
    try:
        yield noticed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_divergence(state: State, running: bool) -> None:
    """One warning per newly stopped chain is the collector's; here, the case where none is left,
    neither here nor at another process."""
    if not running:
        steps = state.diverged.tolist()
        raise DivergenceError(
            f"all {len(steps)} chains became non-finite (at steps {steps}). The step size is most "
            "likely too large: try a tenth of it; with a Fisher preconditioner, more damping or a "
            'prior of smaller variance also help, and targets="data" is more robust than "model"'
        )


def _mean_loss(info: Info) -> float:
    losses = info.loss[~info.diverged]
    return float(losses.mean()) if len(losses) else math.nan
