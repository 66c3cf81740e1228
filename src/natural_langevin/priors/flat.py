"""No prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin.priors.base import Prior


@dataclass(frozen=True)
class Flat(Prior):
    """No prior: ln alpha = 0 everywhere (improper, so it cannot be sampled)."""

    def log_density(self, theta: Tensor) -> Tensor:
        return theta.new_zeros(theta.shape[0])

    def gradient(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        raise ValueError(
            'a Flat prior is improper and cannot be sampled: use init="model" or init="fan_in"; '
            "a marginal likelihood needs a proper prior, such as priors.Gaussian(variance=1.0)"
        )

    @property
    def precision(self) -> float | Tensor:
        """0: the likelihood alone gives these weights their curvature."""
        return 0.0
