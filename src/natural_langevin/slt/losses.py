"""Losses of all data at given weights, for E[L_n(w)] and L_n(w*)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from natural_langevin._internal.chains import Batch, Params
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.statistics import Network

#: Rows at a time; and networks, as many as have so many weights together, within bounds: large ones
#: are evaluated one by one.
ROWS, WEIGHTS, FEWEST, MOST = 4000, 100_000, 4, 64


def batches(sampler: Langevin, data: Any) -> Iterator[Batch]:
    """All rows, once: (x, y) as the sampler's network and likelihood take them."""
    if isinstance(data, DataLoader):
        for item in data:
            yield sampler.signature.split(item)
        return
    x, y = sampler.signature.split(data)
    yield from zip(x.split(ROWS), y.split(ROWS), strict=True)


def at_weights(sampler: Langevin, weights: Params, data: Any) -> Tensor:
    """The mean loss at weights (chain, *shape), (chain,), in nats and float64."""
    network = Network(sampler.model, signature=sampler.signature)
    chains = len(next(iter(weights.values())))
    count, total = 0, torch.zeros(chains, dtype=torch.float64)
    with torch.no_grad():
        for x, y in batches(sampler, data):
            x, y = x.to(sampler.device), y.to(sampler.device)
            own = [
                sampler.likelihood.log_loss(
                    network.call({k: v[c] for k, v in weights.items()}, x.clone()), y, {}
                )
                for c in range(chains)
            ]
            total += torch.stack(own).double().sum(1).cpu()
            count += len(x)
    return total / count


def of_draws(sampler: Langevin, posterior: Posterior, data: Any) -> Tensor:
    """The mean loss of every draw of the healthy chains, (chain, draw), in nats and float64."""
    count, total = 0, torch.zeros(1, 1, dtype=torch.float64)
    together = max(FEWEST, min(WEIGHTS // sampler.problem.weights, MOST))
    for x, y in batches(sampler, data):
        found = posterior.log_likelihood(x, y, chains="all", batch_size=ROWS, sample_batch=together)
        total = total - found.double().sum(-1).cpu()
        count += len(x)
    return total / count
