"""Heavy-tailed weights: Student's law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin.priors.base import Prior, check_mean, check_number_or_vector


@dataclass(frozen=True)
class StudentT(Prior):
    """theta = mean + scale t, with t of Student's law of ``df`` degrees of freedom, every component
    independently (``NormalInverseGamma`` shares one scale in a tensor).

    ln alpha = -(df + 1)/2 ln(1 + (theta - mean)^2 / (df scale^2)) - ln scale + constant(df), summed
    over components. The variance is scale^2 df / (df - 2); large weights are shrunk little.

    >>> StudentT(scale=1.0, df=3.0).gradient(torch.tensor([[1.0]]))
    tensor([[-1.]])
    """

    scale: float | Tensor = 0.3
    df: float = 4.0
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        check_number_or_vector("scale", self.scale, positive=True)
        check_mean(self, self.mean)
        if not (math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"df must be positive and finite, got {self.df!r}")

    def log_density(self, theta: Tensor) -> Tensor:
        scale, df = per_chain(self.scale, theta), self.df
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
        away = (theta - per_chain(self.mean, theta)) / scale
        terms = -(df + 1) / 2 * torch.log1p(away.square() / df) - scale.log() + constant
        return terms.reshape(len(theta), -1).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        scale = per_chain(self.scale, theta)
        away = theta - per_chain(self.mean, theta)
        return -(self.df + 1) * away / (self.df * scale.square() + away.square())

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Bailey's polar method (1994): exact for every df, from two uniforms."""
        u, v = random.uniform(key, 2 * math.prod(shape)).double().chunk(2, dim=1)
        radius = (self.df * (u ** (-2 / self.df) - 1)).clamp_min(0).sqrt()
        t = (radius * torch.cos(2 * math.pi * v)).to(dtype).reshape(-1, *shape)
        return per_chain(self.mean, t) + per_chain(self.scale, t) * t

    @property
    def precision(self) -> float | Tensor:
        return (self.df + 1) / ((self.df + 3) * self.scale**2)

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"scale": self.scale, "mean": self.mean}
