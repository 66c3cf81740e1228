"""Quasi-diagonal Fisher metric (Algorithm 4): per unit, the diagonal and the bias row of J.

A unit is its bias (index 0) and its incoming weights (index i). The factor A keeps the sparsity,

    A_00 = (J_00 + eps_0)^{-1/2}
    A_ii = (J_ii - (A_00 J_0i)^2 + eps_i)^{-1/2}
    A_0i = -A_00^2 A_ii J_0i

and A^{-T} A^{-1} has the diagonal and the first row of J + diag eps (eps_0 is the bias's damping,
eps_i the weights'). In exact arithmetic the Schur
complement J_ii - (A_00 J_0i)^2 is not negative (Cauchy-Schwarz); rounding is clamped in A itself,
so that drift and noise see the same clamp. A weight without bias has no first row: diagonal.

``targets="data"`` is the paper's QDOP. Its invariance group: affine maps of every unit's activity.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, per_unit
from natural_langevin.preconditioners.base import (
    Damping,
    Factor,
    FisherPreconditioner,
    Metric,
    averages,
    damped,
)
from natural_langevin.statistics import Statistics


class UnitFactor(NamedTuple):
    """A for the units of one weight tensor (chain, unit, ...), without the bias's own A_00."""

    row: Tensor  # A_0i: (chain, unit, ...)
    diagonal: Tensor  # A_ii: (chain, unit, ...)

    def to_bias(self, z: Tensor, bias: Tensor) -> Tensor:
        """In A z the weights feed their ``bias`` through the first row: (chain, unit)."""
        return (self.row * z).reshape(*bias.shape, self.row.shape[2:].numel()).sum(-1)

    def from_bias(self, v: Tensor) -> Tensor:
        """In A^T v the bias (chain, unit) feeds the weights."""
        return self.row * per_unit(v, self.row)


def unit_factor(a_00: Tensor, j_0i: Tensor, j_ii: Tensor, damping: float | Tensor) -> UnitFactor:
    """Algorithm 4 for a layer: a_00 (chain, unit), j_0i and j_ii (chain, unit, ...)."""
    a_00 = per_unit(a_00, j_ii)
    schur = (j_ii - (a_00 * j_0i).square()).clamp_min(0)
    a_ii = damped(schur, damping).rsqrt()
    return UnitFactor(row=-a_00.square() * a_ii * j_0i, diagonal=a_ii)


class QuasiDiagonalFisher(FisherPreconditioner):
    """C^{-1} has the diagonal and the bias row of J + damping, unit by unit."""

    requests = frozenset({"second", "cross"})
    couples = "units"

    def init(self, params: Params, units: Units) -> Metric:
        return {
            "second": {name: torch.ones_like(p) for name, p in params.items()},
            "cross": {
                b: {w: torch.zeros_like(params[w]) for w in ws} for b, ws in units.items() if ws
            },
        }

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        new = {"second": statistics.second, "cross": statistics.cross}
        return averages(metric, new, rate)

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        second, cross = metric["second"], metric["cross"]
        inner = {w for row in cross.values() for w in row}
        #: A_00 of every bias; a parameter without bias has nothing else.
        own = {k: damped(j, damping[k]).rsqrt() for k, j in second.items() if k not in inner}
        units = {
            bias: {w: unit_factor(own[bias], row[w], second[w], damping[w]) for w in row}
            for bias, row in cross.items()
        }

        def forward(z: Params) -> Params:
            out = {k: own[k] * z[k] for k in own}
            for bias, row in units.items():
                out[bias] = out[bias] + sum(a.to_bias(z[w], z[bias]) for w, a in row.items())
                out |= {w: a.diagonal * z[w] for w, a in row.items()}
            return out

        def transpose(v: Params) -> Params:
            out = {k: own[k] * v[k] for k in own}
            for bias, row in units.items():
                out |= {w: a.from_bias(v[bias]) + a.diagonal * v[w] for w, a in row.items()}
            return out

        def inverse(v: Params) -> Params:
            out = {k: v[k] / own[k] for k in own}
            for bias, row in units.items():
                out |= {w: v[w] / a.diagonal for w, a in row.items()}
                fed = sum(a.to_bias(out[w], v[bias]) for w, a in row.items())
                out[bias] = (v[bias] - fed) / own[bias]
            return out

        return Factor(forward, transpose, inverse)
