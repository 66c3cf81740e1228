"""Common base of the Kronecker-factored metrics: the running factors and their eigenvectors.

Per linear map y = W a + b, with a_n preceded by a one for the bias (see ``kronecker``),

    A = mean_n a_n a_n^T = U_A diag(lambda_A) U_A^T,
    G = mean_n delta_n delta_n^T = U_G diag(lambda_G) U_G^T.

A metric that is diagonal in the product of both eigenbases, with entries m > 0, has a factor that
rotates, scales and rotates back: C = F F^T for V, a gradient with the bias as first column, by

    F(Z) = U_G (Z / sqrt(m)) U_A^T,        F^T(V) = (U_G^T V U_A) / sqrt(m).

Eigenvectors cost a cubic number of operations in the width, and are recomputed only at every
``refresh``-th update; otherwise a step is four matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, average
from natural_langevin.preconditioners.base import (
    Damping,
    Factor,
    FisherPreconditioner,
    Metric,
    averages,
    damped,
)
from natural_langevin.preconditioners.unit import by_group, identity, nested
from natural_langevin.statistics import Group, Sharing, Statistics, grouped, split_rows, unit_rows


class Root(Protocol):
    """A layer's factor, on (chain, O, F) with the bias as first column."""

    def forward(self, z: Tensor) -> Tensor:
        """F(Z)."""

    def transpose(self, v: Tensor) -> Tensor:
        """F^T(V)."""


class Eigenbasis(NamedTuple):
    """U_A (chain, F, F), U_G (chain, O, O) and 1 / sqrt(m) (chain, O, F)."""

    inputs: Tensor
    outputs: Tensor
    scale: Tensor

    def forward(self, z: Tensor) -> Tensor:
        """U_G (Z / sqrt(m)) U_A^T."""
        return self.outputs @ (self.scale * z) @ self.inputs.mT

    def transpose(self, v: Tensor) -> Tensor:
        """(U_G^T V U_A) / sqrt(m)."""
        return self.scale * (self.outputs.mT @ v @ self.inputs)


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, not below zero, and eigenvectors of (chain, n, n), whose largest entries are
    positive: LAPACK's signs are arbitrary, and the noise of a step would depend on them. In
    memory row by row, as checkpoints restore them: products of columns are rounded otherwise.

    A chain that is not finite has the identity's vectors: otherwise torch would refuse all chains;
    it is stopped as diverged."""
    finite = torch.isfinite(matrix).all(-1).all(-1)[:, None, None]
    safe = torch.where(finite, matrix, identity(matrix.shape[-1], matrix[:, 0, 0]))
    values, vectors = torch.linalg.eigh(safe)
    largest = vectors.gather(-2, vectors.abs().argmax(-2, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0).to(vectors.dtype)
    return values.clamp_min(0), (vectors * signs).contiguous()


@dataclass(kw_only=True, eq=False, repr=False)
class FactoredPreconditioner(FisherPreconditioner):
    """Kronecker factors by layer, second moments for parameters that are not matrices. Abstract.

    ``sharing``: positions that share a weight (pixels, tokens) enter the factors as separate
    samples ("expand"), or averaged and summed first ("reduce"; see ``statistics.moments``).
    ``refresh``: the number of statistics updates (which ``every`` spaces) between two
    eigendecompositions.
    """

    couples = "units"
    sharings = ("expand", "reduce")
    sharing: Sharing = "expand"
    refresh: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.refresh, int) and not isinstance(self.refresh, bool)
        if self.refresh is not None and not (whole and self.refresh >= 1):
            raise ValueError(
                "refresh must be a whole number of statistics updates, at least 1, got "
                f"{self.refresh!r}"
            )

    @property
    def refresh_steps(self) -> int:
        return self.every * (self.refresh or 0)

    def init(self, params: Params, units: Units) -> Metric:
        metric: Metric = {"inputs": {}, "outputs": {}, "second": {}}
        bases: Metric = {"inputs_basis": {}, "outputs_basis": {}} if self.refresh else {}
        for group in grouped({k: p.shape[1:] for k, p in params.items()}, units, self.requests):
            if "second" in group.requests:
                metric["second"] |= {k: torch.ones_like(params[k]) for k in group.names}
                continue
            rows = unit_rows(group, params)
            for axis, field in ((2, "inputs"), (1, "outputs")):
                for kind in (metric, bases):
                    name = field if kind is metric else f"{field}_basis"
                    if name in kind:
                        kind[name] |= nested(group, identity(rows.shape[axis], rows[:, 0, 0]))
        return metric | bases

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        new = metric | {"second": averages(metric["second"], statistics.second, rate)}
        for field in ("inputs", "outputs"):
            new[field] = averaged(metric[field], getattr(statistics, field), rate)
        return new

    def roots(self, metric: Metric, damping: Damping) -> Mapping[Group, Root]:
        """The factor of every layer, damped."""
        raise NotImplementedError

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        roots = self.roots(metric, damping)
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


def averaged(tree: dict[str, Any], found: Params, rate: Tensor) -> dict[str, Any]:
    """The moving average of values that are stored by group and computed by weight."""
    new: dict[str, Any] = {}
    for group, old in by_group(tree):
        new |= nested(group, average(old, found[group.matrix], rate))
    return new


def by_layer(metric: Metric, *fields: str) -> dict[Group, tuple[Tensor, ...]]:
    """The values of these fields, layer by layer."""
    trees = [dict(by_group(metric[field])) for field in fields]
    return {group: tuple(tree[group] for tree in trees) for group in trees[0]}
