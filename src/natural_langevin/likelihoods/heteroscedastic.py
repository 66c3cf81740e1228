"""Regression with noise whose size depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
class HeteroscedasticGaussian(Likelihood):
    """y ~ N(m, v) with two outputs per target: outputs (B, 2 D) hold the D means m, then the D
    logarithms of the variances v; targets are (B, D), or (B,) when D = 1.

    -ln p = sum_d [(y_d - m_d)^2 / v_d + ln v_d + ln(2 pi)] / 2. The weights' prior is the prior
    of ln v too: scale the targets to variance 1, so that ln v = 0 is a reasonable start.
    """

    has_units = True
    outputs_per_target = 2

    def in_units(self, size: float) -> HeteroscedasticGaussian:
        """Itself: its widths are outputs."""
        return self

    def distribution(self, outputs: Tensor, state: State) -> distributions.Normal:
        mean, log_variance = outputs.chunk(2, dim=-1)
        return distributions.Normal(mean, (log_variance / 2).exp(), validate_args=False)

    def log_loss(self, outputs: Tensor, y: Tensor, state: State) -> Tensor:
        mean, log_variance = outputs.chunk(2, dim=-1)
        residual = y.to(outputs.dtype).reshape(mean.shape) - mean
        terms = residual.square() * (-log_variance).exp() + log_variance + math.log(2 * math.pi)
        return per_sample(0.5 * terms)

    def sample(self, outputs: Tensor, key: Tensor, state: State) -> Tensor:
        mean, log_variance = outputs.chunk(2, dim=-1)
        z = random.normal(key, mean.numel()).reshape(mean.shape).to(mean.dtype)
        return mean + (log_variance / 2).exp() * z

    def check(self, outputs: Tensor, y: Tensor) -> None:
        same_observation(
            "HeteroscedasticGaussian", outputs, y, per_component=self.outputs_per_target
        )
        check_real("HeteroscedasticGaussian", y)
