"""Watanabe's widely applicable Bayesian information criterion (2013).

    WBIC = E[n L_n(w)],    w ~ alpha(w) prod_n p(y_n | x_n, w)^beta,    beta = 1 / ln n

is -ln of the marginal likelihood up to O(sqrt(ln n)), for singular models too. ``evidence``
computes it without that remainder, with a ladder of powers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from natural_langevin import priors
from natural_langevin._internal.messages import text_shown
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.slt import losses
from natural_langevin.slt.estimate import mean_and_error
from natural_langevin.slt.llc import DRAWS, check, run


@dataclass(frozen=True)
class FreeEnergy:
    """``value``: E[n L_n] in nats, with its Monte-Carlo ``error``; ``trace``: of every draw."""

    value: float
    error: float
    trace: Tensor = field(repr=False)
    posterior: Posterior = field(repr=False)

    def _repr_html_(self) -> str:
        return text_shown(str(self))

    def __str__(self) -> str:
        return f"WBIC {self.value:.6g} +- {self.error:.2g} nats"


def wbic(
    model: nn.Module,
    likelihood: Likelihood,
    data: Any,
    *,
    prior: priors.PriorLike | None = None,
    chains: int = 4,
    draws: int = DRAWS,
    steps: int | None = None,
    batch_size: int | None = None,
    burn_in: int | None = None,
    progress: bool | str = False,
    **options: Any,
) -> FreeEnergy:
    """WBIC under ``prior`` (None: N(0, 2 / fan_in)). ``options`` are those of ``Langevin``."""
    check(likelihood, model, "model")
    sampler, posterior, *_ = run(
        model, likelihood, data, init=options.pop("init", None), power=None, chains=chains,
        prior=priors.FanIn(math.sqrt(2)) if prior is None else prior, draws=draws, steps=steps,
        seconds=None, batch_size=batch_size, burn_in=burn_in, progress=progress, **options,
    )  # fmt: skip
    count = float(posterior.config["num_data"])
    trace = count * losses.of_draws(sampler, posterior, data)
    value, error = mean_and_error(trace)
    return FreeEnergy(value, error, trace, posterior)
