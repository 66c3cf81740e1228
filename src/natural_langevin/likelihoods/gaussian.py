"""Regression with constant noise."""

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
from natural_langevin.likelihoods.own_parameter import check_positive, split
from natural_langevin.priors.constrained import PositivePrior


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """y ~ N(outputs, sigma^2 Id): the square loss properly cast as a log-loss.

    -ln p = |y - outputs|^2 / (2 sigma^2) + dim(y) ln sigma + dim(y) ln(2 pi) / 2.

    ``sigma`` is a number, or "rmse": the empirical root-mean-square residual, a running average
    over minibatches with rate 1/sqrt(t), one value per chain, stated in ``posterior.sigma``; or a
    prior of it, such as ``priors.HalfNormal(1.0)``, with which sigma is sampled like a weight, and
    ``posterior.sigma`` is (chain, draw).
    There is no default: sigma = 1 is a badly specified model for almost any data (the paper's
    first practical remark).
    """

    sigma: float | str | PositivePrior = ""

    has_units = True

    def __post_init__(self) -> None:
        if self.sigma == "":
            raise TypeError(
                "Gaussian needs sigma, the size of the noise in y: a number such as "
                'Gaussian(sigma=0.3); "rmse", which is learned from the residuals; or a prior such '
                "as priors.HalfNormal(1.0), which samples it"
            )
        check_positive("sigma", self.sigma, "rmse")

    @property
    def own_parameter(self) -> tuple[str, PositivePrior] | None:
        return ("sigma", self.sigma) if isinstance(self.sigma, PositivePrior) else None

    @property
    def learns_width(self) -> bool:
        return self.sigma == "rmse"

    @property
    def known_width(self) -> float | None:
        return None if isinstance(self.sigma, str | PositivePrior) else self.sigma

    def in_units(self, size: float) -> Gaussian:
        if isinstance(self.sigma, PositivePrior):
            return replace(self, sigma=self.sigma.times(1 / size))
        return self if isinstance(self.sigma, str) else replace(self, sigma=self.sigma / size)

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
        if self.own_parameter is not None:
            return (2 * state["log_sigma"]).exp()
        if isinstance(self.sigma, str):
            return state["variance"]
        return torch.tensor(float(self.known_width or 0) ** 2, dtype=torch.float64)

    def distribution(self, outputs: Tensor, state: State) -> distributions.Normal:
        mean, variance = self._parts(outputs, state)
        return distributions.Normal(mean, variance.sqrt(), validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        mean, variance = self._parts(outputs, state)
        residual = (y.to(mean.dtype).reshape(mean.shape) - mean).square() / variance
        return per_sample(0.5 * (residual + torch.log(2 * math.pi * variance)))

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        mean, variance = self._parts(outputs, state)
        z = random.normal(key, mean.numel()).reshape(mean.shape).to(mean.dtype)
        return mean + variance.sqrt() * z

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        check_real("Gaussian", y)

    def _parts(self, outputs: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Means, and the variance."""
        if self.own_parameter is not None:
            mean, log_sigma = split(outputs)
            return mean, (2 * log_sigma).exp()
        if self.known_width is not None:  # filled where the outputs are: nothing is copied there
            return outputs, outputs.new_full((), float(self.known_width) ** 2)
        return outputs, state["variance"].to(dtype=outputs.dtype, device=outputs.device)
