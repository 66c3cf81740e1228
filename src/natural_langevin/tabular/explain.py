"""Partial dependence and permutation importance, each with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, need_pandas
from natural_langevin.likelihoods.mixtures import check_level
from natural_langevin.tabular.columns import Number
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.learned import Learned
from natural_langevin.tabular.predictive import Array


class PartialDependence(NamedTuple):
    """At every one of ``values`` of the column: the average prediction over rows, (value, k) of k
    classes or targets, and the ends of the interval that holds ``level`` of the networks."""

    values: list[Any]
    mean: Array
    low: Array
    high: Array


class Importance(NamedTuple):
    """Of every column (``names``): how much ln p(y) falls per row where it is shuffled, and the
    standard error of that over rows."""

    names: tuple[str, ...]
    mean: Array
    error: Array


def partial_dependence(
    learned: Learned,
    features: Features,
    table: Table,
    column: str,
    *,
    values: Sequence[Any] | None = None,
    grid: int = 20,
    rows: int = 200,
    level: float = 0.9,
) -> PartialDependence:
    """Predictions averaged over at most ``rows`` rows, in all of which ``column`` is set to one
    value after the other (default: ``grid`` quantiles of a number, the levels of a category).

    Every network has its own curve; their spread is the epistemic uncertainty."""
    check_level(level)
    part = next((p for p in features.parts if p.name == column), None)
    if part is None:
        raise DataError(
            f"{column!r} is not a column in use: choose from {', '.join(features.names)}"
        )
    step = max(1, len(table) // rows)
    some = table.take(np.arange(0, len(table), step)[:rows])
    cells = some.frame[column]
    if values is None:
        if isinstance(part, Number):
            numbers = part.read(table.frame[column]).dropna()
            values = np.unique(np.quantile(numbers, np.linspace(0.02, 0.98, grid))).tolist()
        else:
            known = table.frame[column].dropna().unique()
            values = sorted(known)[:: max(1, len(known) // grid)]
    curves = []
    for value in values:
        frame = some.frame.copy()
        frame[column] = _constant(cells, value)
        x = features.encode(Table(some.label, frame, some.unit)).x
        weights, means = learned.network_means(x)
        curves.append(means.mean(1))
    each = torch.stack(curves)  # (value, network, k)
    mean = torch.einsum("vmk,m->vk", each, weights)
    low, high = (_quantile(each, weights, q) for q in ((1 - level) / 2, (1 + level) / 2))
    return PartialDependence(list(values), mean.numpy(), low.numpy(), high.numpy())


def _constant(cells: Any, value: Any) -> Any:
    pd = need_pandas()
    if cells.dtype == "category":
        return pd.Series([str(value)] * len(cells), index=cells.index, dtype="category")
    return pd.Series([value] * len(cells), index=cells.index).astype(cells.dtype)


def _quantile(each: Tensor, weights: Tensor, level: float) -> Tensor:
    """Of the networks (axis 1), weighted."""
    ordered, order = each.sort(dim=1)
    reached = weights[order].cumsum(1) >= level - 1e-12
    place = reached.int().argmax(1, keepdim=True)
    return ordered.gather(1, place)[:, 0]


def permutation_importance(
    learned: Learned,
    features: Features,
    table: Table,
    y: Tensor,
    *,
    repeats: int = 5,
    seed: int = 0,
) -> Importance:
    """ln p(y) of the rows minus ln p(y) where one column is shuffled, ``repeats`` times; ``y`` as
    ``learn`` takes it. On held-out rows it measures how useful the column is, on training rows how
    much it was used."""
    if repeats < 1:
        raise DataError(f"repeats must be a positive integer, got {repeats!r}")
    rng = np.random.default_rng(seed)
    x = features.encode(table).x
    whole = learned.log_prob(x, y)
    mean, error = [], []
    for places in features.inputs().values():
        shuffled = x.repeat(repeats, 1, 1)
        for one in shuffled:
            one[:, places] = x[rng.permutation(len(x))][:, places]
        every = learned.log_prob(shuffled.flatten(0, 1), y.repeat(repeats, *[1] * (y.ndim - 1)))
        lost = whole - every.unflatten(0, (repeats, -1)).mean(0)
        mean.append(float(lost.mean()))
        error.append(float(lost.std() / np.sqrt(len(lost))) if len(lost) > 1 else float("nan"))
    return Importance(features.names, np.array(mean), np.array(error))
