"""Monte-Carlo standard errors: how far an average over correlated draws may be from its limit.

By batch means (Flegal & Jones 2010): every chain's n draws are cut into batches of b = sqrt(n)
consecutive ones, whose means are nearly independent; the variance of those A means, divided by A,
is that of the average. It asks for no spectral estimate, so it serves thousands of numbers at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from natural_langevin.diagnostics.reading import Reading


def batched(values: Tensor) -> Tensor | None:
    """(chain, draw, ...) as batches (A, b, ...) of consecutive draws; None with fewer than four."""
    chains, draws = values.shape[:2]
    size = max(1, math.isqrt(draws))
    count = draws // size
    if chains * count < 4:
        return None
    return values[:, draws - count * size :].unflatten(1, (count, size)).flatten(0, 1)


def standard_error(values: Tensor) -> Tensor | None:
    """Of the mean over chains and draws of (chain, draw, ...): shape (...)."""
    parts = batched(values)
    if parts is None or not parts.numel():
        return None
    return (parts.mean(1, dtype=torch.float64).var(0) / len(parts)).sqrt().to(values.dtype)


def log_score(log_likelihood: Tensor) -> Reading:
    """-(1/N) sum_n ln mean_draws p(y_n), from (chain, draw, N), with its Monte-Carlo error.

    The error is a jackknife over batches of draws: a score is no mean over draws."""
    values = log_likelihood.double()

    def score(log_sums: Tensor, count: float) -> Tensor:
        return (math.log(count) - log_sums).mean(-1)

    flat = values.flatten(0, 1)
    value = float(score(flat.logsumexp(0), len(flat)))
    parts = batched(values)
    if parts is None:
        return Reading(value, math.nan)
    own = parts.logsumexp(1)  # (A, N)
    whole, size = own.logsumexp(0), parts.shape[1]
    # ln(sum - part): parts are positive, and none is the whole.
    rest = whole + torch.log1p(-(own - whole).exp().clamp_max(1 - 1e-12))
    return Reading(value, float(jackknife(score(rest, size * (len(parts) - 1)))))


def left_out(values: Tensor) -> Tensor | None:
    """Means over chains and draws of (chain, draw, ...) without one batch of draws: (A, ...)."""
    parts = batched(values)
    if parts is None:
        return None
    means = parts.mean(1, dtype=torch.float64)
    return (means.sum(0) - means) / (len(means) - 1)


def label_score_error(log_left_out: Tensor, y: Tensor) -> float:
    """Of the mean of -ln q(y_n), from ln q without one batch of draws each (A, N, ..., K)."""
    index = y.flatten().long().expand(len(log_left_out), -1).unsqueeze(-1)
    of_labels = log_left_out.flatten(1, -2).gather(-1, index.to(log_left_out.device))
    return float(jackknife(-of_labels.mean((1, 2))))


def jackknife(values: Tensor) -> Tensor:
    """The standard error of a function of a mean, from its values (A, ...) without one batch."""
    count = len(values)
    return ((values - values.mean(0)).square().sum(0) * (count - 1) / count).sqrt()
