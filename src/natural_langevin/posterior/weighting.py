"""Draws weighted by their step size, for schedules that fall.

A chain whose step size falls moves ever less between two draws: the late ones repeat each other,
and a plain average counts them too often. Welling & Teh (2011) weigh by the step size,

    E f ~ sum_k w_k f(theta_k) / sum_k w_k,    w_k = sum of eta_t since the draw before,

the time that the chain diffused for. Here the draws themselves are resampled in proportion to w,
systematically (draw k is taken floor or ceil of its share of times, nothing is random), so that
whatever is computed from a posterior afterwards is weighted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.schedules import Stages


def draw_weights(
    step_size: Tensor, burn_in: int, thin: int, explores: Stages | None = None
) -> list[list[float]] | None:
    """w of every draw from eta (step, chain), with mean 1: (chain, draw), or one row for all
    chains where they agree; None where all draws weigh the same. Steps that explore do not count.

    >>> eta = torch.tensor([4.0, 1.0, 1.0, 2.0, 2.0])[:, None]
    >>> draw_weights(eta, burn_in=1, thin=2)
    [[0.66667, 1.3333]]
    """
    draws = (len(step_size) - burn_in) // thin
    if not draws:
        return None
    kept = step_size[burn_in : burn_in + draws * thin].double().cpu().unflatten(0, (draws, thin))
    if explores is not None:
        still = torch.tensor([explores(burn_in + k) for k in range(draws * thin)])
        still = still.unflatten(0, (draws, thin))
        kept = torch.where(still[..., None], 0.0, kept)[~still[:, -1]]
    weights = kept.sum(1).mT
    mean = weights.mean(1, keepdim=True)
    weights = torch.where(mean > 0, weights / mean, torch.ones_like(weights))
    if torch.allclose(weights, torch.ones_like(weights), rtol=1e-4):
        return None
    if torch.allclose(weights, weights[:1], rtol=1e-4):
        weights = weights[:1]
    return [[float(f"{w:.5g}") for w in row] for row in weights.tolist()]


def systematic(weights: Tensor) -> Tensor:
    """Which draw stands at every place of a resampled chain, in order: (chain, draw) int64.

    >>> systematic(torch.tensor([[2.0, 1.0, 1.0, 0.0]]))
    tensor([[0, 0, 1, 2]])
    """
    draws = weights.shape[1]
    share = weights.double().cumsum(1)
    points = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws * share[:, -1:]
    return torch.searchsorted(share, points).clamp_max(draws - 1)


def resampled(samples: Mapping[str, Tensor], index: Tensor) -> Params:
    """The draws (chain, draw, *shape) that ``index`` (chain, draw) names."""
    rows = torch.arange(len(index))[:, None]
    return {k: s[rows.to(s.device), index.to(s.device)] for k, s in samples.items()}
