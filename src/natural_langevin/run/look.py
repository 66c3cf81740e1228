"""``Look``: what a callback receives during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from natural_langevin.diagnostics.reading import Reading


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
