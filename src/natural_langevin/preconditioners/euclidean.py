"""Euclidean metric: C = Id, plain SGLD (Welling & Teh 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units
from natural_langevin.preconditioners.base import Damping, Factor, Metric, Preconditioner
from natural_langevin.statistics import Statistics


class Euclidean(Preconditioner):
    """No preconditioning: nothing is stored, and drift and noise pass unchanged."""

    decay = 0.0  # there is nothing to average
    largest_tried = 3.0

    def inverse_from(self, damping: Tensor) -> Tensor:
        return torch.ones_like(damping)

    def init(self, params: Params, units: Units) -> Metric:
        return {}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        return metric

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        return Factor(lambda z: z, lambda v: v, lambda v: v)

    def __repr__(self) -> str:
        return "Euclidean()"
