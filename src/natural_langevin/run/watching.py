"""Who looks on at a run: the user's callback, and the target that may end it."""

from __future__ import annotations

from natural_langevin._internal import threads
from natural_langevin._internal.processes import Processes
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine
from natural_langevin.run import temperature_probe
from natural_langevin.run.look import Callback, Look
from natural_langevin.run.until import EssTarget

#: Nats per sample, for every number of its target, by which a chain's loss may rise above the worst
#: one of the first look: the loss is a sum over these numbers, and so is what it rises by.
MOST_RISE = 5.0


class ExplosionError(RuntimeError):
    """Chains have left the posterior: their steps are too large."""


class Watching:
    """A ``Watcher`` of the run loop."""

    def __init__(
        self,
        engine: Engine,
        processes: Processes,
        target: EssTarget,
        *,
        steps: int,
        callback: Callback | None = None,
        breaks_off: bool = False,
    ) -> None:
        """``breaks_off``: whether a run that explodes ends at once, by an ``ExplosionError``."""
        if callback is not None and not callable(callback):
            raise TypeError(
                f"callback must be a function of a Look, got {callback!r}: "
                "callback=lambda look: print(look.step, look.loss)"
            )
        self._engine, self._processes, self._target = engine, processes, target
        self._steps, self._callback = steps, callback
        self._breaks_off = breaks_off
        self._first_loss: float | None = None
        self._most_rise = MOST_RISE * max(1, engine.stream.example()[1][:1].numel())

    def look(self, state: State, info: Info, done: int, kept: int) -> None:
        """Shows it to the callback."""
        if self._breaks_off:
            self._check(info)
        if self._callback is None:
            return
        report = self._engine.dynamics.integrator.report(state)  # type: ignore[attr-defined]
        look = Look(
            step=done,
            steps=self._steps,
            loss=info.loss.detach().cpu(),
            kept=kept,
            diverged=state.diverged.detach().cpu(),
            acceptance=report.get("acceptance"),
            measure=lambda: self._temperature(state),
        )
        with threads.as_given():
            self._callback(look)

    def ends(self, state: State, done: int, kept: int) -> bool:
        """Whether the target is reached."""
        return self._target.ends(state, kept, last=done >= self._steps)

    def _check(self, info: Info) -> None:
        """That no chain is lost, or so far above where the run began as no posterior is."""
        worst = float(self._processes.all_rows(info.loss).max())  # all decide the same
        if self._first_loss is None:
            self._first_loss = worst
        lost = bool(self._processes.all_rows(info.diverged.int()).any())
        if lost or not worst - self._first_loss <= self._most_rise:
            before = self._first_loss
            raise ExplosionError(f"a loss of {worst:.2g} nats per sample after {before:.2g}")

    def _temperature(self, state: State) -> Reading | None:
        count = temperature_probe.probe_steps(self._processes.chains)
        found = temperature_probe.summary(
            state, temperature_probe.measure(self._engine, state, count), self._processes
        )
        return None if found is None else found.temperature
