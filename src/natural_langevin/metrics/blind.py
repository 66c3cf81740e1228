"""The blind guess: the best prediction of targets that ignores the inputs.

Its parameters are fitted to the targets that are scored, which favours it by about k / (2 n) nats
for n targets and k parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import NegativeBinomial, Normal, Poisson


def classes(y: Tensor, count: int) -> float:
    """-ln p per label of the labels' own frequencies: their entropy, in nats.

    >>> round(classes(torch.tensor([0, 0, 1, 1]), 2), 4)
    0.6931
    """
    p = torch.bincount(y, minlength=count).double() / len(y)
    return float(-torch.special.xlogy(p, p).sum())


def numbers(y: Tensor) -> float:
    """-ln p per sample (B, ...) of a normal distribution with every component's own mean and
    standard deviation, summed over the components."""
    y = y.double().reshape(len(y), -1)
    spread = y.std(0, correction=0).clamp_min(torch.finfo(torch.float64).tiny ** 0.25)
    return float(-Normal(y.mean(0), spread).log_prob(y).sum(1).mean())


def counts(y: Tensor) -> float:
    """The same of counts: a negative binomial with their mean and variance, or a Poisson
    distribution where the variance is no larger than the mean."""
    y = y.double().reshape(len(y), -1)
    mean, variance = y.mean(0).clamp_min(1e-9), y.var(0, correction=0)
    poisson = -Poisson(mean).log_prob(y)
    excess = (variance - mean).clamp_min(1e-9)
    wide = -NegativeBinomial(mean.square() / excess, probs=excess / (mean + excess)).log_prob(y)
    return float(torch.where(variance > mean * (1 + 1e-6), wide, poisson).sum(1).mean())
