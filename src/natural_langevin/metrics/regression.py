"""Scores of regressions: an ensemble's means (network, n, ...) and noise against targets (n, ...).

The predictive distribution is the mixture over networks of N(mean, variance); ``variance``
broadcasts against the means (see ``mixtures``). Scores average over the components of a target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin.likelihoods import mixtures


def crps(means: Tensor, variance: Tensor | float, y: Tensor) -> float:
    """Mean continuous ranked probability score, in the units of y (see ``mixtures.crps``).

    >>> round(crps(torch.zeros(2, 1), 1.0, torch.zeros(1)), 4)
    0.2337
    """
    variance = torch.as_tensor(variance, dtype=torch.float64, device=means.device)
    return float(mixtures.crps(y.reshape(means.shape[1:]), means, variance).mean())


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root of the mean squared error of point predictions."""
    return float((mean.double() - y.reshape(mean.shape).double()).square().mean().sqrt())


def interval_coverage(lower: Tensor, upper: Tensor, y: Tensor) -> float:
    """Fraction of targets inside their intervals, ends included.

    Compare with the intervals' level: its standard error is sqrt(level (1 - level) / n).
    """
    y = y.reshape(lower.shape)
    return float(((lower <= y) & (y <= upper)).double().mean())
