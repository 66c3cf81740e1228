"""Kronecker-factored Fisher metric (K-FAC; Martens & Grosse 2015): per linear map, C^{-1} = G x A.

For y = W a + b with per-sample output gradients delta, the gradient of sample n is delta_n a_n^T
with a_n behind a one, for the bias. Its second moment is taken for the product of the two factors'

    A = mean_n a_n a_n^T,        G = mean_n delta_n delta_n^T

and the damping eps is split between them (factored Tikhonov), each in its factor's own units:

    A + pi sqrt(eps) Id = L_A L_A^T,    G + sqrt(eps) / pi Id = L_G L_G^T,
    pi^2 = (tr A / dim A) / (tr G / dim G)

For V, a gradient with the bias as first column, C V = G^{-1} V A^{-1} = F(F^T(V)) with

    F(Z) = L_G^{-T} Z L_A^{-1},         F^T(V) = L_G^{-1} V L_A^{-T}

so that drift and noise come from the same factors. A bias whose eps is another one has its own
entry in the diagonal that is added to A. Positions that share a weight (pixels, tokens) enter by
``sharing``: "expand" takes them for samples, "reduce" averages a and adds up delta first (see
``statistics.moments``). Parameters that are no matrix (norms, embeddings) are diagonal.

Its invariance group: affine maps of a layer's inputs, and linear maps of its outputs' gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import average, per_chain
from natural_langevin.preconditioners.base import (
    Damping,
    Factor,
    FisherPreconditioner,
    Metric,
    Units,
    damped,
)
from natural_langevin.preconditioners.unit import by_group, identity, nested
from natural_langevin.statistics import (
    Group,
    Params,
    Sharing,
    Statistics,
    grouped,
    split_rows,
    unit_rows,
)


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


def damped_factors(a: Tensor, g: Tensor, group: Group, damping: Damping) -> Cholesky:
    """Both factors with their shares of eps."""
    tiny = torch.finfo(a.dtype).tiny ** 0.5
    level_a, level_g = (m.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(tiny) for m in (a, g))
    pi = (level_a / level_g).sqrt()[:, None]
    eps = per_chain(damping[group.matrix], pi)
    share = (pi * eps.sqrt()).expand(len(a), a.shape[-1])
    if group.weights:  # of the bias: what times sqrt(eps) / pi is its own eps
        bias = per_chain(damping[group.name], pi)
        ratio = torch.where(eps > 0, bias / eps.clamp_min(tiny), torch.ones_like(eps))
        share = torch.cat([share[:, :1] * ratio, share[:, 1:]], dim=1)
    rest = (eps.sqrt() / pi).expand(len(g), g.shape[-1])
    # They do not raise: a chain that lost definiteness is caught as divergence.
    return Cholesky(
        inputs=torch.linalg.cholesky_ex(a + torch.diag_embed(share))[0],
        outputs=torch.linalg.cholesky_ex(g + torch.diag_embed(rest))[0],
    )


@dataclass(kw_only=True, eq=False, repr=False)
class KroneckerFisher(FisherPreconditioner):
    """C is the inverse of (A + pi sqrt(eps)) x (G + sqrt(eps) / pi), layer by layer."""

    requests = frozenset({"kronecker"})
    couples = "units"
    sharings = ("expand", "reduce")
    sharing: Sharing = "expand"

    def init(self, params: Params, units: Units) -> Metric:
        metric: Metric = {"inputs": {}, "outputs": {}, "second": {}}
        for group in grouped({k: p.shape[1:] for k, p in params.items()}, units, self.requests):
            if "second" in group.requests:
                metric["second"] |= {k: torch.ones_like(params[k]) for k in group.names}
                continue
            rows = unit_rows(group, params)
            metric["inputs"] |= nested(group, identity(rows.shape[2], rows[:, 0, 0]))
            metric["outputs"] |= nested(group, identity(rows.shape[1], rows[:, 0, 0]))
        return metric

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        new: Metric = {"second": {}}
        for k, j in metric["second"].items():
            new["second"][k] = average(j, statistics.second[k], rate)
        for field in ("inputs", "outputs"):
            found, tree = getattr(statistics, field), dict[str, Any]()
            for group, old in by_group(metric[field]):
                tree |= nested(group, average(old, found[group.matrix], rate))
            new[field] = tree
        return new

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        outputs = dict(by_group(metric["outputs"]))
        roots = {
            group: damped_factors(a, outputs[group], group, damping)
            for group, a in by_group(metric["inputs"])
        }
        scale = {k: damped(j, damping[k]).rsqrt() for k, j in metric["second"].items()}

        def forward(z: Params) -> Params:
            out = {k: scale[k] * z[k] for k in scale}
            for group, root in roots.items():
                out |= split_rows(group, root.forward(unit_rows(group, z)), z)
            return out

        def transpose(v: Params) -> Params:
            out = {k: scale[k] * v[k] for k in scale}
            for group, root in roots.items():
                out |= split_rows(group, root.transpose(unit_rows(group, v)), v)
            return out

        return Factor(forward, transpose)
