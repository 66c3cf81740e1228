"""Bayesian influence functions: the effect of a datum's weight on the loss of another.

Where datum i counts (1 + e) times in the likelihood, the posterior's mean of a loss changes by

    d E[loss_q] / d e = -beta Cov(loss_i, loss_q)

over the draws (Giordano, Broderick & Jordan 2018; Kreer et al. 2025): it needs no Hessian and no
gradient, so it holds for networks whose minima are not isolated points.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from natural_langevin._internal.chains import likelihood_powers
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.slt.estimate import LearningCoefficient


def influence(
    estimate: LearningCoefficient | Posterior, data: Any, queries: Any, *, chains: Any = None
) -> Tensor:
    """-beta Cov(loss of datum i, loss of query q) over the draws: (query, datum), float64. Negative
    where more weight on the datum lowers the query's loss.

    ``data`` and ``queries``: (x, y), or a Dataset. ``chains``: the chains to use; None: all,
    if they have one target. Covariances are computed within chains.
    """
    if isinstance(estimate, LearningCoefficient):
        chains = estimate.healthy if chains is None else chains
        estimate = estimate.posterior
    posterior, wanted = estimate, estimate.chosen(chains)
    beta = likelihood_powers(posterior.config, posterior.chains)[wanted]
    of_data, of_queries = (_centred_losses(posterior, rows, wanted) for rows in (data, queries))
    degrees = of_data.shape[1] - 1
    if degrees < 1:
        raise ValueError("influences need at least two draws of every chain: lower thin")
    each = torch.einsum("cdq,cdn->cqn", of_queries, of_data) / degrees
    return -(beta[:, None, None] * each).mean(0)


def _centred_losses(posterior: Posterior, rows: Any, chains: list[int]) -> Tensor:
    if isinstance(rows, DataLoader):
        raise TypeError(
            "influences are of rows in a known order, got a DataLoader: give (x, y) or a Dataset"
        )
    x, y = posterior.signature.split(rows)
    found = -posterior.log_likelihood(x, y, chains=chains).double().cpu()
    return found - found.mean(1, keepdim=True)
