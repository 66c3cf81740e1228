"""Counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.special import poisson_quantile
from natural_langevin.likelihoods import distributions
from natural_langevin.likelihoods.base import (
    Likelihood,
    State,
    check_counts,
    per_sample,
    same_observation,
)

#: The rate in units of y + 1 up to which the gradient grows.
LARGEST_RATE = 30.0


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts y ~ Poisson(exp(outputs)): outputs (B,) or (B, D) are logarithms of the rates.

    -ln p = exp(outputs) - y outputs + ln y!, summed over the components of a target. The variance
    of a Poisson count is its mean: for counts that vary more, ``NegativeBinomial``.

    Beyond a rate of 30 (y + 1), where a row's density is e^-30 of its largest at most, the gradient
    stays what it is there: one that grows without bound throws chains to infinity.
    """

    def distribution(self, outputs: Tensor, state: State) -> distributions.Poisson:
        return distributions.Poisson(outputs.exp(), validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        y = y.to(outputs.dtype).reshape(outputs.shape)
        near = torch.minimum(outputs, (LARGEST_RATE * (y + 1)).log())
        rate = near.exp() * (1 + outputs - near)
        rate = rate + (outputs.exp() - rate).detach()
        return per_sample(rate - y * outputs + torch.lgamma(y + 1))

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        u = random.uniform(key, outputs.numel()).clamp_max(1 - 2.0**-24).reshape(outputs.shape)
        return poisson_quantile(outputs.double().exp(), u).to(outputs.dtype)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        check_counts("Poisson", y)
