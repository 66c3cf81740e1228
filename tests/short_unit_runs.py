"""Short runs of a small regression, for tests of data in unusual units."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, models

RUN: dict[str, Any] = {"steps": 40, "burn_in": 8, "thin": 4, "progress": False}


def rows(count: int = 30, numbers: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    y = torch.sin(x) @ torch.randn(3, numbers, generator=generator)
    return x, y + 0.3 * torch.randn(count, numbers, generator=generator)


def network(outputs: int = 1) -> nn.Sequential:
    return models.mlp(3, outputs, (6,), activation=nn.Tanh, seed=1)


def sampled(
    x: Tensor, y: Tensor, likelihood: likelihoods.Likelihood, model: nn.Module, **options: Any
) -> tuple[Langevin, Posterior]:
    sampler = Langevin(model, likelihood, chains=2, **options)
    return sampler, sampler.sample((x, y), **RUN)
