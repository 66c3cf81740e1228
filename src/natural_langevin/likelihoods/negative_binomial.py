"""Counts that vary more than Poisson's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.special import gamma_quantile, poisson_quantile
from natural_langevin.likelihoods import distributions
from natural_langevin.likelihoods.base import Likelihood, State, check_counts, same_observation
from natural_langevin.likelihoods.own_parameter import check_positive, split
from natural_langevin.priors.constrained import PositivePrior


@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """Counts of mean m = exp(output) and variance m + a m^2: a Poisson count whose rate is m times
    a gamma variable of mean 1 and variance a, the ``dispersion``.

    p(y) = Gamma(y + r) / (Gamma(r) y!) (r / (r + m))^r (m / (r + m))^y with r = 1/a.

    ``dispersion`` is a number, and outputs (B,) or (B, D) are ln m; or it is "outputs": the
    network gives two outputs per target, (B, 2 D), the D values ln m, then the D values ln a; or a
    prior of it, such as ``priors.HalfNormal(1.0)``, with which it is sampled like a weight.
    """

    dispersion: float | str | PositivePrior = "outputs"

    def __post_init__(self) -> None:
        poisson = "; counts without dispersion are likelihoods.Poisson()"
        check_positive("dispersion", self.dispersion, "outputs", remedy=poisson)

    @property
    def own_parameter(self) -> tuple[str, PositivePrior] | None:
        own = self.dispersion
        return ("dispersion", own) if isinstance(own, PositivePrior) else None

    @property
    def outputs_per_target(self) -> int:
        return 2 if self.dispersion == "outputs" else 1

    def distribution(self, outputs: Tensor, state: State) -> distributions.NegativeBinomial:
        log_mean, log_a = self._parts(outputs)
        return distributions.NegativeBinomial(
            (-log_a).exp(), logits=log_mean + log_a, validate_args=False
        )

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        log_mean, log_a = self._parts(outputs)
        u, v = random.uniform(key, 2 * log_mean.numel()).clamp_max(1 - 2.0**-24).chunk(2)
        gamma = gamma_quantile((-log_a).exp().double(), u.reshape(log_mean.shape))
        rate = gamma * (log_mean + log_a).exp()
        return poisson_quantile(rate, v.reshape(rate.shape)).to(outputs.dtype)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        check_counts("NegativeBinomial", y)

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """ln m and ln a, both of the targets' shape."""
        if isinstance(self.dispersion, str):
            log_mean, log_a = outputs.chunk(2, dim=-1)
            return log_mean, log_a
        if isinstance(self.dispersion, PositivePrior):
            log_mean, log_a = split(outputs)
            return log_mean, log_a.expand_as(log_mean)
        return outputs, torch.full_like(outputs, math.log(self.dispersion))
