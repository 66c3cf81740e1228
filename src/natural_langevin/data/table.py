"""Tables: named columns of numbers or words, all of them at once or a chunk of rows at a time.

Every cell is either a finite number or a word. What is missing, infinite or a stray word among
numbers is refused by line and column: a value that was made up silently would be believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import DataError

Numbers = NDArray[np.floating[Any]]

#: Cells that mean "nothing here", in lower case.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "?"})
#: A column of more different words than this is text or an identifier, not a category.
MOST_LEVELS = 1000


class Chunk(Protocol):
    """Rows of a table."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def where(self, row: int) -> str:
        """The place of a row in words: "people.csv, line 17"."""

    def numbers(self, name: str) -> Numbers:
        """A column as finite numbers, or a DataError that names the first cell that is none."""

    def words(self, name: str) -> list[str]:
        """A column as text, or a DataError that names the first missing cell."""

    def cells(self, name: str) -> list[str]:
        """A column as it stands, whatever is missing in it."""


class Source(Protocol):
    """A table that is read from its beginning to its end, in bounded memory."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def chunks(self, size: int) -> Iterator[Chunk]: ...


@dataclass(frozen=True, eq=False)
class TextChunk:
    """Rows as they stand in a file; ``lines`` are their line numbers."""

    label: str
    names: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, row: int) -> str:
        return f"{self.label}, line {self.lines[row]}"

    def cells(self, name: str) -> list[str]:
        index = self.names.index(name)
        return [row[index].strip() for row in self.rows]

    def numbers(self, name: str) -> Numbers:
        cells = self.cells(name)
        values = parse_numbers(cells)
        if values is None:
            row = next(i for i, cell in enumerate(cells) if parse_numbers([cell]) is None)
            raise not_a_number(self.where(row), name, cells[row])
        return values

    def words(self, name: str) -> list[str]:
        cells = self.cells(name)
        for row, cell in enumerate(cells):
            if cell.lower() in MISSING:
                raise not_a_number(self.where(row), name, cell)
        return cells


def parse_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """All cells as finite float64, or None where one is not such a number.

    >>> parse_numbers(["1", " 2.5e3"])
    array([1.0e+00, 2.5e+03])
    >>> parse_numbers(["1_000"]) is parse_numbers(["inf"]) is parse_numbers([""]) is None
    True
    """
    try:
        values = np.array([float(cell) for cell in cells], dtype=np.float64)
    except ValueError:
        return None
    # Python reads 1_000 as a number; in a file it is more likely a word.
    if not np.isfinite(values).all() or any("_" in cell for cell in cells):
        return None
    return values


def not_a_number(
    where: str, name: str, cell: str, *, missing: str = "fill it in, or remove the row"
) -> DataError:
    """The error of a cell that should be a number (or, when missing, anything at all).

    ``missing`` is the remedy for a cell that holds nothing."""
    if cell.lower() in MISSING:
        shown = "is empty" if not cell else f"is missing ({cell})"
        return DataError(f"{where}: column {name!r} {shown}: {missing}")
    what, remedy = "no number", "correct the cell, or remove the row"
    if is_infinite(cell):
        what = "not finite"
    elif has_comma(cell):
        remedy = (
            "write decimals with a point and thousands without a separator, or say that commas are "
            "decimal (--decimal-comma)"
        )
    return DataError(f"{where}: column {name!r} holds {short(cell)}, {what}: {remedy}")


def is_infinite(cell: str) -> bool:
    """Infinite, NaN, or too large for a number of 64 bits."""
    try:
        return not math.isfinite(float(cell))
    except ValueError:
        return False


def has_comma(cell: str) -> bool:
    """A number written with a decimal comma or with separated thousands: 1,5 or 1,500.00."""
    return "," in cell and parse_numbers([cell.replace(",", "")]) is not None


def short(cell: str) -> str:
    """A cell for an error message: quoted, and never a page long."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


@dataclass(frozen=True, eq=False)
class Column:
    """A whole column: ``values`` where every cell is a number, ``codes`` into ``levels`` (in order
    of appearance) where there are at most MOST_LEVELS different texts; at least one of the two.

    ``odd`` is the first cell that is no number, in a column that holds numbers as well."""

    values: Numbers | None
    codes: NDArray[np.int32] | None = None
    levels: tuple[str, ...] = ()
    odd: str | None = None  # ready for a message: 'abc' (people.csv, line 17)


@dataclass(frozen=True, eq=False)
class Table:
    """A table in memory; itself a Chunk and a Source.

    ``places`` says where every row stands: a ``unit`` of "line" in a file, "row" in an array."""

    label: str
    columns: Mapping[str, Column]
    places: NDArray[np.int64]
    unit: str = "line"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def __len__(self) -> int:
        return len(self.places)

    def where(self, row: int) -> str:
        return f"{self.label}, {self.unit} {self.places[row]}"

    def numbers(self, name: str) -> Numbers:
        column = self.columns[name]
        if column.values is None:
            assert column.codes is not None
            bad = [i for i, level in enumerate(column.levels) if parse_numbers([level]) is None]
            row = int(np.isin(column.codes, bad).argmax())
            raise not_a_number(self.where(row), name, column.levels[column.codes[row]])
        finite = np.isfinite(column.values)
        if not finite.all():
            row = int(finite.argmin())
            raise not_a_number(self.where(row), name, str(column.values[row]))
        return column.values

    def words(self, name: str) -> list[str]:
        column = self.columns[name]
        if column.codes is not None:
            return [column.levels[code] for code in column.codes]
        return [f"{value:.15g}" for value in self.numbers(name)]

    def cells(self, name: str) -> list[str]:
        return self.words(name)

    def chunks(self, size: int) -> Iterator[Table]:
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    def take(self, rows: NDArray[np.int64]) -> Table:
        """Some rows of the table, in this order; their places are still those of the file."""
        columns = {
            name: Column(
                None if c.values is None else c.values[rows],
                None if c.codes is None else c.codes[rows],
                c.levels,
                c.odd,
            )
            for name, c in self.columns.items()
        }
        return Table(self.label, columns, self.places[rows], self.unit)
