"""The predictive distribution of a regression: an equal mixture of N(mean_m, variance_m).

``means`` is (network, rows) and ``variance`` (network, 1); everything in float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BISECTIONS = 60


def log_density(y: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """ln p(y): (rows,)."""
    means, variance = means.double(), variance.double()
    terms = -0.5 * ((y.double() - means).square() / variance + torch.log(2 * math.pi * variance))
    return torch.logsumexp(terms, dim=0) - math.log(len(means))


def cdf(y: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """P(Y <= y): (rows,)."""
    return torch.special.ndtr((y.double() - means.double()) / variance.double().sqrt()).mean(0)


def quantile(level: float, means: Tensor, variance: Tensor) -> Tensor:
    """y with P(Y <= y) = level: (rows,), by bisection between the components' own quantiles."""
    z = torch.special.ndtri(torch.tensor(level, dtype=torch.float64, device=means.device))
    of_components = means.double() + z * variance.double().sqrt()
    low, high = of_components.amin(0), of_components.amax(0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = cdf(middle, means, variance) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
