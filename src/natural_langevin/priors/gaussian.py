"""Gaussian weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import number_or_chains, per_chain
from natural_langevin.priors.base import Prior, check_mean, check_number_or_vector


@dataclass(frozen=True)
class Gaussian(Prior):
    """N(mean, variance) on every component independently.

    ln alpha = -(theta - mean)^2 / (2 variance) - ln(2 pi variance) / 2, summed over components.
    ``variance`` is a variance, not a standard deviation. ``mean``: a number, one per chain, or one
    per weight, of the parameter's shape (``around`` has those of a network).

    >>> Gaussian(0.1).gradient(torch.tensor([[0.2]]))
    tensor([[-2.]])
    """

    variance: float | Tensor = 0.1
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        given: Any = self.variance
        if not isinstance(given, (int, float, Tensor)):
            object.__setattr__(self, "variance", torch.as_tensor(given))  # a list or an array
        check_number_or_vector("variance", self.variance, positive=True)
        check_mean(self, self.mean)

    def log_density(self, theta: Tensor) -> Tensor:
        variance, mean = per_chain(self.variance, theta), per_chain(self.mean, theta)
        terms = (theta - mean).square() / variance + torch.log(2 * math.pi * variance)
        return -0.5 * terms.reshape(len(theta), -1).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        away = number_or_chains(self.mean, theta) - theta
        return away / number_or_chains(self.variance, theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        z = random.normal(key, math.prod(shape)).to(dtype).reshape(-1, *shape)
        return per_chain(self.mean, z) + per_chain(self.variance, z).sqrt() * z

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"variance": self.variance, "mean": self.mean}

    @property
    def precision(self) -> float | Tensor:
        return 1 / self.variance
