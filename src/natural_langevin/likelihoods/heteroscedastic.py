"""Regression with noise that depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor, distributions

from natural_langevin import random
from natural_langevin.likelihoods.base import (
    Likelihood,
    State,
    check_real,
    per_sample,
    same_observation,
)
from natural_langevin.likelihoods.own_parameter import split
from natural_langevin.priors.constrained import PositivePrior


@dataclass(frozen=True)
class HeteroscedasticGaussian(Likelihood):
    """y ~ N(m, v) with two outputs per target: outputs (B, 2 D) hold the D means m, then the D
    logarithms of the variances v; targets are (B, D), or (B,) when D = 1.

    -ln p = sum_d [(y_d - m_d)^2 / v_d + ln v_d + ln(2 pi)] / 2. The weights' prior is the prior
    of ln v too: scale the targets to variance 1, so that ln v = 0 is a reasonable start; or give
    ``sigma``, a prior such as ``priors.HalfNormal(1.0)`` of the noise's size: the outputs are then
    ln(v / sigma^2), and sigma is sampled like a weight.
    """

    sigma: PositivePrior | None = None

    has_units = True
    outputs_per_target = 2

    def __post_init__(self) -> None:
        if self.sigma is not None and not isinstance(self.sigma, PositivePrior):
            raise TypeError(
                "sigma must be a prior of a positive number such as priors.HalfNormal(1.0), got "
                f"{self.sigma!r}: the network itself predicts the noise levels"
            )

    @property
    def own_parameter(self) -> tuple[str, PositivePrior] | None:
        return None if self.sigma is None else ("sigma", self.sigma)

    def in_units(self, size: float) -> HeteroscedasticGaussian:
        """Itself, where all widths are outputs."""
        return self if self.sigma is None else replace(self, sigma=self.sigma.times(1 / size))

    def distribution(self, outputs: Tensor, state: State) -> distributions.Normal:
        mean, log_variance = self._parts(outputs)
        return distributions.Normal(mean, (log_variance / 2).exp(), validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        mean, log_variance = self._parts(outputs)
        residual = y.to(outputs.dtype).reshape(mean.shape) - mean
        terms = residual.square() * (-log_variance).exp() + log_variance + math.log(2 * math.pi)
        return per_sample(0.5 * terms)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        mean, log_variance = self._parts(outputs)
        z = random.normal(key, mean.numel()).reshape(mean.shape).to(mean.dtype)
        return mean + (log_variance / 2).exp() * z

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(self, outputs, y)
        check_real("HeteroscedasticGaussian", y)

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means, and ln v."""
        outputs, log_sigma = split(outputs) if self.sigma is not None else (outputs, None)
        mean, log_variance = outputs.chunk(2, dim=-1)
        return mean, log_variance if log_sigma is None else log_variance + 2 * log_sigma
