"""Diagonal Fisher metric: C = diag(J_ii + eps)^{-1}, J_ii the mean squared per-sample gradient.

``targets="data"`` is the paper's DOP (diagonal outer product); ``"model"`` the Fisher diagonal.
Its invariance group: rescalings of individual parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin import schedules
from natural_langevin.chains import average
from natural_langevin.gradients import Params, Statistics
from natural_langevin.preconditioners.base import (
    Factor,
    Metric,
    Preconditioner,
    Units,
    check_targets,
    diagonal_factor,
    fisher_damping,
)


class DiagonalFisher(Preconditioner):
    """C_ii = 1 / (J_ii + damping)."""

    need = "diagonal"

    def __init__(
        self,
        *,
        targets: str = "data",
        damping: float | None = None,
        decay: float | schedules.Schedule = schedules.inverse_sqrt(),
    ) -> None:
        self.targets, self.decay = check_targets(targets), decay
        self.damping = fisher_damping(damping, self.targets)

    def init(self, params: Params, units: Units) -> Metric:
        return {"second": {name: torch.ones_like(p) for name, p in params.items()}}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        new = statistics.second
        return {"second": {k: average(j, new[k], rate) for k, j in metric["second"].items()}}

    def factor(self, metric: Metric) -> Factor:
        return diagonal_factor(
            {name: (j + self.damping).rsqrt() for name, j in metric["second"].items()}
        )

    def __repr__(self) -> str:
        return (
            f"DiagonalFisher(targets={self.targets!r}, damping={self.damping!r}, "
            f"decay={self.decay!r})"
        )
