"""Validation accuracy over the grid of step sizes and prior variances (for Dropout, rates)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.cli.pages import text

FAINT, STRONG = 4, 58  # percent of accent in a cell; text stays readable on both
FAR = 8  # times the best error rate: from there on every cell is faint


@dataclasses.dataclass(frozen=True)
class Cell:
    """One grid point: its scores, how strong its colour is, and its marks."""

    accuracy: str
    nll: str
    value: str
    strength: float
    chosen: bool
    diverged: bool


@dataclasses.dataclass(frozen=True)
class Grid:
    """Rows are step sizes, columns are prior variances."""

    method: str
    label: str
    over: str  # what the columns are, where they are not prior variances
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


def grids(items: Sequence[Mapping[str, Any]]) -> list[Grid]:
    """All methods on one colour scale, logarithmic in the error rate: 98 and 98.5 % must differ."""
    errors = [
        _error(value)
        for item in items
        for row in item["accuracy"]
        for value in row
        if text.finite(value)
    ]
    best = min(errors, default=0.0)
    worst = min(max(errors, default=1.0), best + math.log(FAR))
    return [_grid(item, worst, best) for item in items]


def _grid(item: Mapping[str, Any], worst: float, best: float) -> Grid:
    def cell(i: int, j: int) -> Cell:
        accuracy, nll = item["accuracy"][i][j], item["nll"][i][j] if item.get("nll") else None
        diverged = not text.finite(accuracy)
        share = 0.0 if diverged or worst == best else (worst - _error(accuracy)) / (worst - best)
        return Cell(
            accuracy="" if diverged else text.number(accuracy, 2),
            nll=text.number(nll, 3) if text.finite(nll) else "",
            value=text.raw(accuracy),
            strength=round(FAINT + max(0.0, share) * (STRONG - FAINT), 1),
            chosen=_is_chosen(item, i, j),
            diverged=diverged,
        )

    width = range(len(item["prior_variances"]))
    rows = [(text.short(s), [cell(i, j) for j in width]) for i, s in enumerate(item["step_sizes"])]
    columns = [text.short(v) for v in item["prior_variances"]]
    return Grid(item["method"], item["label"], item.get("columns") or "", columns, rows)


def _is_chosen(item: Mapping[str, Any], i: int, j: int) -> bool:
    chosen = dict(item.get("chosen") or {})
    step_size, column = chosen.get("step_size"), item["prior_variances"][j]
    other = chosen.get("prior_variance", chosen.get("dropout_rate"))
    return (
        step_size is not None
        and other is not None
        and math.isclose(step_size, item["step_sizes"][i])
        and math.isclose(other, column)
    )


def _error(accuracy: float) -> float:
    return math.log(max(100.0 - accuracy, 0.01))
