"""Rank-normalised split R-hat and bulk ESS (Vehtari et al. 2021) of many numbers at once.

The formulas are ArviZ's, to rounding (tested). ArviZ takes one number per call, half a millisecond
each and more: the predictions that a diagnosis follows are hundreds. Every chain is split in two,
its draws z are the normal quantiles of their ranks r among all S draws of the number,

    z = Phi^{-1}((r - 3/8) / (S + 1/4)).

    R-hat = sqrt((B / W + n - 1) / n)    of n draws, with the variance W within chains and
                                         B = n Var(means of chains)
    ESS   = S / (1 + 2 sum_t rho_t)      summed by Geyer's initial monotone sequence

Arrays are (chain, draw, k), results (k,).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[np.float64]]


def rhat(values: Array) -> Array:
    """R-hat: the larger of that of the draws and that of their distances from the median."""
    halves = _split(values)
    bulk = _rhat(_normal_scores(halves))
    tail = _rhat(_normal_scores(np.abs(halves - np.median(halves, axis=(0, 1)))))
    return np.where(tail > bulk, tail, bulk)


def ess(values: Array) -> Array:
    """Bulk effective sample size: how many independent draws would say as much, over all chains."""
    return _ess(_normal_scores(_split(values)))


def ess_of_mean(values: Array) -> Array:
    """The same of the draws and not of their ranks: for their mean."""
    return _ess(_split(values))


def error_of_mean(values: Array) -> Array:
    """Monte-Carlo standard error sd / sqrt(ESS); of fewer than four draws it is not known."""
    if values.shape[1] < 4:
        return np.full(values.shape[2], np.nan)
    found: Array = values.std(axis=(0, 1), ddof=1) / np.sqrt(ess_of_mean(values))
    return found


def _split(values: Array) -> Array:
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]])


def _normal_scores(values: Array) -> Array:
    """Ties share the mean of their ranks."""
    flat = torch.from_numpy(np.ascontiguousarray(values.reshape(-1, values.shape[2]).T))
    (ordered, places), size = flat.sort(dim=1), flat.shape[1]
    rank = torch.arange(1, size + 1, dtype=flat.dtype)[None]
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        below = torch.searchsorted(ordered, ordered)
        rank = (below + torch.searchsorted(ordered, ordered, right=True) + 1).to(flat) / 2
    scores = torch.special.ndtri((rank - 3 / 8) / (size + 1 / 4)).expand_as(flat)
    scores = torch.empty_like(flat).scatter_(1, places, scores)
    found: Array = scores.T.reshape(values.shape).numpy()
    return found


def _rhat(z: Array) -> Array:
    n = z.shape[1]
    between, within = n * z.mean(axis=1).var(axis=0, ddof=1), z.var(axis=1, ddof=1).mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that do not move at all
        found: Array = np.sqrt((between / within + n - 1) / n)
    return found


def _ess(z: Array) -> Array:
    chains, n, _ = z.shape
    covariance = _autocovariance(z).mean(axis=0)  # (lag, k)
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + z.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: n // 2 * 2].reshape(-1, 2, rho.shape[1]).sum(axis=1)  # of lags 2j and 2j + 1
    # Pairs count as long as they are positive, each at most as much as the one before; of the one
    # after, its even lag alone, once.
    most = max(0, math.ceil((n - 4) / 2))
    counted = np.cumprod(pairs[:most] > 0, axis=0)
    last = counted.sum(axis=0)
    smooth = (np.minimum.accumulate(pairs[:most], axis=0) * counted).sum(axis=0)
    column = np.arange(rho.shape[1])
    even, sum_ = rho[2 * last, column], pairs[last, column]
    tau = -1 + 2 * smooth + np.where((sum_ >= 0) | (even > 0), even, 0.0)
    size = chains * n
    found = size / np.maximum(tau, 1 / math.log10(size))
    still = np.ptp(z, axis=(0, 1)) < np.finfo(np.float64).resolution
    return np.where(still, float(size), found)


def _autocovariance(z: Array) -> Array:
    """(chain, lag, k), divided by the number of draws at every lag."""
    n = z.shape[1]
    spectrum = np.fft.rfft(z - z.mean(axis=1, keepdims=True), 2 * n, axis=1)
    found: Array = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n, axis=1)[:, :n] / n
    return found
