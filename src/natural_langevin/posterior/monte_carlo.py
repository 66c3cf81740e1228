"""Monte-Carlo standard errors: how far an average over correlated draws may be from its limit.

Every chain's n draws are cut into blocks of sqrt(n) consecutive ones. With b_ca the mean of block a
of chain c, and m_c that of chain c, the variance of the average over all A blocks of C chains is

    within     Var(b_ca) / A    blocks nearly independent (batch means, Flegal & Jones 2010)
    between    Var(m_c) / C     chains independent, mixed or not

The first has many degrees of freedom, and is too small if blocks are shorter than the
autocorrelation time, or chains are in different modes; the second is right in either case, from C
numbers. It is used where it is larger than that of chains which agree is in 95 % of runs: the
larger of the two would be too large by an eighth of four such chains. A single chain is compared
by its quarters.

For other functions of the draws the first variation is used: a function f of the mean m of draws
p_s moves with draw s by f'(m) (p_s - m), and the mean of those numbers has the error of f(m).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from natural_langevin.diagnostics.reading import Reading


def block_means(values: Tensor) -> Tensor:
    """Means of consecutive draws of (chain, draw, ...): (chain, block, ...), in float64."""
    draws = values.shape[1]
    size = max(1, math.isqrt(draws))
    count = draws // size
    blocks = values[:, draws - count * size :].unflatten(1, (count, size))
    return blocks.mean(2, dtype=torch.float64)


def error_of_blocks(blocks: Tensor) -> Tensor | None:
    """Of the mean of blocks (chain, block, ...), in float64; None of fewer than four."""
    chains, count = blocks.shape[:2]
    if chains * count < 4:
        return None
    parts = blocks
    if chains == 1:
        parts = blocks[0, count % 4 :].unflatten(0, (4, -1))
    within, between = (_variance(one) for one in (blocks.flatten(0, 1), parts.mean(1)))
    return torch.where(between > _chance(len(parts)) * within, between, within).sqrt()


def standard_error(values: Tensor) -> Tensor | None:
    """Of the mean over chains and draws of (chain, draw, ...): shape (...)."""
    found = error_of_blocks(block_means(values)) if values.numel() else None
    return None if found is None else found.to(values.dtype)


def log_score(log_likelihood: Tensor) -> Reading:
    """-(1/N) sum_n ln mean_draws p(y_n), from (chain, draw, N), with its Monte-Carlo error.

    Draw s moves it by -(1/N) sum_n p_s(y_n) / mean p(y_n), up to a constant."""
    values = log_likelihood.double()
    mean = values.flatten(0, 1).logsumexp(0) - math.log(values.shape[0] * values.shape[1])
    error = standard_error(-(values - mean).exp().mean(-1))
    return Reading(-float(mean.mean()), math.nan if error is None else float(error))


def _chance(count: int) -> float:
    """What a variance of so many numbers, over its mean, exceeds in 5 % of cases: the quantile of
    chi-squared by degree of freedom (Wilson & Hilferty 1931).

    >>> round(_chance(4), 2)  # 7.81 / 3
    2.59
    """
    ninth = 2 / (9 * (count - 1))
    return (1 - ninth + 1.645 * ninth**0.5) ** 3


def _variance(parts: Tensor) -> Tensor:
    """Of the mean of independent parts (A, ...)."""
    return parts.var(0) / len(parts)
