"""Who is held against HMC: samplers at T = 1, an ensemble of optimised networks, and MC dropout.

Step sizes are on SGD's scale and those of a chain of ``REFERENCE_STEPS``; which of a contender's
candidates is used, a short pilot decides on training images that it holds out. Weights in front of
a normalisation have no scale of their own, so that the prior alone says how long they are: a metric
that follows them starts there, at the prior's scale, while Euclidean dynamics, whose steps shrink
with the square of that length, start at the usual initialisation and grow into it.

What limits a step is heat. In the metric, minibatches of B of the N images add
eta tr(C F) / (4 a B) nats to the loss per image, F the Fisher matrix: friction a and step size eta
enter by their ratio. Weights that the prior alone holds forget where they were within a / eta
steps. So fewer epochs per independent draw are only to be had hotter, and minibatches are as large
as the device likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lab.warm_start import WarmStart
from natural_langevin import preconditioners, schedules
from natural_langevin.dynamics import Overdamped, Underdamped
from natural_langevin.dynamics.frame import Integrator
from natural_langevin.preconditioners import Preconditioner

REFERENCE_STEPS = 15_000


@dataclass(frozen=True)
class Contender:
    """A way to predictions, at the same cost for all."""

    title: str
    dynamics: Integrator
    metric: Callable[[], Preconditioner]
    step_sizes: tuple[float, ...]
    #: (step size, steps of the run) -> schedule.
    schedule: Callable[[float, int], schedules.Schedule]
    temperature: float = 1.0
    #: Whether weights start at the prior's scale.
    at_prior: bool = False
    #: Whether its metric treats every number alike, whatever tensor it stands in.
    elementwise: bool = True
    #: Networks trained one after the other, each for its share of the time; the last one counts.
    members: int = 1
    #: Share of the run (or of a cycle, where there are several) from which iterates are kept.
    kept_from: float = 0.4
    cycles: int = 1
    #: Share of every block's inner units that is dropped, in training and in predictions.
    dropout: float = 0.0

    def step_size(self, candidate: float, steps: float) -> float:
        """A candidate's step size for a chain of so many steps: bias and variance together are
        least where it falls like the cube root of a run's length (Teh, Thiery & Vollmer 2016).
        Without noise it is taken as it is, and runs of less than a hundred steps are toys."""
        shorter = REFERENCE_STEPS / max(steps, 100)
        return candidate * shorter ** (1 / 3) if self.temperature else candidate


def falling(initial: float, steps: int) -> schedules.Schedule:
    """(1 + 4 step / steps)^(-1/2): to less than a half, for less discretisation error later."""
    return schedules.polynomial(initial, offset=max(1.0, steps / 4), power=0.5)


def settling(eta: float, steps: int) -> schedules.Schedule:
    """Four times the step size at first, to get there, and the step size itself from a quarter of
    the run on; the very first steps, which have hardly a metric, begin near 0."""
    return WarmStart(eta, factor=4.0, steps=steps // 4, rise=steps // 100)


def restarts(cycles: int) -> Callable[[float, int], schedules.Schedule]:
    """Cosines from the step size towards 0, so many in a run."""
    return lambda initial, steps: schedules.cyclical(initial, math.ceil(steps / cycles))


def natural() -> Preconditioner:
    """QDOP, whose statistics cost more than the step they are taken in: of every tenth batch."""
    return preconditioners.QuasiDiagonalFisher(every=10)


CONTENDERS: dict[str, Contender] = {
    "sgld": Contender(
        "SGLD", Overdamped(), preconditioners.Euclidean, (0.05, 0.15, 0.5), falling
    ),
    "sghmc": Contender(
        "SGHMC, cyclical steps", Underdamped(friction=0.1), preconditioners.Euclidean,
        (0.03, 0.1, 0.3), restarts(4), kept_from=0.6, cycles=4,
    ),
    "rmsprop": Contender(
        "underdamped, RMSProp", Underdamped(0.03, "baoab"), preconditioners.RMSProp,
        (5e-5, 1.5e-4, 4e-4), settling, at_prior=True, kept_from=0.35,
    ),
    "qdop": Contender(
        "underdamped, QDOP", Underdamped(0.03, "baoab"), natural,
        (3e-5, 1e-4, 3e-4), settling, at_prior=True, elementwise=False, kept_from=0.35,
    ),
    "ensemble": Contender(
        "deep ensemble", Underdamped(friction=0.1), preconditioners.Euclidean,
        (0.03, 0.1, 0.3), restarts(1), temperature=0.0, members=8,
    ),
    "dropout": Contender(
        "MC dropout", Underdamped(friction=0.1), preconditioners.Euclidean,
        (0.03, 0.1, 0.3), restarts(1), temperature=0.0, dropout=0.1,
    ),
}  # fmt: skip
