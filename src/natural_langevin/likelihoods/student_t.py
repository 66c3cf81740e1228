"""Regression with outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.likelihoods import distributions
from natural_langevin.likelihoods.base import Likelihood, State, check_real, same_observation
from natural_langevin.likelihoods.gaussian import check_scale


@dataclass(frozen=True)
class StudentT(Likelihood):
    """y = outputs + scale t with t of Student's law of ``df`` degrees of freedom: residuals far
    out pull as 1/residual instead of ever harder.

    -ln p = (df + 1)/2 ln(1 + ((y - outputs)/scale)^2 / df) + ln scale + constant(df), summed over
    the components of a target. The variance is scale^2 df / (df - 2), infinite for df <= 2.

    ``scale`` is a number, or "auto": the maximum-likelihood scale of the residuals, by a step of
    expectation-maximisation at every minibatch, averaged with rate 1/sqrt(t), one per chain.
    """

    df: float = 4.0
    scale: float | str = "auto"

    has_units = True
    heavy_tails = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.df) and self.df > 0):
            raise ValueError(f"df must be positive and finite, got {self.df!r}")
        check_scale("scale", self.scale, "auto")

    @property
    def known_width(self) -> float | None:
        return None if isinstance(self.scale, str) else self.scale

    def in_units(self, size: float) -> StudentT:
        width = self.known_width
        return self if width is None else replace(self, scale=width / size)

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
        return factor * self._scale(state, torch.ones((), dtype=torch.float64)).square()

    def distribution(self, outputs: Tensor, state: State) -> distributions.StudentT:
        scale = self._scale(state, outputs)
        return distributions.StudentT(self.df, outputs, scale, validate_args=False)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        """Bailey's polar method (1994): exact for every df, from two uniforms."""
        u, v = random.uniform(key, 2 * outputs.numel()).to(outputs.dtype).chunk(2)
        radius = (self.df * (u ** (-2 / self.df) - 1)).clamp_min(0).sqrt()
        t = (radius * torch.cos(2 * math.pi * v)).reshape(outputs.shape)
        return outputs + self._scale(state, outputs) * t

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation("StudentT", outputs, y)
        check_real("StudentT", y)

    def _scale(self, state: State, outputs: Tensor) -> Tensor:
        if isinstance(self.scale, str):
            return state["squared_scale"].to(outputs.device).sqrt()
        return outputs.new_full((), float(self.scale))
