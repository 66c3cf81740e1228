"""How a table is sampled, unless somebody says otherwise.

With standardised inputs one choice serves most tables: the quasi-diagonal metric, one hidden layer
of 50 units, a prior variance between the paper's 0.1 and 1, and a step size of 0.003, or of 0.001
with more layers (0.01 is faster, and diverges with two). ``step_size="auto"`` looks for one by a
short pilot run (``pilot``): on tables where the usual one works it finds no better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal

from torch import nn

from natural_langevin import models, preconditioners, priors
from natural_langevin.data.errors import DataError
from natural_langevin.langevin import Langevin
from natural_langevin.likelihoods import Categorical, Gaussian, Likelihood
from natural_langevin.tabular.target import Target

AUTO: Literal["auto"] = "auto"
#: The step size that suits most tables.
USUAL = 0.003
#: Networks kept of every chain, unless the run is shorter.
DRAWS = 50
#: 400 MB for every network that is kept; beyond it, a table is not what one has.
MOST_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run besides its data; ``damping`` follows from the rest."""

    hidden: tuple[int, ...]
    steps: int
    chains: int
    batch_size: int
    step_size: float | Literal["auto"]
    prior_variance: float
    damping: float
    seed: int

    @property
    def burn_in(self) -> int:
        return self.steps // 2

    @property
    def thin(self) -> int:
        return max(1, (self.steps - self.burn_in) // DRAWS)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"hidden": list(self.hidden)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Settings:
        found = Settings(**value)
        for field in fields(Settings):
            if field.name == "step_size" and found.step_size == AUTO:
                continue
            kind = {"int": int, "tuple[int, ...]": list}.get(str(field.type), float)
            if type(getattr(found, field.name)) is not kind:
                raise TypeError(f"{field.name} is {getattr(found, field.name)!r}")
        if not all(type(units) is int and units > 0 for units in found.hidden):
            raise ValueError(f"hidden is {found.hidden!r}")
        return replace(found, hidden=tuple(found.hidden))


def choose_settings(
    rows: int,
    *,
    hidden: tuple[int, ...] | None = None,
    steps: int | None = None,
    chains: int | None = None,
    batch_size: int | None = None,
    step_size: float | Literal["auto"] | None = None,
    prior_variance: float | None = None,
    seed: int = 0,
) -> Settings:
    """What was given, and for the rest what suits this many training rows.

    The prior's own pull, step_size / (damping rows variance), must stay below 1 (docs/scaling.md):
    the damping is the paper's 1e-4 or, for small tables, what brings the pull to one half. Before
    a step size is known, it is what one of 0.003 would get; the pilot stays within its limits.
    """
    layers = (50,) if hidden is None else hidden
    variance = _positive("--prior-variance", prior_variance, 0.5)
    if step_size is None:
        step_size = USUAL if len(layers) < 2 else 0.001
    eta: float | Literal["auto"] = AUTO
    if step_size is not None and step_size != AUTO:
        eta = _positive("--step-size", step_size, step_size)
    pull = 2 * (USUAL if eta == AUTO else eta)
    if any(units < 1 for units in layers):
        raise DataError(f"--hidden must be sizes of at least 1 such as 50 or 50,50, got {layers}")
    # Twenty passes over the data, within limits that take seconds to minutes on a processor.
    default_steps = min(10_000, max(2000, 20 * rows // 100))
    return Settings(
        hidden=layers,
        steps=_at_least("--steps", steps, default_steps, least=8),
        chains=_at_least("--chains", chains, 4),
        batch_size=min(_at_least("--batch-size", batch_size, 100), rows),
        step_size=eta,
        prior_variance=variance,
        damping=max(1e-4, pull / (rows * variance)),
        seed=seed,
    )


def _positive(name: str, value: float | None, default: float) -> float:
    if value is None:
        return default
    if not 0 < value < math.inf:
        raise DataError(f"{name} must be a positive number, got {value!r}")
    return value


def check_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise DataError(f"--seed must be a number from 0 to 2**63 - 1, got {seed}")
    return seed


def _at_least(name: str, value: int | None, default: int, least: int = 1) -> int:
    if value is None:
        return default
    if value < least:
        raise DataError(f"{name} must be at least {least}, got {value}: leave it out for {default}")
    return value


def network(settings: Settings, inputs: int, target: Target) -> nn.Module:
    sizes = [inputs, *settings.hidden, target.outputs]
    count = sum((a + 1) * b for a, b in pairwise(sizes))
    if count > MOST_PARAMETERS:
        raise DataError(
            f"a network of {'-'.join(map(str, sizes))} units has {count:,} parameters, more than "
            f"{MOST_PARAMETERS:,}: use smaller layers (--hidden), or fewer columns (--drop)"
        )
    return models.mlp(inputs, target.outputs, settings.hidden, seed=settings.seed)


def likelihood(target: Target) -> Likelihood:
    """A regression's noise level is found along the way: the residuals of the training rows."""
    return Categorical() if target.classes else Gaussian(sigma="rmse")


def sampler(settings: Settings, inputs: int, target: Target, device: str) -> Langevin:
    return Langevin(
        network(settings, inputs, target),
        likelihood(target),
        prior=priors.Gaussian(variance=settings.prior_variance),
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=settings.damping),
        step_size=settings.step_size,
        chains=settings.chains,
        init="fan_in",
        seed=settings.seed,
        device=device,
    )
