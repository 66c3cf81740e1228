"""Few large weights and many small ones: a mixture of Gaussians around one point."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin.priors.base import Prior, check_mean


@dataclass(frozen=True)
class ScaleMixture(Prior):
    """alpha(theta) = sum_k weights[k] N(theta; mean, variances[k]), every component independently
    (Blundell et al. 2015: two Gaussians, one of them narrow). Weights are normalised.

    >>> ScaleMixture(variances=(1.0, 1.0)).gradient(torch.tensor([[0.5]]))
    tensor([[-0.5000]])
    """

    variances: tuple[float, ...] = (0.5, 0.005)
    weights: tuple[float, ...] = (0.5, 0.5)
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        check_mean(self, self.mean)
        for name in ("variances", "weights"):
            values = tuple(float(v) for v in getattr(self, name))
            if not values or not all(math.isfinite(v) and v > 0 for v in values):
                raise ValueError(f"{name} must be positive and finite, got {values}")
            object.__setattr__(self, name, values)
        if len(self.variances) != len(self.weights):
            raise ValueError(f"{len(self.variances)} variances have {len(self.weights)} weights")
        total = sum(self.weights)
        object.__setattr__(self, "weights", tuple(w / total for w in self.weights))

    def _log_terms(self, away: Tensor) -> Tensor:
        """ln(weight N(away; 0, variance)) of every Gaussian: (k, chain, *shape)."""
        pairs = zip(self.weights, self.variances, strict=True)
        return torch.stack(
            [math.log(w) - 0.5 * (away.square() / v + math.log(2 * math.pi * v)) for w, v in pairs]
        )

    def log_density(self, theta: Tensor) -> Tensor:
        away = theta - per_chain(self.mean, theta)
        return torch.logsumexp(self._log_terms(away), 0).reshape(len(theta), -1).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        away = theta - per_chain(self.mean, theta)
        shares = self._log_terms(away).softmax(0)
        return -away * sum(s / v for s, v in zip(shares, self.variances, strict=True))

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        bounds = torch.tensor(self.weights, dtype=torch.float64, device=key.device).cumsum(0)[:-1]
        which = torch.bucketize(random.uniform(key ^ 0x5BD1E995, count).double(), bounds)
        deviations = torch.tensor(self.variances, dtype=dtype, device=key.device).sqrt()
        away = (deviations[which] * random.normal(key, count).to(dtype)).reshape(-1, *shape)
        return per_chain(self.mean, away) + away

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"mean": self.mean}

    @property
    def precision(self) -> float | Tensor:
        """By quadrature of the squared gradient, on theta = sinh(t) times the least deviation."""
        t = torch.linspace(-25, 25, 20_001, dtype=torch.float64)
        least = math.sqrt(min(self.variances))
        theta, centred = (least * t.sinh()).unsqueeze(1), replace(self, mean=0.0)
        terms = centred.gradient(theta).flatten().square() * centred.log_density(theta).exp()
        return float(torch.trapezoid(terms * least * t.cosh(), t))
