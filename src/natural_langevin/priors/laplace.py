"""Sparse weights: the Laplace law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin.priors.base import Prior, check_mean, check_number_or_vector


@dataclass(frozen=True)
class Laplace(Prior):
    """ln alpha = -|theta - mean| / scale - ln(2 scale), summed over components: a sharper peak and
    heavier tails than a Gaussian of the same variance, 2 scale^2. The gradient at the mean is 0.

    >>> Laplace(0.5).gradient(torch.tensor([[0.1, -3.0]]))
    tensor([[-2.,  2.]])
    """

    scale: float | Tensor = 0.2
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        check_number_or_vector("scale", self.scale, positive=True)
        check_mean(self, self.mean)

    def log_density(self, theta: Tensor) -> Tensor:
        scale = per_chain(self.scale, theta)
        away = (theta - per_chain(self.mean, theta)).abs()
        return -(away / scale + torch.log(2 * scale)).reshape(len(theta), -1).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        return -(theta - per_chain(self.mean, theta)).sign() / per_chain(self.scale, theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The difference of two exponential draws."""
        u, v = random.uniform(key, 2 * math.prod(shape)).double().chunk(2, dim=1)
        theta = (v.log() - u.log()).to(dtype).reshape(-1, *shape)
        return per_chain(self.mean, theta) + per_chain(self.scale, theta) * theta

    @property
    def precision(self) -> float | Tensor:
        """1 / scale^2: all of the curvature lies in the peak, and this is its average."""
        return 1 / self.scale**2

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"scale": self.scale, "mean": self.mean}
