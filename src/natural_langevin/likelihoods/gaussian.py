"""Regression with noise of one size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, distributions

from natural_langevin import random
from natural_langevin.likelihoods.base import (
    Likelihood,
    State,
    check_real,
    per_sample,
    same_observation,
)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y ~ N(outputs, sigma^2 Id): the square loss properly cast as a log-loss.

    -ln p = |y - outputs|^2 / (2 sigma^2) + dim(y) ln sigma + dim(y) ln(2 pi) / 2.

    ``sigma`` is a number, or "rmse": the empirical root-mean-square residual, a running average
    over minibatches with rate 1/sqrt(t), one value per chain, stated in ``posterior.sigma``.
    There is no default: sigma = 1 is a badly specified model for almost any data (the paper's
    first practical remark).
    """

    sigma: float | str = ""

    has_units = True

    def __post_init__(self) -> None:
        if self.sigma == "":
            raise TypeError(
                "Gaussian needs sigma, the size of the noise in y: a number such as "
                'Gaussian(sigma=0.3), or Gaussian("rmse"), which learns it'
            )
        check_scale("sigma", self.sigma, "rmse")

    @property
    def learns_width(self) -> bool:
        return self.sigma == "rmse"

    @property
    def known_width(self) -> float | None:
        return None if isinstance(self.sigma, str) else self.sigma

    def in_units(self, size: float) -> Gaussian:
        width = self.known_width
        return self if width is None else replace(self, sigma=width / size)

    def init(self, chains: int, *, dtype: torch.dtype, device: torch.device) -> State:
        if self.learns_width:
            return {"variance": torch.ones(chains, dtype=dtype, device=device)}
        return {}

    def update(self, state: State, outputs: Tensor, y: Tensor, rate: Tensor) -> State:
        if not self.learns_width:
            return state
        residual = y.to(outputs.dtype).reshape(outputs.shape) - outputs
        # The floor keeps a network that interpolates its data from dividing by zero.
        mean_square = residual.square().mean().clamp_min(1e-12)
        return {"variance": (1 - rate) * state["variance"] + rate * mean_square}

    def noise_variance(self, state: State) -> Tensor | None:
        if isinstance(self.sigma, str):
            return state["variance"]
        return torch.tensor(float(self.sigma) ** 2, dtype=torch.float64)

    def distribution(self, outputs: Tensor, state: State) -> distributions.Normal:
        scale = self._variance(state, outputs).sqrt()
        return distributions.Normal(outputs, scale, validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        variance = self._variance(state, outputs)
        residual = (y.to(outputs.dtype).reshape(outputs.shape) - outputs).square() / variance
        return per_sample(0.5 * (residual + torch.log(2 * math.pi * variance)))

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        z = random.normal(key, outputs.numel()).reshape(outputs.shape).to(outputs.dtype)
        return outputs + self._variance(state, outputs).sqrt() * z

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation("Gaussian", outputs, y)
        check_real("Gaussian", y)

    def _variance(self, state: State, outputs: Tensor) -> Tensor:
        if not isinstance(self.sigma, str):  # filled where the outputs are: nothing is copied there
            return outputs.new_full((), float(self.sigma) ** 2)
        return state["variance"].to(dtype=outputs.dtype, device=outputs.device)


def check_scale(name: str, value: float | str, learned: str) -> None:
    """A positive number, or the word for a scale that is learned."""
    good = value == learned if isinstance(value, str) else math.isfinite(value) and value > 0
    if not good:
        raise ValueError(f'{name} must be a positive number or "{learned}", got {value!r}')
