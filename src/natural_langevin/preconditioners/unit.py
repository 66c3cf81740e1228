"""Unit-wise Fisher metric (Ollivier 2015): per unit, the whole block of J over bias and weights.

With u_nk = delta_nk (1, a_n) the gradient of sample n for unit k (its bias first, a_n its inputs),

    J_k = mean_n u_nk u_nk^T = mean_n delta_nk^2 (1, a_n) (1, a_n)^T
    C_k = (J_k + diag eps)^{-1} = L_k^{-T} L_k^{-1},       J_k + diag eps = L_k L_k^T

and no unit is coupled with another: it is the quasi-diagonal metric with the full block of a unit.
The memory is that of the weights times the fan-in, the time of a step times its square, so it is
for small fan-ins, such as those of tables. Positions of a sample are summed before they are
multiplied (``sharing`` is always "exact", the cheaper one here). A parameter without units (an
embedding, a layer without a rule) is diagonal.

Its invariance group: affine maps of the inputs of every unit, each with its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, average, per_chain
from natural_langevin.preconditioners.base import (
    Damping,
    Factor,
    FisherPreconditioner,
    Metric,
    averages,
    damped,
)
from natural_langevin.statistics import Group, Statistics, grouped, split_rows, unit_rows


def nested(group: Group, value: Any) -> dict[str, Any]:
    """A value under its group's names, ``{bias: {weight: value}}``."""
    for name in reversed(group.names):
        value = {name: value}
    return value


def by_group(tree: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Group, Any]]:
    """The groups of a tree made by ``nested``, and their values."""
    for name, value in tree.items():
        names = (*above, name)
        if isinstance(value, dict):
            yield from by_group(value, names)
        else:
            yield Group(names[0], names[1:], frozenset()), value


def identity(size: int, like: Tensor) -> Tensor:
    """(*like.shape, size, size)."""
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.expand(*like.shape, size, size).clone()


def solve(lower: Tensor, rows: Tensor, *, transposed: bool) -> Tensor:
    """L^{-1} v, or L^{-T} v, for the last axis of ``rows``."""
    matrix = lower.mT if transposed else lower
    return torch.linalg.solve_triangular(matrix, rows[..., None], upper=transposed)[..., 0]


@dataclass(kw_only=True, eq=False, repr=False)
class UnitFisher(FisherPreconditioner):
    """C is the inverse of J + damping, unit by unit.

    ``max_fan_in``: units with more inputs are refused."""

    requests = frozenset({"unit_blocks"})
    couples = "units"
    sharings = ("exact",)
    max_fan_in: int = 256

    def init(self, params: Params, units: Units) -> Metric:
        metric: Metric = {"blocks": {}, "second": {}}
        for group in grouped({k: p.shape[1:] for k, p in params.items()}, units, self.requests):
            if "second" in group.requests:
                metric["second"][group.name] = torch.ones_like(params[group.name])
                continue
            rows = unit_rows(group, params)
            fan_in = rows.shape[-1] - bool(group.weights)
            if fan_in > self.max_fan_in:
                raise ValueError(
                    "UnitFisher stores a matrix of fan-in squared for every unit and refuses "
                    f"more than {self.max_fan_in} inputs; the units of {group.names[-1]!r} have "
                    f"{fan_in}. Use KroneckerFisher() or QuasiDiagonalFisher(), or raise "
                    f"UnitFisher(max_fan_in={fan_in})"
                )
            metric["blocks"] |= nested(group, identity(rows.shape[-1], rows[..., 0]))
        return metric

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        blocks: dict[str, Any] = {}
        for group, old in by_group(metric["blocks"]):
            blocks |= nested(group, average(old, statistics.blocks[group.name], rate))
        second = averages(metric["second"], statistics.second, rate)
        return {"blocks": blocks, "second": second}

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        blocks = dict(by_group(metric["blocks"]))
        scale = {k: damped(j, damping[k]).rsqrt() for k, j in metric["second"].items()}
        known: dict[Group, Tensor] = {}

        def lower(group: Group, like: Params) -> Tensor:
            """L of every unit, computed once."""
            if group not in known:
                eps = {k: per_chain(damping[k], like[k]).expand_as(like[k]) for k in group.names}
                matrix = blocks[group] + torch.diag_embed(unit_rows(group, eps))
                # It does not raise: a chain that lost definiteness is caught as divergence.
                known[group] = torch.linalg.cholesky_ex(matrix)[0]
            return known[group]

        def mapped(v: Params, *, transposed: bool) -> Params:
            out = {k: scale[k] * v[k] for k in scale}
            for group in blocks:
                rows = solve(lower(group, v), unit_rows(group, v), transposed=transposed)
                out |= split_rows(group, rows, v)
            return out

        def inverse(v: Params) -> Params:
            out = {k: v[k] / scale[k] for k in scale}
            for group in blocks:
                rows = lower(group, v).mT @ unit_rows(group, v)[..., None]
                out |= split_rows(group, rows[..., 0], v)
            return out

        return Factor(
            forward=lambda z: mapped(z, transposed=True),
            transpose=lambda v: mapped(v, transposed=False),
            inverse=inverse,
        )
