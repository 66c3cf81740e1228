"""Columns become inputs: numbers are standardised, categories one-hot encoded.

For a number, input = (value - mean) / scale, with mean and (population) standard deviation of the
*training* rows. For a category of K levels, K inputs of 0 or 1, not standardised. Columns that are
constant in the training rows say nothing and are left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Chunk, Table, short

#: A category of more levels than this is refused: each becomes an input of its own.
MOST_INPUTS_OF_A_CATEGORY = 50
#: How dates begin in most tables: 2024-03-31, 31.3.2024, 3/31/24.
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
#: A value this many standard deviations away is a mistake (a unit, a sentinel such as -1e30).
FARTHEST = 1e6


@dataclass(frozen=True)
class Number:
    """One input."""

    name: str
    mean: float
    scale: float

    @property
    def width(self) -> int:
        return 1

    def encode(self, chunk: Chunk) -> NDArray[np.float64]:
        values = (chunk.numbers(self.name).astype(np.float64) - self.mean) / self.scale
        far = np.abs(values) > FARTHEST
        if far.any():
            row = int(far.argmax())
            raise DataError(
                f"{chunk.where(row)}: column {self.name!r} is {abs(values[row]):.2g} standard "
                "deviations from the training rows' mean: check its unit, or remove the row"
            )
        return values[:, None]


@dataclass(frozen=True)
class Category:
    """One input per level, in the order of ``levels``."""

    name: str
    levels: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.levels)

    def encode(self, chunk: Chunk) -> NDArray[np.float64]:
        index = {level: i for i, level in enumerate(self.levels)}
        words = chunk.words(self.name)
        codes = np.array([index.get(word, -1) for word in words], dtype=np.int64)
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            known = ", ".join(self.levels[:8]) + (", ..." if self.width > 8 else "")
            raise DataError(
                f"{chunk.where(row)}: column {self.name!r} is {short(words[row])}, which no "
                f"training row has (they have {known}): correct it, or remove the row"
            )
        return np.eye(self.width)[codes]


Feature = Number | Category


@dataclass(frozen=True)
class Features:
    """All inputs in order, and the names of columns that were found constant."""

    parts: tuple[Feature, ...]
    constant: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    def check_columns(self, label: str, names: Sequence[str]) -> None:
        """Every column must be there, in whatever order; others do no harm."""
        missing = [name for name in self.names if name not in set(names)]
        if missing:
            shown = ", ".join(map(repr, missing[:8])) + (", ..." if len(missing) > 8 else "")
            raise DataError(
                f"{label} lacks the column{'s' if len(missing) > 1 else ''} {shown} of the "
                "training data: add what is missing, or rename what is called otherwise"
            )

    def encode(self, chunk: Chunk) -> Tensor:
        """(rows, width) float32."""
        inputs = np.empty((len(chunk), self.width), dtype=np.float32)
        start = 0
        for part in self.parts:
            inputs[:, start : start + part.width] = part.encode(chunk)
            start += part.width
        return torch.from_numpy(inputs)

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": [{"kind": type(p).__name__.lower()} | asdict(p) for p in self.parts],
            "constant": list(self.constant),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Features:
        parts: list[Feature] = []
        for item in value["columns"]:
            if item["kind"] == "number":
                number = Number(str(item["name"]), float(item["mean"]), float(item["scale"]))
                if not (np.isfinite(number.mean) and 0 < number.scale < np.inf):
                    raise ValueError(f"column {number.name!r} has no finite mean and scale")
                parts.append(number)
            elif item["kind"] == "category":
                levels = item["levels"]
                if not isinstance(levels, list) or not levels:
                    raise ValueError(f"column {item['name']!r} has no levels")
                parts.append(Category(str(item["name"]), tuple(map(str, levels))))
            else:
                raise ValueError(f"unknown kind of column {item['kind']!r}")
        if not parts:
            raise ValueError("there is no column")
        return Features(tuple(parts), tuple(map(str, value["constant"])))


def fit_features(
    table: Table,
    *,
    target: str,
    categorical: frozenset[str] = frozenset(),
    standardise: bool = True,
) -> Features:
    """From the training rows alone. ``categorical`` columns are categories even when numbers."""
    for name in sorted(categorical - set(table.names)):
        raise DataError(f"{table.label} has no column {name!r} to take as a category")
    parts: list[Feature] = []
    constant: list[str] = []
    _check_levels(table, target, categorical)
    for name in table.names:
        if name == target:
            continue
        part = _fit_one(table, name, name in categorical, standardise)
        if part is None:
            constant.append(name)
        else:
            parts.append(part)
    if not parts:
        raise DataError(
            f"{table.label} has no column to predict {target!r} from: every other one is constant "
            "or was left out"
        )
    return Features(tuple(parts), tuple(constant))


def _fit_one(table: Table, name: str, as_category: bool, standardise: bool) -> Feature | None:
    column = table.columns[name]
    if column.odd and not as_category:
        raise DataError(
            f"column {name!r} holds numbers, but also {column.odd}: correct that cell, or say that "
            f"it is a category (--categorical {name})"
        )
    if column.values is None or as_category:
        return _fit_category(table, name)
    return _fit_number(table, name, standardise)


def _fit_category(table: Table, name: str) -> Category | None:
    """The levels are those of the whole table: a rare one may be in held-out rows alone."""
    found = set(table.words(name))
    levels = tuple(sorted(found | set(table.columns[name].levels)))
    return Category(name, levels) if len(found) > 1 else None


def _check_levels(table: Table, target: str, categorical: frozenset[str]) -> None:
    """Refuses categories of too many levels, all of them in one message."""
    problems, drops = [], []
    for name, column in table.columns.items():
        words = column.values is None and not column.odd
        if name == target or not (words or name in categorical):
            continue
        levels = column.levels or tuple(dict.fromkeys(table.words(name)))
        if len(levels) <= MOST_INPUTS_OF_A_CATEGORY:
            continue
        kind = "dates" if words and DATE.match(levels[0]) else "different values"
        problems.append(f"{name!r} has {len(levels)} {kind}, such as {short(levels[0])}")
        drops.append(f"--drop {shlex.quote(name)}")
    if not problems:
        return
    remedy = "group them"
    if any(" dates, such as" in problem for problem in problems):
        remedy = "turn dates into numbers (a year, a month, days since a day)"
    raise DataError(
        f"column {'; column '.join(problems)}; a category may have {MOST_INPUTS_OF_A_CATEGORY}: "
        f"{remedy}, or leave the column{'s' * (len(drops) > 1)} out ({' '.join(drops)})"
    )


def _fit_number(table: Table, name: str, standardise: bool) -> Number | None:
    values = table.numbers(name).astype(np.float64)
    if values.min() == values.max():
        return None
    if not standardise:
        return Number(name, 0.0, 1.0)
    # Divided by the largest first, so that squares neither overflow nor vanish.
    largest = float(np.abs(values).max())
    small = values / largest
    mean, scale = float(small.mean()) * largest, float(small.std()) * largest
    if not scale > 0:  # differences that rounding swallows
        return None
    return Number(name, mean, scale)
