"""What is run: sizes, grids, and the settings of a chain.

The recipe of every sampling part: inputs x M (``priors.blur_pixels``), Gaussian prior with a
variance for each layer, QDOP frozen after burn-in, momentum with friction 0.1, step size falling as
(1 + k / offset)^(-1/3), temperature 1. The damping is 1e-3: with the prior's, a chain from a random
start was seen to be thrown far away in its first hundred steps, and to take long to come back (one
chain, by its training loss and held-out training images; other values were not searched).
What is not fixed here (length of the blur, step size, variances) is chosen on the last
``validation`` training images, by draws from half a run, in two rounds:

- select: length x step size x the first layer's variance;
- refine: the variances of all three layers, at the length and step size chosen.

Every grid is the chains of one run. Test images are scored in the final parts, whose settings are
then fixed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple


class Setting(NamedTuple):
    """What a chain is run with; ``length`` 0: pixels as they are."""

    length: float
    step_size: float
    variances: tuple[float, ...]  # of the prior, for each layer

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {**self._asdict(), "variances": list(self.variances)}

    @staticmethod
    def from_dict(known: dict[str, Any]) -> Setting:
        """The inverse of ``as_dict``."""
        return Setting(known["length"], known["step_size"], tuple(known["variances"]))


@dataclass(frozen=True)
class Protocol:
    """Sizes and grids. The defaults are the table's."""

    hidden: tuple[int, ...] = (400, 400)
    batch_size: int = 100
    validation: int = 10_000
    friction: float = 0.1
    offset: int = 2_000
    damping: float = 1e-3
    adapt: Literal["burn-in", "always"] = "burn-in"
    select_steps: int = 30_000
    select_burn_in: int = 10_000
    steps: int = 60_000
    burn_in: int = 10_000
    thin: int = 200
    seeds: int = 5
    pooled: int = 12
    mixed: int = 0  # lengths beside the chosen one whose chains the widest pool has
    lengths: tuple[float, ...] = (0.0, 0.6, 0.8, 1.0, 1.4)
    step_sizes: tuple[float, ...] = (2e-4, 4e-4, 8e-4)
    variances: tuple[float, ...] = (0.2, 0.3, 0.008)  # where the search begins
    first_factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    refine_factors: tuple[tuple[float, ...], ...] = (
        (0.7, 1.0, 1.4),
        (0.6, 1.0, 1.7),
        (0.5, 1.0, 2.0),
    )
    overdamped_step_sizes: tuple[float, ...] = (7e-4, 1.4e-3, 2.8e-3)
    sgd_step_sizes: tuple[float, ...] = (0.05, 0.1, 0.2)
    dropout_rates: tuple[float, ...] = (0.2, 0.35, 0.5)
    ensembles: int = 2  # of ``pooled`` SGD networks, for each of plain and mapped inputs
    masks: int = 50  # of MC-dropout
    seed: int = 1

    def fit_to(self, train_size: int) -> Protocol:
        """Held out is at most a sixth of the training images."""
        return replace(self, validation=min(self.validation, train_size // 6))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def first_grid(self) -> list[Setting]:
        """Length x step size x the first layer's variance."""
        first, *others = self.variances
        return [
            Setting(length, eta, (first * factor, *others))
            for length, eta, factor in product(self.lengths, self.step_sizes, self.first_factors)
        ]

    def second_grid(self, best: Setting) -> list[Setting]:
        """The variances around those of ``best``."""
        return [
            best._replace(
                variances=tuple(v * f for v, f in zip(best.variances, factors, strict=True))
            )
            for factors in product(*self.refine_factors)
        ]

    def overdamped_grid(self, best: Setting) -> list[Setting]:
        """Step sizes and first variances without momentum, for plain inputs and the chosen ones."""
        first, *others = best.variances
        return [
            Setting(length, eta, (first * factor, *others))
            for length, eta, factor in product(
                dict.fromkeys((0.0, best.length)), self.overdamped_step_sizes, self.first_factors
            )
        ]


#: Every size as small as it can be: what runs in seconds on a CPU.
TOY = Protocol(
    hidden=(16, 16), batch_size=20, validation=100, select_steps=60, select_burn_in=20, steps=200,
    burn_in=40, thin=20, seeds=2, pooled=2, mixed=1, lengths=(0.0, 0.8, 1.2),
    step_sizes=(1e-4, 3e-4), first_factors=(1.0, 2.0),
    refine_factors=((1.0,), (1.0, 2.0), (1.0, 4.0)), overdamped_step_sizes=(1e-3,),
    sgd_step_sizes=(0.1,), dropout_rates=(0.2,), ensembles=2, masks=3,
)  # fmt: skip
