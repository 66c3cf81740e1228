"""Full Fisher metric (Algorithm 3): C = (J + diag eps)^{-1}, J dense over all parameters.

J = L L^T - diag eps gives the factor A = L^{-T}: C v by two triangular solves, C^{1/2} z by one.
For small models, and the reference for every other metric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, average, per_chain
from natural_langevin.preconditioners.base import Damping, Factor, FisherPreconditioner, Metric
from natural_langevin.statistics import Statistics


def flatten(tree: Params) -> Tensor:
    """(chain, *shape) tensors side by side: (chain, all parameters)."""
    return torch.cat([value.reshape(len(value), -1) for value in tree.values()], dim=1)


def unflatten(flat: Tensor, like: Params) -> Params:
    """(chain, P) back to tensors shaped as ``like``."""
    sizes = [value[0].numel() for value in like.values()]
    parts = flat.split(sizes, dim=1)
    return {k: part.reshape(v.shape) for (k, v), part in zip(like.items(), parts, strict=True)}


@dataclass(kw_only=True, eq=False, repr=False)
class FullFisher(FisherPreconditioner):
    """C = (J + damping)^{-1}; memory and time grow as parameters squared and cubed.

    ``max_parameters``: networks with more are refused."""

    requests = frozenset({"samples"})
    couples = "all"
    max_parameters: int = 2048

    def init(self, params: Params, units: Units) -> Metric:
        count = sum(math.prod(p.shape[1:]) for p in params.values())
        if count > self.max_parameters:
            raise ValueError(
                f"FullFisher stores a dense matrix and refuses more than {self.max_parameters} "
                f"parameters; this model has {count}. Use QuasiDiagonalFisher(), or raise "
                f"FullFisher(max_parameters={count})"
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

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        fisher, known = metric["fisher"][""], list[Tensor]()

        def lower(like: Params) -> Tensor:
            """L of J + diag eps = L L^T, once: the sizes of the parameters come with the vector."""
            if not known:
                eps = flatten({k: per_chain(damping[k], v).expand_as(v) for k, v in like.items()})
                # cholesky_ex does not raise: a chain that lost definiteness is caught as
                # divergence, and must not stop the others.
                known.append(torch.linalg.cholesky_ex(fisher + torch.diag_embed(eps))[0])
            return known[0]

        def solve(matrix: Tensor, tree: Params, *, upper: bool) -> Params:
            flat = torch.linalg.solve_triangular(matrix, flatten(tree)[..., None], upper=upper)
            return unflatten(flat[..., 0], tree)

        return Factor(
            forward=lambda z: solve(lower(z).mT, z, upper=True),
            transpose=lambda v: solve(lower(v), v, upper=False),
        )
