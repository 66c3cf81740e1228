"""Scores of regressions: an ensemble's means (network, n, ...) and noise against targets (n, ...).

The predictive distribution is the mixture over networks of N(mean, variance); ``variance``
broadcasts against the means (see ``mixtures``). Components of one target are scored on their own:
the negative log-likelihood sums over them, the other scores average.
"""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin.likelihoods import mixtures


def regression_nll(means: Tensor, variance: Tensor | float, y: Tensor) -> float:
    """Mean over samples of -ln p(y_n | x_n), in nats. Densities are averaged, logarithms last.

    A network's components are independent given the network, not over networks: the density of a
    whole target is averaged.

    >>> round(regression_nll(torch.zeros(2, 1), 1.0, torch.zeros(1)), 4)
    0.9189
    """
    y = y.reshape(means.shape[1:])
    variance = torch.as_tensor(variance, dtype=torch.float64, device=means.device)
    # One network at a time, with the components summed: the mixture is over whole targets.
    terms = [
        mixtures.log_density(y, m[None], v[None]).reshape(len(y), -1).sum(1)
        for m, v in zip(means, variance.expand_as(means), strict=True)
    ]
    log_p = torch.logsumexp(torch.stack(terms), dim=0) - torch.tensor(float(len(terms))).log()
    return float(-log_p.mean())


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
