"""Full Fisher metric (Algorithm 3): C = (J + eps Id)^{-1}, J dense over all parameters.

J = L L^T - eps Id gives the factor A = L^{-T}: C v by two triangular solves, C^{1/2} z by one.
For small models, and the oracle of every other metric.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from natural_langevin import schedules
from natural_langevin._internal.chains import average
from natural_langevin.preconditioners.base import (
    Factor,
    FisherPreconditioner,
    Metric,
    Units,
)
from natural_langevin.statistics import Params, Statistics


def flatten(tree: Params) -> Tensor:
    """(chain, *shape) tensors side by side: (chain, all parameters)."""
    return torch.cat([value.reshape(len(value), -1) for value in tree.values()], dim=1)


def unflatten(flat: Tensor, like: Params) -> Params:
    sizes = [value[0].numel() for value in like.values()]
    parts = flat.split(sizes, dim=1)
    return {k: part.reshape(v.shape) for (k, v), part in zip(like.items(), parts, strict=True)}


class FullFisher(FisherPreconditioner):
    """C = (J + damping Id)^{-1}; memory and time grow as parameters squared and cubed."""

    need = "samples"

    def __init__(
        self,
        *,
        targets: str = "data",
        damping: float | None = None,
        decay: float | schedules.Schedule = schedules.inverse_sqrt(),
        max_parameters: int = 2048,
    ) -> None:
        super().__init__(targets=targets, damping=damping, decay=decay)
        self.max_parameters = max_parameters

    def init(self, params: Params, units: Units) -> Metric:
        count = sum(math.prod(p.shape[1:]) for p in params.values())
        if count > self.max_parameters:
            raise ValueError(
                f"FullFisher stores a dense matrix and refuses more than {self.max_parameters} "
                f"parameters; this model has {count}. Use QuasiDiagonalFisher(), or raise "
                f"FullFisher(max_parameters={count}) knowingly"
            )
        first = next(iter(params.values()))
        identity = torch.eye(count, dtype=first.dtype, device=first.device)
        return {"fisher": {"": identity.expand(first.shape[0], -1, -1).clone()}}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        # Per-sample gradients (chain, B, *shape) side by side: (chain, B, all parameters).
        samples = [statistics.samples[k] for k in gradient]
        g = torch.cat([s.reshape(*s.shape[:2], -1) for s in samples], dim=2)
        return {"fisher": {"": average(metric["fisher"][""], g.mT @ g / g.shape[1], rate)}}

    def factor(self, metric: Metric) -> Factor:
        fisher = metric["fisher"][""]
        damped = fisher + self.damping * torch.eye(
            fisher.shape[-1], dtype=fisher.dtype, device=fisher.device
        )
        # cholesky_ex does not raise: a chain that lost definiteness is caught as divergence,
        # and must not stop the others.
        lower, _ = torch.linalg.cholesky_ex(damped)

        def forward(z: Params) -> Params:
            flat = flatten(z)[..., None]
            return unflatten(torch.linalg.solve_triangular(lower.mT, flat, upper=True)[..., 0], z)

        def transpose(v: Params) -> Params:
            flat = flatten(v)[..., None]
            return unflatten(torch.linalg.solve_triangular(lower, flat, upper=False)[..., 0], v)

        return Factor(forward, transpose)
