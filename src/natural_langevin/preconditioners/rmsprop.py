"""RMSProp metric (Algorithm 2): C = (D + eps)^{-1/2}, D a moving average of squared gradients.

D squares the minibatch *mean* gradient, so, unlike a Fisher matrix, it depends on the batch size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin import schedules
from natural_langevin._internal.chains import average
from natural_langevin.preconditioners.base import (
    Factor,
    Metric,
    Preconditioner,
    Units,
    check_damping,
    diagonal_factor,
)
from natural_langevin.statistics import Params, Statistics


class RMSProp(Preconditioner):
    """C_ii = (D_ii + damping)^{-1/2}; noise (D_ii + damping)^{-1/4} z."""

    def __init__(
        self,
        *,
        damping: float = 1e-4,
        decay: float | schedules.Schedule = schedules.inverse_sqrt(),
    ) -> None:
        self.damping, self.decay = check_damping(damping), decay

    def init(self, params: Params, units: Units) -> Metric:
        return {"square": {name: torch.ones_like(p) for name, p in params.items()}}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        old = metric["square"]
        return {"square": {k: average(old[k], g.square(), rate) for k, g in gradient.items()}}

    def factor(self, metric: Metric) -> Factor:
        return diagonal_factor(
            {name: (d + self.damping).pow(-0.25) for name, d in metric["square"].items()}
        )

    def __repr__(self) -> str:
        return f"RMSProp(damping={self.damping!r}, decay={self.decay!r})"
