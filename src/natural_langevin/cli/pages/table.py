"""The paper's Table 1, with spread, calibration and cost beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from natural_langevin.cli.pages import text

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Column:
    """Where a number stands in a row (`test.nll`), its digits, and which way is better."""

    key: str
    group: str
    title: str
    digits: int
    better: int = 0  # -1: lower, +1: higher, 0: neither
    stacked: bool = False  # the spread stands on a line of its own, where the paper has none


COLUMNS = (
    Column("test.nll", "Test", "NLL", 4, -1),
    Column("test.accuracy", "Test", "Accuracy %", 2, +1),
    Column("test.brier", "Test", "Brier", 4, -1, stacked=True),
    Column("test.ece", "Test", "ECE", 4, -1, stacked=True),
    Column("train.nll", "Train", "NLL", 4),
    Column("train.accuracy", "Train", "Accuracy %", 2),
    Column("seconds", "Cost", "Time", 1),
    Column("cost", "Cost", f"{text.TIMES} SGD", 2),
)
SYMBOLS = {"step_size": "η", "prior_variance": "σ²", "temperature": "T"}  # the paper's letters


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number with its spread over seeds and, where the paper has it, the paper's."""

    column: Column
    value: float | None
    std: float | None
    best: bool
    paper: float | None
    verdict: str  # "better", "worse", "level" or ""; empty where there is no spread to judge it by


@dataclasses.dataclass(frozen=True)
class Table:
    """Two bodies, the paper's rows and the rest, and the notes they share. A row has its ``hue``,
    the letter of its ``note``, its settings as text, and ``cells``."""

    bodies: list[tuple[str, list[Row]]]
    notes: list[tuple[str, str]]
    columns: tuple[Column, ...] = COLUMNS

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Titles over the columns, and how many columns each spans."""
        return [(title, len(list(part))) for title, part in groupby(c.group for c in self.columns)]

    @property
    def starts(self) -> set[int]:
        """The columns where a group begins."""
        spans = [span for _, span in self.groups]
        return {sum(spans[:i]) for i in range(len(spans))}


def table(rows: Sequence[Row], hues: Mapping[str, str]) -> Table:
    """The paper's rows first, in the order of the results."""
    notes: dict[str, str] = {}
    bodies = []
    for title, part in (
        ("Methods of the paper", [r for r in rows if in_paper(r)]),
        ("Beyond the paper", [r for r in rows if not in_paper(r)]),
    ):
        if part:
            best = {c.key: _best(part, c) for c in COLUMNS}
            bodies.append((title, [_line(r, hues[r["method"]], best, notes) for r in part]))
    return Table(bodies, [(letter, note) for note, letter in notes.items()])


def in_paper(row: Row) -> bool:
    """Whether the row belongs to the paper's table."""
    return bool(row.get("group", "paper") == "paper")


def lookup(row: Row, key: str) -> Any:
    """`test.nll` -> row["test"]["nll"]; None wherever the path breaks off."""
    value: Any = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def mean(row: Row, key: str) -> float | None:
    """The number a column shows: a mean over seeds, or the plain value."""
    value = lookup(row, key)
    found: float | None = value["mean"] if isinstance(value, Mapping) else value
    return found


def settings(row: Row) -> str:
    """The chosen hyper-parameters: first those with a letter in the paper, then the others."""
    chosen = row.get("settings") or {}
    keys = [k for k in SYMBOLS if k in chosen] + [k for k in chosen if k not in SYMBOLS]
    shown = [(SYMBOLS.get(key, key.replace("_", " ")), _setting(chosen[key])) for key in keys]
    return " · ".join(f"{name}{text.TIE}{value}" for name, value in shown if value)


def _setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_setting, value))})"
    return text.short(value) if text.finite(value) else value if isinstance(value, str) else ""


def _best(rows: Iterable[Row], column: Column) -> float | None:
    values = [v for row in rows if (v := mean(row, column.key)) is not None and text.finite(v)]
    if not column.better or len(values) < 2:
        return None
    return max(values, key=lambda v: column.better * v)


def _line(row: Row, hue: str, best: Mapping[str, float | None], notes: dict[str, str]) -> Row:
    note = row.get("note") or ""
    letter = notes.setdefault(note, _letter(len(notes))) if note else ""
    cells = [_cell(row, column, best[column.key]) for column in COLUMNS]
    return {**row, "hue": hue, "note": letter, "settings": settings(row), "cells": cells}


def _cell(row: Row, column: Column, best: float | None) -> Cell:
    value, entry = mean(row, column.key), lookup(row, column.key)
    std = text.deviation(entry) if isinstance(entry, Mapping) else None
    paper = lookup(row, f"paper.{column.key}") if text.finite(value) else None
    verdict = ""
    if paper is not None and value is not None and column.better and std is not None:
        level = abs(value - paper) <= 2 * std
        verdict = "level" if level else "better" if (value - paper) * column.better > 0 else "worse"
    return Cell(column, value, std, best is not None and value == best, paper, verdict)


def _letter(index: int) -> str:
    """a, b, … z, aa, ab, …"""
    head, tail = divmod(index, 26)
    return (_letter(head - 1) if head else "") + chr(ord("a") + tail)
