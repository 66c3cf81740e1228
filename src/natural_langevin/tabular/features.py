"""Encoding of columns as inputs; every change is reported and stored.

Numbers are standardised with mean and (population) standard deviation of the *training* rows and
filled with 0 where they are missing, with an extra input that marks this; dates become days and
phases; categories of K levels become K inputs of 0 or 1. Uninformative columns are left out:
constant ones, copies of others, and names of rows. Everything is stored as JSON, without pickle;
scikit-learn's ``ColumnTransformer`` offers neither this nor notes on single cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, short
from natural_langevin.tabular import columns
from natural_langevin.tabular.columns import MISSING_LEVEL, OTHER, Category, Column, Date, Number

if TYPE_CHECKING:
    import pandas as pd

#: A value this many standard deviations away is a mistake (a unit, a total, a sentinel such as
#: -1e30) or hardly ever seen: of a million rows none can be as far from their mean. It is taken as
#: no further away than that, which networks see as its logarithm (``inputs``).
FARTHEST = 1e3


class Encoded(NamedTuple):
    """Inputs (rows, width); whether each row can be predicted; what was done to it, in words (""
    for most); and a sentence for every column with cells that no training row is an example of."""

    x: Tensor
    usable: NDArray[np.bool_]
    notes: list[str]
    strange: list[str]


@dataclass(frozen=True)
class Features:
    """The columns in use, and notes on how the table was read and changed."""

    parts: tuple[Column, ...]
    notices: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(part.name for part in self.parts)

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(sum(part.size) for part in self.parts)

    def places(self) -> list[tuple[Column, tuple[int, int, int]]]:
        """Every column with the places of its first value, its flag and its first level among the
        inputs: numbers and phases, then what is missing, then categories."""
        sizes = np.array([part.size for part in self.parts])
        values, flags, _ = sizes.sum(0)
        first = sizes.cumsum(0) - sizes + [0, values, values + flags]
        return [
            (part, (v, f, k)) for part, (v, f, k) in zip(self.parts, first.tolist(), strict=True)
        ]

    def inputs(self) -> dict[str, list[int]]:
        """The places among the inputs of all that is made of a column."""
        return {
            part.name: [p for k, n in zip(first, part.size, strict=True) for p in range(k, k + n)]
            for part, first in self.places()
        }

    @property
    def time(self) -> int | None:
        """The place among the inputs of the day of the first column of dates; None without one."""
        for part, (value, _, _) in self.places():
            if isinstance(part, Date) and {"days", "cos of year"} <= set(part.parts):
                return value + list(part.parts).index("days")
        return None

    def check_columns(self, label: str, names: Sequence[str]) -> None:
        """Every column must be present, in any order; others are ignored."""
        there = set(names)
        missing = [name for name in self.names if name not in there]
        if missing:
            shown = ", ".join(map(repr, missing[:8])) + (", ..." if len(missing) > 8 else "")
            raise DataError(
                f"{label} lacks the column{'s' if len(missing) > 1 else ''} {shown} of the "
                "training data: add the missing columns, or rename those with another name"
            )

    def encode(self, table: Table) -> Encoded:
        """float64 inputs. No row is refused: ``notes`` lists what cannot be used."""
        self.check_columns(table.label, table.names)
        usable, notes = np.ones(len(table), dtype=bool), [""] * len(table)
        strange: list[str] = []
        x, empty = np.zeros((len(table), self.width)), np.ones(len(table), dtype=bool)
        for part, (value, flag, level) in self.places():
            cells = table.frame[part.name]
            found = part.read(cells)
            strange += _note(part, cells, found, notes)
            if isinstance(part, Category):
                empty &= (found == MISSING_LEVEL).to_numpy()
                number = {name: k for k, name in enumerate(part.levels)}
                codes = found.astype(object).map(number).to_numpy(np.float64)
                x[:, level : level + len(number)] = codes[:, None] == np.arange(len(number))
                continue
            empty &= found.isna().to_numpy()
            pieces = {None: found} if isinstance(part, Number) else columns.phases(found)
            for place, (key, (mean, scale)) in enumerate(_statistics(part).items(), value):
                own = _standardised(pieces[key].to_numpy(), mean, scale)
                for row in np.flatnonzero(np.abs(own) > FARTHEST):
                    notes[row] += (
                        f"{part.name!r} is {abs(own[row]):.2g} standard deviations from the "
                        f"training rows' mean, taken as {FARTHEST:,.0f}: check its unit; "
                    )
                x[:, place] = np.nan_to_num(np.clip(own, -FARTHEST, FARTHEST), nan=0.0)
            if part.missing:
                x[:, flag] = found.isna().to_numpy()
        nothing = table.frame[list(self.names)].isna().all(axis=1).to_numpy()
        for row in np.flatnonzero(empty):
            said = "every cell is missing" if nothing[row] else f"{notes[row]}no cell is left"
            notes[row] = f"{said}, not predicted"
        usable &= ~empty
        x[~usable] = 0.0
        notes = [note.removesuffix("; ") for note in notes]
        return Encoded(torch.from_numpy(x), usable, notes, strange)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for run.json."""
        return {
            "columns": [columns.to_json(part) for part in self.parts],
            "notices": list(self.notices),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Features:
        """The features of a run.json."""
        parts = tuple(columns.from_json(item) for item in value["columns"])
        if not parts:
            raise ValueError("there is no column")
        return Features(parts, tuple(map(str, value["notices"])))


def _standardised(values: NDArray[np.float64], mean: float, scale: float) -> NDArray[np.float64]:
    """(values - mean) / scale, infinite without a warning where that is no float64."""
    with np.errstate(over="ignore"):
        return (values - mean) / scale


def _statistics(part: Number | Date) -> dict[Any, tuple[float, float]]:
    return {None: (part.mean, part.scale)} if isinstance(part, Number) else dict(part.parts)


def _note(part: Column, cells: pd.Series, found: pd.Series, notes: list[str]) -> list[str]:
    """Writes down, row by row, what is missing, unreadable or new. Returns a sentence where the
    training rows had nothing like it, or where most cells are so, as in a column mixed up."""
    missing = cells.isna().to_numpy()
    if isinstance(part, Category):
        strange = (found == OTHER).to_numpy() & ~(columns.words(cells) == OTHER).to_numpy()
        known = OTHER in part.levels
        what, end = "is rare or new" if known else "was not seen in training", f"taken as {OTHER}"
        missing = missing & (MISSING_LEVEL not in part.levels)
    else:
        strange = found.isna().to_numpy() & ~missing
        known = part.missing and 2 * strange.sum() <= len(cells)
        what, end = f"is no {type(part).__name__.lower()}", "taken as missing"
    for row in np.flatnonzero(missing):
        notes[row] += f"{part.name!r} is missing; "
    for row in np.flatnonzero(strange):
        notes[row] += f"{part.name!r} {short(str(cells.iloc[row]))} {what}, {end}; "
    if known or not strange.any():
        return []
    first, count = int(strange.argmax()), int(strange.sum())
    if count > 1:
        what = what.replace("is ", "are ", 1).replace("was ", "were ", 1)
    return [
        f"{part.name!r}: {count:,} of {len(cells):,} cells {what} (first: "
        f"{short(str(cells.iloc[first]))}, row {first}), {end}"
    ]
