"""``Look``: what a callback receives during a run; ``Watching`` calls it and may end the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from natural_langevin._internal import threads
from natural_langevin._internal.processes import Processes
from natural_langevin.diagnostics.reading import Reading
from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine
from natural_langevin.run import temperature_probe
from natural_langevin.run.loop import Watcher
from natural_langevin.run.until import EssTarget


@dataclass(frozen=True)
class Look:
    """The run after ``step`` of at most ``steps`` updates; one every 50 steps, and at the end.

    ``loss`` (chain,): -ln p per sample on the last minibatch. ``kept``: draws of every chain so
    far. ``diverged`` (chain,): the step at which a chain was stopped, or -1. ``acceptance``
    (chain,): since the tuning ended, of dynamics that accept and reject; None for others. Of
    several processes, each sees its own chains."""

    step: int
    steps: int
    loss: Tensor
    kept: int
    diverged: Tensor
    acceptance: Tensor | None
    measure: Callable[[], Reading | None]

    @cached_property
    def temperature(self) -> Reading | None:
        """The kinetic temperature of a few steps from here, as a ratio to the target temperature: 1
        is right (see ``diagnostics.kinetic``). Measured when it is read, which costs as much as
        some dozen steps; None where the dynamics do not let it be measured."""
        return self.measure()


#: What ``Langevin.sample(callback=...)`` takes.
Callback = Callable[[Look], None]


class ChainsLostError(RuntimeError):
    """Chains have become non-finite, and the run may begin again."""


class Watching(Watcher):
    """Calls the callback, and ends a run that has reached its target; ``again``: whether one that
    has lost chains, all of them or some, begins again, by ``ChainsLostError``."""

    def __init__(
        self,
        engine: Engine,
        processes: Processes,
        target: EssTarget,
        *,
        steps: int,
        callback: Callback | None = None,
        again: Callable[[bool], bool] | None = None,
    ) -> None:
        if callback is not None and not callable(callback):
            raise TypeError(
                f"callback must be a function of a Look, got {callback!r}: "
                "callback=lambda look: print(look.step, look.loss)"
            )
        self._engine, self._processes, self._target = engine, processes, target
        self._steps, self._callback, self._again = steps, callback, again

    def look(self, state: State, info: Info, done: int, kept: int) -> None:
        if self._again is not None:
            ended = self._processes.all_rows(state.diverged)
            lost = ended > 0  # at 0 no step was taken
            if bool(lost.any()) and self._again(bool(lost.all())):
                raise ChainsLostError(f"a chain became non-finite at step {int(ended.max())}")
        if self._callback is None:
            return
        report = self._engine.dynamics.integrator.report(state)
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
        return self._target.ends(state, kept, last=done >= self._steps)

    def _temperature(self, state: State) -> Reading | None:
        count = temperature_probe.probe_steps(self._processes.chains)
        found = temperature_probe.summary(
            state, temperature_probe.measure(self._engine, state, count), self._processes
        )
        return None if found is None else found.temperature


class Scalars:
    """The numbers of a look by name: every chain's ``loss`` and, where there is one, its
    ``acceptance``; the number of draws ``kept``; and at every ``temperature_every``-th look the
    kinetic ``temperature``, which costs some dozen steps (0: never)."""

    def __init__(self, temperature_every: int) -> None:
        if temperature_every < 0:
            raise ValueError(f"temperature_every must be 0 or more, got {temperature_every!r}")
        self._every, self._looks = temperature_every, 0

    def __call__(self, look: Look) -> dict[str, float]:
        chains = {"loss": look.loss, "acceptance": look.acceptance}
        found = {
            f"{name}/chain {chain}": float(value)
            for name, values in chains.items()
            for chain, value in enumerate([] if values is None else values.tolist())
        }
        found["kept"] = float(look.kept)
        self._looks += 1
        if self._every and self._looks % self._every == 0 and look.temperature is not None:
            found["temperature"] = look.temperature.value
        return found
