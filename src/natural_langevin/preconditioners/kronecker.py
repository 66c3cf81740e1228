"""Kronecker-factored Fisher metric (K-FAC; Martens & Grosse 2015): per linear map, C^{-1} = G x A.

For y = W a + b with per-sample output gradients delta, the gradient of sample n is delta_n a_n^T
with a_n preceded by a one, for the bias. Its second moment is approximated by the product of the
factors

    A = mean_n a_n a_n^T,        G = mean_n delta_n delta_n^T

and the damping eps is split between them (factored Tikhonov), each in its factor's own units:

    A + pi sqrt(eps) Id = L_A L_A^T,    G + sqrt(eps) / pi Id = L_G L_G^T,
    pi^2 = (tr A / dim A) / (tr G / dim G)

For V, a gradient with the bias as first column, C V = G^{-1} V A^{-1} = F(F^T(V)) with

    F(Z) = L_G^{-T} Z L_A^{-1},         F^T(V) = L_G^{-1} V L_A^{-T}

so that drift and noise come from the same factors. A bias whose eps is another one has its own
entry in the diagonal that is added to A. Positions that share a weight (pixels, tokens) enter by
``sharing``: "expand" treats them as samples, "reduce" averages a and sums delta first (see
``statistics.moments``). Parameters that are not matrices (norms, embeddings) are diagonal.

``refresh=k`` recomputes the factors at every k-th statistics update, by their eigenvectors: the
damped eigenvalues (lambda_A + pi sqrt(eps)) (lambda_G + sqrt(eps) / pi) are those of the same C,
and no step needs a Cholesky factor (see ``factored``). An eps of the bias that is another one
enters there by its share in every eigenvector, eps_j = sum_i U_A[i, j]^2 eps_i.

Its invariance group: affine maps of a layer's inputs, and linear maps of its outputs' gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, per_chain
from natural_langevin.preconditioners.base import Damping, Metric
from natural_langevin.preconditioners.factored import (
    Eigenbasis,
    FactoredPreconditioner,
    Root,
    by_layer,
    eigen,
)
from natural_langevin.preconditioners.unit import nested
from natural_langevin.statistics import Group


class Cholesky(NamedTuple):
    """L_A (chain, F, F) and L_G (chain, O, O) of a layer's damped factors."""

    inputs: Tensor
    outputs: Tensor

    def forward(self, z: Tensor) -> Tensor:
        """L_G^{-T} Z L_A^{-1} for (chain, O, F)."""
        half = torch.linalg.solve_triangular(self.outputs.mT, z, upper=True)
        return torch.linalg.solve_triangular(self.inputs, half, upper=False, left=False)

    def transpose(self, v: Tensor) -> Tensor:
        """L_G^{-1} V L_A^{-T} for (chain, O, F)."""
        half = torch.linalg.solve_triangular(self.outputs, v, upper=False)
        return torch.linalg.solve_triangular(self.inputs.mT, half, upper=True, left=False)


def shares(a: Tensor, g: Tensor, group: Group, damping: Damping) -> tuple[Tensor, Tensor, Tensor]:
    """The damping added to A's diagonal, for the bias and for the weights, and to G's: (chain, 1)
    each; ``a`` and ``g`` are the factors' diagonals, or their eigenvalues."""
    tiny = torch.finfo(a.dtype).tiny ** 0.5
    level_a, level_g = (m.mean(-1, keepdim=True).clamp_min(tiny) for m in (a, g))
    pi = (level_a / level_g).sqrt()
    eps = per_chain(damping[group.matrix], pi)
    # of the bias: what times sqrt(eps) / pi is its own eps
    bias = per_chain(damping[group.name], pi)
    ratio = torch.where(eps > 0, bias / eps.clamp_min(tiny), torch.ones_like(eps))
    return pi * eps.sqrt() * ratio, pi * eps.sqrt(), eps.sqrt() / pi


def cholesky(a: Tensor, g: Tensor, group: Group, damping: Damping) -> Cholesky:
    """Both factors with their shares of eps."""
    of_a, of_g = (m.diagonal(dim1=-2, dim2=-1) for m in (a, g))
    first, others, outputs = shares(of_a, of_g, group, damping)
    if not group.weights:
        first = others
    inputs = torch.cat([first, others.expand(len(a), a.shape[-1] - 1)], dim=1)
    # They do not raise: a chain that lost definiteness is caught as divergence.
    return Cholesky(
        inputs=torch.linalg.cholesky_ex(a + torch.diag_embed(inputs))[0],
        outputs=torch.linalg.cholesky_ex(g + torch.diag_embed(outputs.expand(len(g), g.shape[-1])))[
            0
        ],
    )


@dataclass(kw_only=True, eq=False, repr=False)
class KroneckerFisher(FactoredPreconditioner):
    """C is the inverse of (A + pi sqrt(eps)) x (G + sqrt(eps) / pi), layer by layer.

    ``refresh``: None factorises A and G at every step; k does so at every k-th statistics update.

    >>> KroneckerFisher(refresh=10, every=2).refresh_steps
    20
    """

    requests = frozenset({"kronecker"})

    def init(self, params: Params, units: Units) -> Metric:
        metric = super().init(params, units)
        if self.refresh:
            for field in ("inputs", "outputs"):
                metric[f"{field}_eigenvalues"] = {}
                for group, (one,) in by_layer(metric, field).items():
                    ones = torch.ones_like(one[..., 0])
                    metric[f"{field}_eigenvalues"] |= nested(group, ones)
        return metric

    def refreshed(self, metric: Metric, *, first: bool) -> Metric:
        new = dict(metric)
        for field in ("inputs", "outputs"):
            new[f"{field}_basis"], new[f"{field}_eigenvalues"] = {}, {}
            for group, (matrix,) in by_layer(metric, field).items():
                values, vectors = eigen(matrix)
                new[f"{field}_basis"] |= nested(group, vectors)
                new[f"{field}_eigenvalues"] |= nested(group, values)
        return new

    def roots(self, metric: Metric, damping: Damping) -> Mapping[Group, Root]:
        if not self.refresh:
            found = by_layer(metric, "inputs", "outputs")
            return {group: cholesky(a, g, group, damping) for group, (a, g) in found.items()}
        roots = {}
        fields = ("inputs_eigenvalues", "outputs_eigenvalues", "inputs_basis", "outputs_basis")
        for group, (a, g, u_a, u_g) in by_layer(metric, *fields).items():
            bias, others, outputs = shares(a, g, group, damping)
            inputs = others + (bias - others) * u_a[:, 0].square() if group.weights else others
            scale = ((g + outputs)[:, :, None] * (a + inputs)[:, None]).rsqrt()
            roots[group] = Eigenbasis(u_a, u_g, scale)
        return roots
