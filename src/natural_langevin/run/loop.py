"""A run: steps in order, with iterates kept, losses looked at and checkpoints written between.

``Glance`` is the display of a run in progress: every chain's loss, and whether the chains agree so
far. R-hat and effective sample size are of the minibatch losses at the looks of the second half:
they cost nothing, and show when chains have not converged yet. ``posterior.diagnose`` is the actual
test.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from natural_langevin._internal.processes import Processes
from natural_langevin._internal.progress import Detail, Progress
from natural_langevin.diagnostics import ranks
from natural_langevin.dynamics.base import Info, State
from natural_langevin.run.checkpoint import RunCheckpoint, check_same_way
from natural_langevin.run.collector import Collector, is_kept
from natural_langevin.schedules import Stages

log = logging.getLogger("natural_langevin")

#: Looks that a curve shows, and chains that have a line.
WIDTH, MOST_CHAINS = 24, 16
#: Looks below which chains are not compared, and the most that are.
FEWEST, MOST = 8, 2000
BARS = "▁▂▃▄▅▆▇█"


class Glance:
    """Notes what every look sees; called, the ``Detail`` of a display."""

    def __init__(self, burn_in: int) -> None:
        self._burn_in = burn_in
        self._losses: deque[Tensor] = deque(maxlen=2 * MOST)
        self._diverged, self._done, self._kept = torch.empty(0), 0, 0
        self._began: tuple[int, float] | None = None
        self._device = torch.device("cpu")

    def note(self, state: State, info: Info, done: int, kept: int) -> None:
        """A look after ``done`` updates."""
        self._losses.append(info.loss.detach().double().cpu())
        self._diverged, self._done, self._kept = state.diverged.cpu(), done, kept
        self._began = self._began or (done, time.monotonic())
        self._device = state.step.device

    def __call__(self) -> Detail:
        losses = self._losses[-1][self._diverged < 0]
        mean = float(losses.mean()) if len(losses) else math.nan
        return Detail(
            line=f"loss {mean:.4f}  {self._kept} kept",
            head=("chain", "loss", "", ""),
            rows=tuple(self._row(chain) for chain in range(min(len(self._diverged), MOST_CHAINS))),
            notes=(" · ".join(filter(None, [self._phase(), self._agreement(), self._cost()])),),
        )

    def _row(self, chain: int) -> tuple[str, ...]:
        last = islice(self._losses, max(0, len(self._losses) - WIDTH), None)
        series = [float(row[chain]) for row in last]
        step = int(self._diverged[chain])
        state = f"diverged at step {step}" if step >= 0 else ""
        return str(chain), f"{series[-1]:.4f}", curve(series), state

    def _phase(self) -> str:
        return "burn-in" if self._done <= self._burn_in else "sampling"

    def _agreement(self) -> str:
        later = islice(self._losses, len(self._losses) // 2, None)
        seen = torch.stack([*later], 1)[self._diverged < 0]
        if seen.shape[1] < FEWEST or not len(seen) or not bool(seen.isfinite().all()):
            return ""
        values = seen.numpy()[:, :, None]
        if np.ptp(values) == 0:
            return ""
        ess = f"of the loss: effective sample size {float(ranks.ess(values)[0]):.0f}"
        return ess + (f", R-hat {float(ranks.rhat(values)[0]):.2f}" if len(seen) > 1 else "")

    def _cost(self) -> str:
        first, began = self._began or (0, 0.0)
        seconds = time.monotonic() - began
        pace = f"{(self._done - first) / seconds:,.0f} steps/s, " if self._done > first else ""
        return f"{pace}{_memory(self._device)}"


def curve(values: list[float]) -> str:
    """Numbers as a line of bars; what is not finite is a gap.

    >>> curve([0.0, 1.0, 2.0, math.nan, 7.0])
    '▁▂▃ █'
    """
    finite = [v for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] if math.isfinite(v) else " " for v in values)


def _memory(device: torch.device) -> str:
    """Of the device, or the most that this process has had, where the system counts it."""
    if device.type == "cuda":
        return f"{torch.cuda.memory_allocated(device) / (1 << 20):,.0f} MiB on the GPU"
    with contextlib.suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1 << 10
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return f"{most / (1 << 20):,.0f} MiB at most"
    return ""


#: Steps between two looks at the loss and at divergence, each of which waits for the device.
LOOK_EVERY = 50


def looks_by_clock(steps: int) -> int:
    """The same where the clock may end a run: a part of 1 / 100 of one that has few steps, which
    may take seconds each.

    >>> looks_by_clock(20), looks_by_clock(1_000), looks_by_clock(100_000)
    (1, 10, 50)
    """
    return min(LOOK_EVERY, max(1, steps // 100))


#: Seconds between two checkpoints, where the user does not count them in steps.
SAVE_SECONDS = 60


class DivergenceError(RuntimeError):
    """Every chain became non-finite."""


@dataclass(frozen=True)
class RunPlan:
    """Which iterates are kept and looked at. Iterate k is the parameter after k updates.

    Kept are burn_in + thin, burn_in + 2 thin, ..., but for those that a step which ``explores`` has
    led to (``schedules.stages``). Losses are looked at every ``look_every`` steps
    and at the end. Checkpoints are ``save_every`` steps apart, or about ``SAVE_SECONDS``; the last
    step is followed by one too, unless what comes of the run is written elsewhere at once."""

    steps: int
    burn_in: int
    thin: int
    save_every: int | None = None
    look_every: int = LOOK_EVERY
    save_end: bool = True
    explores: Stages | None = None

    @property
    def looks(self) -> int:
        """How often losses are looked at."""
        return -(-self.steps // self.look_every)

    def keeps(self, done: int) -> bool:
        """Whether iterate ``done`` is kept."""
        return is_kept(done, self.burn_in, self.thin, self.explores)

    def looks_at(self, done: int) -> bool:
        """Whether the losses are looked at after ``done`` updates."""
        return done % self.look_every == 0 or done == self.steps

    def saves(self, done: int, late: bool) -> bool:
        """Whether a checkpoint is due after ``done`` updates; ``late``: the clock says so."""
        if done == self.steps:
            return self.save_end
        return done % self.save_every == 0 if self.save_every else late

    def stop(self, done: int) -> int:
        """The next iterate after ``done`` at which there is something to do."""
        kept = self.burn_in + self.thin * (max(0, done - self.burn_in) // self.thin + 1)
        look = self.look_every * (done // self.look_every + 1)
        saved = self.save_every * (done // self.save_every + 1) if self.save_every else self.steps
        return min(kept, look, saved, self.steps)


class Watcher(Protocol):
    """Who looks on, and may end a run early."""

    def look(self, state: State, info: Info, done: int, kept: int) -> None:
        """Is shown the run after ``done`` updates."""

    def ends(self, state: State, done: int, kept: int) -> bool:
        """Whether the run is to end here."""


class Stepper(Protocol):
    """What advances the chains: an ``Engine``, or something around one."""

    notify: Callable[[str], None]

    @property
    def arithmetic(self) -> str:
        """Whose sums the last steps are."""

    def prepare(self, state: State) -> None:
        """Decides which way steps from ``state`` are run."""

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """``count`` updates from ``state``, which has seen ``start``."""


def run(
    plan: RunPlan,
    engine: Stepper,
    state: State,
    collector: Collector,
    *,
    saved: RunCheckpoint | None = None,
    found: dict[str, Any] | None = None,
    title: str = "",
    progress: bool = True,
    processes: Processes | None = None,
    watcher: Watcher | None = None,
    partial: bool = False,
    start: Callable[[State], State] | None = None,
) -> tuple[State, bool]:
    """All steps after those that ``state`` has seen, or ``found``, a checkpoint's ``tree``, where
    there is one; the last state, and whether Ctrl-C came. A ``watcher`` sees every look, and may
    end the run there; ``partial``: so may Ctrl-C, at any step after the first draw. ``start``: what
    is done to ``state`` where nothing was ``found``; a checkpoint is then written at once.

    Several ``processes`` compare notes whenever losses are looked at: whether anybody was
    interrupted, it is time for a checkpoint, or any chain is running."""
    processes = processes or Processes(0)
    resumed = found is not None
    collector.begin(None if found is None else found["collector"])
    if found is not None:
        state = found["state"]
        log.info("resuming at step %d", int(state.step))
    elif start is not None:
        state = start(state)
        if saved is not None:
            engine.prepare(state)
            saved.save(tree(state, collector), engine.arithmetic)
    done, written = int(state.step), time.monotonic()

    def ready() -> bool:
        return partial and collector.kept > 0

    stopped, glance = False, Glance(plan.burn_in)
    ended = resumed and watcher is not None and watcher.ends(state, done, collector.kept)
    with (
        Progress(title, plan.steps, shown=progress and processes.first) as bar,
        deferred_signals(saved is not None, ready) as interrupted,
    ):
        engine.notify = bar.say
        while done < plan.steps and not ended and not stopped:
            stop = plan.stop(done)
            with processes.waiting(f"the steps up to {stop}"):
                state, info = engine.run(state, done, stop - done)
            if resumed and saved is not None:
                check_same_way(saved.way, engine.arithmetic)
                resumed = False
            done = stop
            if plan.keeps(done):
                collector.keep(state)
            stopped, late = bool(interrupted), time.monotonic() - written > SAVE_SECONDS
            if plan.looks_at(done):
                if watcher is not None:
                    watcher.look(state, info, done, collector.kept)
                collector.look(state, info)
                if bar.shown:
                    glance.note(state, info, done, collector.kept)
                    bar.update(done, glance)
                running = not bool(info.diverged.all())
                stopped, late, running = processes.any([stopped, late, running])
                _check_divergence(state, running)
                if watcher is not None:
                    ended = any(processes.any([watcher.ends(state, done, collector.kept)]))
            elif processes.world > 1:  # the others could not know
                stopped = late = False
            if saved is not None and (stopped or ended or plan.saves(done, late)):
                saved.save(tree(state, collector), engine.arithmetic)
                written = time.monotonic()
        if not stopped and interrupted:  # it came after the last piece had asked
            stopped = True
            if saved is not None and processes.world == 1:
                saved.save(tree(state, collector), engine.arithmetic)
        if stopped:
            _say_interrupted(done, plan.steps, collector.kept, saved is not None)
        if stopped and saved is not None:
            end_by_signal(interrupted[0] if interrupted else signal.SIGINT)
    return state, stopped


def tree(state: State, collector: Collector) -> dict[str, Any]:
    """What a checkpoint holds."""
    return {"state": state, "collector": collector.tree()}


def _say_interrupted(done: int, steps: int, kept: int, saved: bool) -> None:
    """What is there, and how to go on."""
    if saved:
        log.warning(
            "interrupted at step %d: run the same command again to continue from there", done
        )
        return
    if done == steps:
        log.warning(
            "interrupted at step %d of %d, the last one: the posterior has all %d draws of every "
            "chain", done, steps, kept,
        )  # fmt: skip
        return
    log.warning(
        "interrupted at step %d of %d: the posterior has the %d draws of every chain that were "
        "kept so far", done, steps, kept,
    )  # fmt: skip


def _check_divergence(state: State, running: bool) -> None:
    """One warning per newly stopped chain is the collector's; here, the case where none is left,
    neither here nor at another process."""
    if not running:
        steps = state.diverged.tolist()
        if not any(steps):
            raise DivergenceError(
                "the loss of the first minibatch is NaN or infinite at the initial weights of "
                "all chains, before any step: check the network's output for it"
            )
        raise DivergenceError(
            f"all {len(steps)} chains became non-finite (at steps {steps}). The step size is most "
            "likely too large: try a tenth of it; with a Fisher preconditioner, more damping or a "
            'prior of smaller variance also help, and targets="data" is more robust than "model"'
        )


@contextmanager
def deferred_signals(saved: bool, ready: Callable[[], bool]) -> Iterator[list[int]]:
    """The first signal waits until a step is done, with a checkpoint (``saved``) or where Ctrl-C
    comes when draws are ``ready``; the second does not. Those that came are in the list.

    Signals belong to the main thread, and to whoever has taken them over from Python: elsewhere
    nothing is changed."""
    came: list[int] = []
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler}
    if saved:
        usual[signal.SIGTERM] = signal.SIG_DFL
    in_main = threading.current_thread() is threading.main_thread()
    taken = [n for n, h in usual.items() if in_main and signal.getsignal(n) is h]

    def notice(number: int, frame: Any) -> None:
        if came or not (saved or ready()):
            end_by_signal(number)
        came.append(number)

    for number in taken:
        signal.signal(number, notice)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, usual[number])


def end_by_signal(number: int) -> NoReturn:
    """Ends the program as the signal would have, but closes everything properly first."""
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt
