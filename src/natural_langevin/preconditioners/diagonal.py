"""Diagonal Fisher metric: C = diag(J_ii + eps)^{-1}, J_ii the mean squared per-sample gradient.

``targets="data"`` is the paper's DOP (diagonal outer product); ``"model"`` the Fisher diagonal.
Its invariance group: rescalings of individual parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units
from natural_langevin.preconditioners.base import (
    Damping,
    Factor,
    FisherPreconditioner,
    Metric,
    averages,
    damped,
    diagonal_factor,
)
from natural_langevin.statistics import Statistics


class DiagonalFisher(FisherPreconditioner):
    """C_ii = 1 / (J_ii + damping)."""

    requests = frozenset({"second"})

    def init(self, params: Params, units: Units) -> Metric:
        return {"second": {name: torch.ones_like(p) for name, p in params.items()}}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        return {"second": averages(metric["second"], statistics.second, rate)}

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        return diagonal_factor(
            {name: damped(j, damping[name]).rsqrt() for name, j in metric["second"].items()}
        )
