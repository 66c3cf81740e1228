"""Temperature scaling: one number, fitted on held-out data, that makes probabilities less
confident.

    p_k -> p_k^(1/scale) / sum_j p_j^(1/scale)        (softmax(logits / scale))

The simplest baseline of calibration (Guo et al. 2017), and what an ensemble should be compared
with. ``scale`` has nothing to do with the temperature T of the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Where the best 1/scale is looked for, and how well its logarithm is known in the end: float64
#: does not tell likelihoods apart that are nearer.
_LOW, _HIGH, _NEAR = 1e-3, 1e3, 1e-8


@dataclass(frozen=True)
class TemperatureScaling:
    """``TemperatureScaling.fit(p_held_out, y_held_out)(p)``."""

    scale: float

    @staticmethod
    def fit(probabilities: Tensor, y: Tensor, *, deviation: float = math.inf) -> TemperatureScaling:
        """The scale of smallest negative log-likelihood, which is convex in 1/scale.

        ``deviation``: of a prior ln scale ~ N(0, deviation^2), for few data: without it, data that
        are all classified correctly give a scale of zero."""
        if not deviation > 0:
            raise ValueError(f"deviation must be positive, got {deviation!r}")
        log_p = _logarithm(probabilities)
        index = y.to(log_p.device).long()[:, None]

        def nll(inverse: float) -> float:
            log_prior = -((math.log(inverse) / deviation) ** 2) / 2
            found = (log_p * inverse).log_softmax(-1).gather(1, index)
            return -(float(found.sum()) + log_prior) / len(y)

        low, high = math.log(_LOW), math.log(_HIGH)
        ratio = (5**0.5 - 1) / 2
        first, last = high - ratio * (high - low), low + ratio * (high - low)
        left, right = nll(math.exp(first)), nll(math.exp(last))
        while high - low > _NEAR:  # golden section, in the logarithm
            if left < right:
                high, last, right = last, first, left
                first = high - ratio * (high - low)
                left = nll(math.exp(first))
            else:
                low, first, left = first, last, right
                last = low + ratio * (high - low)
                right = nll(math.exp(last))
        return TemperatureScaling(math.exp(-(low + high) / 2))

    def __call__(self, probabilities: Tensor) -> Tensor:
        """Rescaled probabilities, in the dtype given."""
        return (_logarithm(probabilities) / self.scale).softmax(-1).to(probabilities.dtype)


def _logarithm(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp_min(torch.finfo(torch.float64).tiny).log()
