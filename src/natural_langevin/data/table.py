"""Tables in memory: a pandas frame whose columns are numbers, words or times, with a name for every
row's place, so that a message can say "people.csv, line 17"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from natural_langevin._internal.extras import needing
from natural_langevin.data.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

#: Cells that mean "nothing here", in lower case.
MISSING = frozenset({
    "", "na", "n/a", "n.a.", "n.a", "#n/a", "<na>", "nan", "-nan", "null", "(null)", "none", "?",
    "-", "--", ".", "missing", "(blank)", "#div/0!", "#ref!", "#value!", "#name?", "#num!",
    "#null!",
})  # fmt: skip
#: Those of them that are words, and may be names of classes: none, mild, severe.
WORDS = frozenset({"na", "n/a", "n.a.", "n.a", "null", "none", "missing"})


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of ``frame``, whose index says where each stands: a ``unit`` of "line" in a file, "row"
    in an array. Columns are float64, categories of text, or times; nothing is NaN (or NaT).
    ``categories``: columns that came as pandas' categories, numbers or not."""

    label: str
    frame: pd.DataFrame
    unit: str = "line"
    categories: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(self.frame.columns)

    def __len__(self) -> int:
        return len(self.frame)

    def where(self, row: int) -> str:
        """The place of a row in words: "people.csv, line 17"."""
        return f"{self.label}, {self.unit} {self.frame.index[row]}"

    def take(self, rows: Any) -> Table:
        """Some rows, in this order; their places are still those of the file."""
        return replace(self, frame=self.frame.iloc[rows])

    def chunks(self, size: int) -> Iterator[Table]:
        """All rows, at most ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


class Source(Protocol):
    """A table that is read from its beginning to its end, in bounded memory."""

    @property
    def label(self) -> str:
        """What messages call it: a path, or a word."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""

    def chunks(self, size: int) -> Iterator[Table]:
        """The rows, in tables of at most ``size``."""


def need_pandas() -> Any:
    """The module, or an error that names the extra to install."""
    with needing("tables need pandas and scikit-learn", "sklearn"):
        import pandas
    return pandas


#: Any whole number of so many digits is a float64 of its own.
DIGITS = 15
#: Minus signs of typesetters, in front of a number.
MINUS = re.compile(r"^\s*[\u2212\u2013](?=[\s\d.,$€£])")
#: Cells one below the other, of which one is a whole number behind a zero: a code, as 007 is one.
#: 01 may be a month.
LEADING_ZERO = re.compile(r"\n\s*0\d\d+\s*\n")
LONG = re.compile(rf"\n\s*\d{{{DIGITS + 1},}}\s*\n")
#: 350.000 is a number of thousands where commas are decimal.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+|[+-]?\d+")


def compact(cells: pd.Series, *, points: bool = False, classes: bool = False) -> pd.Series:
    """Text as it stands in a file: numbers where every cell is a plain number or missing, else
    categories, which hold every word once; so do whole numbers of which some have leading zeros or
    more digits than a float64 holds.
    ``points``: a point may separate thousands, so that cells which can be read in both ways stay
    text. ``classes``: among words those of WORDS are cells as well.

    >>> compact(need_pandas().Series(["1", "NA", "2.5"])).tolist()
    [1.0, nan, 2.5]
    """
    pd = need_pandas()
    if cells.str.contains("[\u2212\u2013]").any():
        cells = cells.str.replace(MINUS, "-", regex=True)
    plain = _plain_numbers(cells.to_list())
    points = points and _may_be_thousands(cells)
    if plain is not None and not points and not _are_codes(plain, cells):
        return pd.Series(plain, index=cells.index)
    cells = cells.str.strip()
    missing = cells.str.lower().isin(MISSING)
    numbers = pd.to_numeric(cells.where(~missing), errors="coerce")
    if (
        not points
        and (numbers.notna() | missing).all()
        and not _are_codes(numbers.dropna().to_numpy(), cells)
        and not cells.str.contains("_", regex=False).any()
    ):
        return numbers.astype(np.float64)
    missing = cells.str.lower().isin(MISSING - WORDS) if classes else missing
    return cells.where(~missing).astype("category")


def _may_be_thousands(cells: pd.Series) -> bool:
    """Whether every number can be read with points between thousands, and some have one."""
    written = cells.to_list()

    def known() -> Iterator[str]:
        return (cell for cell in map(str.strip, written) if cell.lower() not in MISSING)

    return all(map(THOUSANDS.fullmatch, known())) and any("." in cell for cell in known())


def _are_codes(values: NDArray[Any], cells: pd.Series) -> bool:
    if not len(values) or bool((values != np.round(values)).any()):
        return False
    written = "\n\n".join(["", *cells.to_list(), ""])
    return bool(LEADING_ZERO.search(written) or LONG.search(written))


def _plain_numbers(cells: list[str]) -> NDArray[np.float64] | None:
    """Without pandas' price per column, for the many that are complete."""
    try:
        values = np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))
    except ValueError:
        return None
    # Python reads 1_000 as a number; in a file it is more likely a word.
    return values if np.isfinite(values).all() and "_" not in "".join(cells) else None


def joined(parts: list[pd.Series]) -> pd.Series:
    """Pieces of one column, of which some may have looked like numbers and others not."""
    pd = need_pandas()
    if len(parts) == 1:
        return parts[0]
    if all(part.dtype == np.float64 for part in parts):
        return pd.concat(parts)
    parts = [
        part.map("{:.15g}".format, na_action="ignore").astype("category")
        if part.dtype == np.float64
        else part
        for part in parts
    ]
    index = np.concatenate([part.index for part in parts])
    return pd.Series(pd.api.types.union_categoricals(parts), index=index)


def from_frame(frame: Any, *, words: Collection[str] = ()) -> Table:
    """A pandas or polars frame: numbers stay numbers, words become categories, times stay times. In
    the columns ``words`` those of WORDS are cells as well."""
    pd = need_pandas()
    if not isinstance(frame, pd.DataFrame):  # polars; its own to_pandas would need pyarrow
        frame = pd.DataFrame(frame.to_dict(as_series=False))
    columns = {}
    for name, cells in frame.items():
        kind = pd.api.types
        if isinstance(cells.dtype, pd.PeriodDtype):
            cells = cells.dt.to_timestamp()
        if kind.is_datetime64_any_dtype(cells):
            columns[str(name)] = pd.to_datetime(cells, utc=True)
        elif kind.is_timedelta64_dtype(cells):
            columns[str(name)] = cells / pd.Timedelta(days=1)
        elif (kind.is_numeric_dtype(cells) or _is_boolean(cells)) and not _are_long(cells):
            columns[str(name)] = cells.astype(np.float64)
        elif _is_of_dates(cells):
            columns[str(name)] = pd.to_datetime(cells, utc=True, errors="coerce")
        else:
            text = cells.astype(object)
            text = text.where(text.notna(), "").astype(str)
            columns[str(name)] = compact(text, classes=name in words)
    if len(columns) < frame.shape[1]:
        names = [str(name) for name in frame.columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"the table has two columns {twice!r}: rename one of them")
    rows = pd.RangeIndex(len(frame))
    found = pd.DataFrame({k: v.set_axis(rows) for k, v in columns.items()})
    named = frozenset(
        str(name) for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)
    )
    return Table("the table", found, "row", named)


def _is_boolean(cells: pd.Series) -> bool:
    """Also where some are missing, which makes pandas and polars columns of objects."""
    known = cells.dropna()
    types = need_pandas().api.types
    return bool(types.is_bool_dtype(cells) or (len(known) and known.map(type).eq(bool).all()))


def _are_long(cells: pd.Series) -> bool:
    """Whether they are whole numbers of which some have more digits than a float64 holds."""
    whole = need_pandas().api.types.is_integer_dtype(cells)
    return bool(whole and (cells.dropna().abs() >= 10**DIGITS).any())


def _is_of_dates(cells: pd.Series) -> bool:
    """Whether all that is there are dates: one among words or numbers, as spreadsheets make of a
    3-1, is a word."""
    known = cells.dropna()
    return bool(len(known) and known.map(lambda cell: hasattr(cell, "year")).all())


def short(cell: str) -> str:
    """A cell for an error message: quoted, and never a page long."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
