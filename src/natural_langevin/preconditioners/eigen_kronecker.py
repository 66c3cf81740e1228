"""Kronecker-factored Fisher metric, eigenvalues corrected (EK-FAC; George et al. 2018).

K-FAC approximates the second moment of the per-sample gradients V_n = delta_n a_n^T (``kronecker``)
by a product of two factors. EK-FAC keeps their eigenvectors U_A and U_G, and uses the actual
moments in that basis,

    S = mean_n (U_G^T V_n U_A)^2,    C^{-1} = (U_A x U_G) diag(S + eps) (U_A x U_G)^T

the diagonal metric, rotated: of all metrics with these eigenvectors the one nearest to J. V_n is
the gradient of a sample, summed over its positions (pixels, tokens); ``sharing`` concerns the
factors only. The damping is eps itself; where a bias has another one than its weights, eigenvector
j of A has eps_j = sum_i U_A[i, j]^2 eps_i.

The basis of a batch's S comes from the previous batches. At every ``refresh``-th update it is
replaced by the eigenvectors of the running factors, and S by the diagonal in the new basis,

    S <- (R_G * R_G) S (R_A * R_A)^T,    R = U_new^T U_old.

The first batch has no previous basis: its S is K-FAC's, lambda_G lambda_A^T.

Its invariance group: rotations of a layer's inputs, and of its outputs, with their common scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, per_chain
from natural_langevin.preconditioners.base import Damping, Metric
from natural_langevin.preconditioners.factored import (
    Eigenbasis,
    FactoredPreconditioner,
    Root,
    averaged,
    by_layer,
    eigen,
)
from natural_langevin.preconditioners.unit import nested
from natural_langevin.statistics import Basis, Group, Statistics


@dataclass(kw_only=True, eq=False, repr=False)
class EigenKroneckerFisher(FactoredPreconditioner):
    """C is the inverse of S + damping in the eigenbasis of the Kronecker factors, layer by layer.

    >>> EigenKroneckerFisher(refresh=20, every=2)
    EigenKroneckerFisher(targets='data', damping='prior', decay=inverse_sqrt(), every=2, refresh=20)
    """

    requests = frozenset({"kronecker", "rotated"})
    refresh: int | None = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh is None:
            raise ValueError(
                "refresh must be a whole number of statistics updates, got None: 1 recomputes "
                "eigenvectors at every update"
            )

    def init(self, params: Params, units: Units) -> Metric:
        metric, spectrum = super().init(params, units), dict[str, Any]()
        for group, (a, g) in by_layer(metric, "inputs", "outputs").items():
            spectrum |= nested(group, torch.ones_like(g[:, :, :1] * a[:, :1]))
        return metric | {"spectrum": spectrum}

    def basis(self, metric: Metric) -> Basis:
        found = by_layer(metric, "inputs_basis", "outputs_basis")
        return {group.matrix: (u_a, u_g) for group, (u_a, u_g) in found.items()}

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        new = super().update(metric, gradient, statistics, rate)
        return new | {"spectrum": averaged(metric["spectrum"], statistics.rotated, rate)}

    def refreshed(self, metric: Metric, *, first: bool) -> Metric:
        new = metric | {"inputs_basis": {}, "outputs_basis": {}, "spectrum": {}}
        fields = ("inputs", "outputs", "inputs_basis", "outputs_basis", "spectrum")
        for group, (a, g, u_a, u_g, s) in by_layer(metric, *fields).items():
            (values_a, new_a), (values_g, new_g) = eigen(a), eigen(g)
            if first:
                s = values_g[:, :, None] * values_a[:, None]
            else:
                s = (new_g.mT @ u_g).square() @ s @ (u_a.mT @ new_a).square()
            for field, value in (
                ("inputs_basis", new_a),
                ("outputs_basis", new_g),
                ("spectrum", s),
            ):
                new[field] |= nested(group, value)
        return new

    def roots(self, metric: Metric, damping: Damping) -> Mapping[Group, Root]:
        roots = {}
        fields = ("inputs_basis", "outputs_basis", "spectrum")
        for group, (u_a, u_g, s) in by_layer(metric, *fields).items():
            eps = per_chain(damping[group.matrix], s)
            if group.weights:
                eps = eps + (per_chain(damping[group.name], s) - eps) * u_a[:, :1].square()
            roots[group] = Eigenbasis(u_a, u_g, (s + eps).rsqrt())
        return roots
