"""Gaussian weights whose variance is learned, one per tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin._internal.special import gamma_quantile
from natural_langevin.priors.base import Prior, check_mean


@dataclass(frozen=True, kw_only=True)
class NormalInverseGamma(Prior):
    """Gaussian with unknown variance, integrated out: one variance per parameter tensor.

    variance ~ InverseGamma(alpha, beta) and theta | variance ~ N(mean, variance Id) over the d
    components of the tensor give the multivariate Student-t marginal

        ln alpha(theta) = -(alpha + d/2) ln(beta + S/2) + constant,   S = |theta - mean|^2.

    Keyword-only, so that alpha and beta cannot be swapped by position.

    >>> NormalInverseGamma(alpha=0.5, beta=0.5).gradient(torch.tensor([[1.0]]))
    tensor([[-1.]])
    """

    alpha: float = 0.5
    beta: float = 0.5
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        check_mean(self, self.mean)

    def _centred(self, theta: Tensor) -> Tensor:
        return theta - per_chain(self.mean, theta)

    def _scale(self, theta: Tensor) -> Tensor:
        """beta + S/2: shape (chain, 1, ..., 1)."""
        half = self._centred(theta).square().reshape(len(theta), -1).sum(1) / 2
        return (self.beta + half).reshape(-1, *(1,) * (theta.ndim - 1))

    def log_density(self, theta: Tensor) -> Tensor:
        a, b, d = self.alpha, self.beta, theta[0].numel()
        constant = (
            math.lgamma(a + d / 2)
            - math.lgamma(a)
            + a * math.log(b)
            - d / 2 * math.log(2 * math.pi)
        )
        return constant - (a + d / 2) * torch.log(self._scale(theta)).flatten()

    def gradient(self, theta: Tensor) -> Tensor:
        d = theta[0].numel()
        return -(self.alpha + d / 2) * self._centred(theta) / self._scale(theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        # One extra uniform per chain becomes the precision through the gamma quantile function.
        z = random.normal(key, count).to(dtype).reshape(-1, *shape)
        u = random.uniform(key ^ 0x5BD1E995, 1)[:, 0].to(torch.float64)
        precision = gamma_quantile(self.alpha, u) / self.beta
        return per_chain(self.mean, z) + z * per_chain(precision.rsqrt(), z)

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"mean": self.mean}

    @property
    def precision(self) -> float | Tensor:
        """alpha / beta, the mean of 1 / variance: exact for tensors of many components."""
        return self.alpha / self.beta
