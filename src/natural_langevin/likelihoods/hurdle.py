"""Amounts of which many are exactly zero: a hurdle model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from natural_langevin import random
from natural_langevin.likelihoods.base import (
    Likelihood,
    State,
    check_real,
    per_sample,
    same_observation,
)
from natural_langevin.likelihoods.distributions import ZeroOrLogNormal


@dataclass(frozen=True)
class Hurdle(Likelihood):
    """y = 0 with probability 1 - q, and otherwise ln y ~ N(m, v), with three outputs per target:
    outputs (B, 3 D) hold the D values logit q, then the D means m, then the D values u, by which

        v = sqrt(1 + 2 u) for u > 0, and 1 / (1 - u/2)^2 for u < 0:

    u is ln v near 0, and beyond it v and 1/v grow like powers. With u = ln v they grow
    exponentially, where rows of zeros leave m and u free: chains went to infinity, and E y =
    q exp(m + v/2) did.

    -ln p(0) = -ln(1 - q), a probability; for y > 0 the density has
    -ln p(y) = -ln q + [(ln y - m)^2 / v + ln v + ln(2 pi)] / 2 + ln y.

    The weights' prior is the prior of m and u too: divide targets by their geometric mean.
    """

    outputs_per_target = 3

    def distribution(self, outputs: Tensor, state: State) -> ZeroOrLogNormal:
        logits, mean, u = outputs.chunk(3, dim=-1)
        return ZeroOrLogNormal(logits, mean, (_log_variance(u) / 2).exp())

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        logits, mean, u = outputs.chunk(3, dim=-1)
        log_variance = _log_variance(u)
        y = y.to(outputs.dtype).reshape(mean.shape)
        there = y > 0
        log_y = torch.where(there, y, 1.0).log()
        amount = (log_y - mean).square() * (-log_variance).exp() + log_variance
        amount = 0.5 * (amount + math.log(2 * math.pi)) + log_y
        return per_sample(torch.where(there, softplus(-logits) + amount, softplus(logits)))

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        logits, mean, noise = outputs.chunk(3, dim=-1)
        u, v = random.uniform(key, 2 * mean.numel()).clamp_max(1 - 2.0**-24).chunk(2)
        z = torch.special.ndtri(v.reshape(mean.shape).to(mean.dtype))
        amount = (mean + (_log_variance(noise) / 2).exp() * z).exp()
        return torch.where(u.reshape(mean.shape) <= logits.sigmoid(), amount, 0.0)

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        check_real("Hurdle", y)
        if (y < 0).any():
            raise ValueError(
                f"Hurdle targets must be 0 or positive, got {float(y.min())!r}: numbers of both "
                "signs need another likelihood, such as Gaussian"
            )


def _log_variance(u: Tensor) -> Tensor:
    """ln v."""
    return (2 * u.clamp_min(0)).log1p() / 2 - 2 * relu(-u / 2).log1p()
