"""Regression with outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.likelihoods import distributions
from natural_langevin.likelihoods.base import Likelihood, State, check_real, same_observation
from natural_langevin.likelihoods.own_parameter import check_positive, split
from natural_langevin.priors.constrained import PositivePrior


@dataclass(frozen=True)
class StudentT(Likelihood):
    """y = outputs + scale t with t of Student's law of ``df`` degrees of freedom: the pull of large
    residuals falls as 1/residual.

    -ln p = (df + 1)/2 ln(1 + ((y - outputs)/scale)^2 / df) + ln scale + constant(df), summed over
    the components of a target. The variance is scale^2 df / (df - 2), infinite for df <= 2.

    ``scale`` is a number, or "auto": the maximum-likelihood scale of the residuals, by a step of
    expectation-maximisation at every minibatch, averaged with rate 1/sqrt(t), one per chain; or a
    prior of it, such as ``priors.HalfNormal(1.0)``, with which it is sampled like a weight.
    """

    df: float = 4.0
    scale: float | str | PositivePrior = "auto"

    has_units = True
    heavy_tails = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"df must be positive and finite, got {self.df!r}")
        check_positive("scale", self.scale, "auto")

    @property
    def own_parameter(self) -> tuple[str, PositivePrior] | None:
        return ("scale", self.scale) if isinstance(self.scale, PositivePrior) else None

    @property
    def known_width(self) -> float | None:
        return None if isinstance(self.scale, str | PositivePrior) else self.scale

    def in_units(self, size: float) -> StudentT:
        if isinstance(self.scale, PositivePrior):
            return replace(self, scale=self.scale.times(1 / size))
        return self if isinstance(self.scale, str) else replace(self, scale=self.scale / size)

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        if self.scale == "auto":
            return {"squared_scale": torch.ones(chains, dtype=dtype, device=device)}
        return {}

    def update(self, state: State, outputs: Tensor, y: Tensor, rate: Tensor) -> State:
        if self.scale != "auto":
            return state
        old = state["squared_scale"]
        squares = (y.to(outputs.dtype).reshape(outputs.shape) - outputs).square()
        weights = (self.df + 1) / (self.df + squares / old)  # E[precision | residual]
        new = (weights * squares).mean().clamp_min(1e-12)
        return {"squared_scale": (1 - rate) * old + rate * new}

    def noise_variance(self, state: State) -> Tensor | None:
        factor = self.df / (self.df - 2) if self.df > 2 else math.inf
        if self.own_parameter is not None:
            return factor * (2 * state["log_scale"]).exp()
        return factor * self._parts(torch.ones((), dtype=torch.float64), state)[1].square()

    def distribution(self, outputs: Tensor, state: State) -> distributions.StudentT:
        location, scale = self._parts(outputs, state)
        return distributions.StudentT(self.df, location, scale, validate_args=False)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        """Bailey's polar method (1994): exact for every df, from two uniforms."""
        location, scale = self._parts(outputs, state)
        u, v = random.uniform(key, 2 * location.numel()).to(location.dtype).chunk(2)
        radius = (self.df * (u ** (-2 / self.df) - 1)).clamp_min(0).sqrt()
        t = (radius * torch.cos(2 * math.pi * v)).reshape(location.shape)
        return location + scale * t

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        check_real("StudentT", y)

    def _parts(self, outputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Locations, and the scale."""
        if self.own_parameter is not None:
            location, log_scale = split(outputs)
            return location, log_scale.exp()
        if self.known_width is not None:
            return outputs, outputs.new_full((), float(self.known_width))
        return outputs, state["squared_scale"].to(outputs.device).sqrt()
