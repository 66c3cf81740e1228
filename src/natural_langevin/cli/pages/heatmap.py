"""Validation accuracy over the grid of step sizes and prior variances (for Dropout, rates)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.cli.pages import text

FAINT, STRONG = 4, 58  # percent of accent in a cell; text stays readable on both
FAR = 8  # times the best error rate: from there on every cell is faint


def grids(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With what the ``columns`` are, where they are not variances, and rows of ``cells``: accuracy,
    NLL (or None), how strong the colour is, and whether it was chosen. All methods are on one
    colour scale, logarithmic in the error rate: 98 and 98.5 % must differ."""
    errors = [
        _error(value)
        for item in items
        for row in item["accuracy"]
        for value in row
        if text.finite(value)
    ]
    best = min(errors, default=0.0)
    worst = min(max(errors, default=1.0), best + math.log(FAR))
    return [{"columns": None, **item, "cells": _cells(item, worst, best)} for item in items]


def _cells(item: Mapping[str, Any], worst: float, best: float) -> list[list[tuple[Any, ...]]]:
    def strength(accuracy: float | None) -> float:
        even = worst == best or not text.finite(accuracy)
        share = 0.0 if even else (worst - _error(accuracy)) / (worst - best)
        return round(FAINT + max(0.0, share) * (STRONG - FAINT), 1)

    nothing = [[None] * len(row) for row in item["accuracy"]]
    return [
        [
            (accuracy, nll, strength(accuracy), _is_chosen(item, step_size, column))
            for accuracy, nll, column in zip(*row, item["prior_variances"], strict=True)
        ]
        for step_size, *row in zip(
            item["step_sizes"], item["accuracy"], item.get("nll") or nothing, strict=True
        )
    ]


def _is_chosen(item: Mapping[str, Any], step_size: float, column: float) -> bool:
    chosen = dict(item.get("chosen") or {})
    other = chosen.get("prior_variance", chosen.get("dropout_rate"))
    return (
        chosen.get("step_size") is not None
        and other is not None
        and math.isclose(chosen["step_size"], step_size)
        and math.isclose(other, column)
    )


def _error(accuracy: float | None) -> float:
    assert accuracy is not None
    return math.log(max(100.0 - accuracy, 0.01))
