"""The blind guess: the best prediction of targets that ignores the inputs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import NegativeBinomial, Poisson


def classes(y: Tensor, count: int) -> float:
    """-ln p per label of the labels' own frequencies: their entropy, in nats.

    >>> round(classes(torch.tensor([0, 0, 1, 1]), 2), 4)
    0.6931
    """
    p = torch.bincount(y, minlength=count).double() / len(y)
    return float(-torch.special.xlogy(p, p).sum())


class Guess(NamedTuple):
    """What it knows of numbers (n, component), one value per component: their mean and standard
    deviation; and where none is negative the share that is above 0 (otherwise 0), with the mean and
    the deviation of the logarithms of these."""

    mean: Tensor
    scale: Tensor
    share: Tensor
    log_mean: Tensor
    log_scale: Tensor

    @staticmethod
    def of(y: Tensor) -> Guess:
        """Of numbers (n, component) in float64."""
        there = ((y > 0) & (y >= 0).all(0)).double()
        logarithm, share = y.where(y > 0, 1.0).log(), there.mean(0)
        mean = (there * logarithm).mean(0) / share
        variance = (there * (logarithm - mean).square()).mean(0) / share
        return Guess(y.mean(0), y.std(0, correction=0), share, mean, variance.sqrt())

    def numbers(self, y: Tensor, *, zeros: bool = False, upper: float = math.inf) -> Tensor:
        """-ln p of numbers (n, component), by the better of two distributions of each component: a
        normal one, and a log-normal one beside the share that is 0.

        ``zeros``: 0 has a probability, with which no density is to be compared, and what the normal
        distribution has below it; ``upper`` has what there is beyond."""
        scale = self.scale.clamp_min(torch.finfo(torch.float64).tiny ** 0.25)
        normal = _normal(y, self.mean, scale)
        amounts = _normal(y.log(), self.log_mean, self.log_scale) + y.log() - self.share.log()
        z, log_z = (y - self.mean) / scale, (math.log(upper) - self.log_mean) / self.log_scale
        above = torch.special.log_ndtr(-log_z) + self.share.log()
        normal = normal.where(y != upper, -torch.special.log_ndtr(-z))
        amounts = amounts.where(y != upper, -above).where(y > 0, math.inf)
        if zeros:
            normal = normal.where(y != 0, -torch.special.log_ndtr(-self.mean / scale))
            amounts = amounts.where(y != 0, -torch.log1p(-self.share))
        better = (self.log_scale > 0) & (amounts.mean(0) < normal.mean(0))
        return torch.where(better, amounts, normal)

    def counts(self, y: Tensor) -> Tensor:
        """-ln p of counts (n, component): of a negative binomial with their mean and variance, or
        of a Poisson distribution where the variance is no larger than the mean."""
        mean, variance = self.mean.clamp_min(1e-9), self.scale.square()
        poisson = -Poisson(mean, validate_args=False).log_prob(y)
        excess = (variance - mean).clamp_min(1e-9)
        total, p = mean.square() / excess, excess / (mean + excess)
        wide = NegativeBinomial(total, probs=p, validate_args=False)
        return torch.where(variance > mean * (1 + 1e-6), -wide.log_prob(y), poisson)


def _normal(y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """-ln p of normal numbers."""
    return 0.5 * (((y - mean) / scale).square() + math.log(2 * math.pi)) + scale.log()
