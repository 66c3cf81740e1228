"""RMSProp metric (Algorithm 2): C = (D + eps)^{-1/2}, D a moving average of squared gradients.

D squares the minibatch *mean* gradient, so, unlike a Fisher matrix, it depends on the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, average
from natural_langevin.preconditioners.base import (
    AveragedPreconditioner,
    Damping,
    Factor,
    Metric,
    damped,
    diagonal_factor,
)
from natural_langevin.statistics import Statistics


class RMSProp(AveragedPreconditioner):
    """C_ii = (D_ii + damping)^{-1/2}; noise (D_ii + damping)^{-1/4} z."""

    def damping_from(self, curvature: float | Tensor, *, discrete: bool) -> float | Tensor:
        """The square of the prior's curvature: C is the prior's N variance where D vanishes."""
        return curvature * curvature

    def inverse_from(self, damping: Tensor) -> Tensor:
        return damping.sqrt()

    def init(self, params: Params, units: Units) -> Metric:
        return {"square": {name: torch.ones_like(p) for name, p in params.items()}}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        old = metric["square"]
        return {"square": {k: average(old[k], g.square(), rate) for k, g in gradient.items()}}

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        return diagonal_factor(
            {name: damped(d, damping[name]).sqrt().rsqrt() for name, d in metric["square"].items()}
        )
