"""Powers of the likelihood from the prior to the posterior, and the integrals over them.

In u = ln beta the integrand g = beta E_beta[ln p - c] is smooth, c the mean at beta = 1, and its
slope is known from the same draws, dg/du = g + beta^2 Var_beta[ln p]: every interval is integrated
by Hermite's cubic. Below the first power beta_1, draws of the prior are used: ln E_prior[p^beta_1].

Powers are ``spacing`` apart in u: 2 / sqrt(d / 2) for d weights, at which half of the proposed
swaps are accepted, within bounds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: In ln beta: the widest and the narrowest interval; and how many powers there are at most.
WIDEST, NARROWEST, MOST_POWERS = 0.7, 0.3, 40
#: beta_1 times the deviation of ln p under the prior.
FIRST = 0.3


def powers(deviation: float, weights: int) -> Tensor:
    """beta_1 < ... < 1, float64, in equal steps of ln beta. ``deviation``: of ln p under the prior.

    >>> powers(1e4, 8).tolist()[-1], len(powers(1e4, 8))
    (1.0, 16)
    """
    first = min(0.3, FIRST / max(deviation, 1e-12))
    spacing = min(WIDEST, max(NARROWEST, 2 / math.sqrt(max(weights, 1) / 2)))
    count = min(MOST_POWERS, max(4, math.ceil(-math.log(first) / spacing) + 1))
    found = torch.exp(torch.linspace(math.log(first), 0.0, count, dtype=torch.float64))
    found[-1] = 1.0
    return found


def thermodynamic(beta: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """integral of E_beta[ln p] from beta_1 to 1 by Hermite's cubic in ln beta, from the means and
    variances of ln p at every power; and the weight of every mean in it. The mean of ln p at the
    last power, which is large, is integrated separately and exactly."""
    h, last = beta.log().diff(), mean[-1]
    g = beta * (mean - last)
    slope = g + beta * _monotone(mean.diff() / h, beta * variance)
    rest = (h * (g[1:] + g[:-1]) / 2 + h.square() * (slope[:-1] - slope[1:]) / 12).sum()
    weight = torch.zeros_like(beta)
    weight[1:] += h / 2 - h.square() / 12
    weight[:-1] += h / 2 + h.square() / 12
    weight = weight * beta
    weight[-1] += 1 - beta[0] - weight.sum()
    return (1 - beta[0]) * last + rest, weight


def _monotone(secants: Tensor, slopes: Tensor) -> Tensor:
    """The slopes of an ascending curve, at most three times those of the secants beside them, where
    a cubic still ascends (Fritsch & Carlson 1980): draws of a chain that has not mixed have
    variances of a thousand times as much."""
    most = 3 * secants.clamp_min(0)
    return torch.minimum(
        slopes, torch.minimum(most[[0, *range(len(most))]], most[[*range(len(most)), -1]])
    )


def from_prior(log_p: Tensor, power: float) -> tuple[float, float]:
    """ln E_prior[p^power] from draws of the prior, and its error."""
    terms = power * log_p
    top = terms.max()
    ratio = torch.exp(terms - top)
    value = float(top + ratio.mean().log())
    return value, float(ratio.std() / (ratio.mean() * math.sqrt(len(ratio))))


def stepping_stone(beta: Tensor, log_p: list[Tensor]) -> float:
    """sum over neighbours of the ratio of their normalisers by Bennett's equation, from the draws
    of both powers."""
    return sum(
        _bennett(float(high - low), below.flatten(), above.flatten())
        for low, high, below, above in zip(beta[:-1], beta[1:], log_p[:-1], log_p[1:], strict=True)
    )


def _bennett(step: float, below: Tensor, above: Tensor) -> float:
    """ln Z(beta + step) / Z(beta): the root of sum sigmoid(up) = sum sigmoid(down)."""
    up, down = step * below, step * above
    low, high = float(up.min()), float(down.max())
    for _ in range(64):
        ratio = (low + high) / 2
        forward = torch.sigmoid(up - ratio).sum() / len(up)
        backward = torch.sigmoid(ratio - down).sum() / len(down)
        low, high = (ratio, high) if forward > backward else (low, ratio)
    return (low + high) / 2
