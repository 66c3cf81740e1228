"""Survey of the columns of the training rows: their kinds, problems, and how each is handled,
before anything is refused or learned."""

from __future__ import annotations

import hashlib
import re
import shlex
from typing import TYPE_CHECKING

import numpy as np

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, short
from natural_langevin.data.tables import did_you_mean
from natural_langevin.tabular import columns
from natural_langevin.tabular.columns import (
    ALL_DIFFERENT,
    FEW_WORDS,
    ID,
    MISSING_LEVEL,
    MOST,
    MOST_LEVELS,
    NAMES_ROWS,
    OTHER,
    Category,
    Column,
    Date,
    Number,
)
from natural_langevin.tabular.features import Features

if TYPE_CHECKING:
    import pandas as pd


#: A column with more words than categories is of numbers when this share of its cells is.
HALF = 0.5
#: Where most of a column lies within this share of its standard deviation, single values make that.
SWALLOWED = 1e-3
CODE = "taken as missing (if it is a measurement, change it a little)"


def fit_features(
    table: Table,
    *,
    targets: tuple[str, ...] = (),
    categorical: frozenset[str] = frozenset(),
    decimal_comma: bool = False,
    standardise: bool = True,
    named: bool = True,
    at_least_one: bool = False,
) -> Features:
    """From the training rows alone. ``categorical`` columns, and those that came as pandas'
    categories, are categories even when numbers; without names (``named=False``) no column is taken
    for an identifier. If no column is left, that is an error or, with ``at_least_one``, the first
    column is used."""
    for name in sorted(categorical - set(table.names)):
        raise DataError(
            f"{table.label} has no column {name!r} to take as a category"
            f"{did_you_mean(name, tuple(table.names))}"
        )
    survey = _Survey(table, decimal_comma, standardise, named)
    parts: list[Column] = []
    for name in targets:
        survey.target(name)
    for name in table.names:
        if name not in targets:
            part = survey.column(name, as_category=name in categorical | table.categories)
            parts += [] if part is None else [part]
    if not parts and at_least_one:
        parts.append(Number(table.names[0], 0.0, 1.0))
    if not parts:
        raise DataError(
            f"{table.label} has no column to predict {', '.join(targets)!r} from: every other one "
            "is constant, names rows or was left out; add a column, or drop fewer"
        )
    return Features(tuple(parts), tuple(survey.notices))


class _Survey:
    """Collects the notes, and the columns so far, to detect copies."""

    def __init__(self, table: Table, decimal_comma: bool, standardise: bool, named: bool) -> None:
        self.table, self.standardise, self.named = table, standardise, named
        self.notices: list[str] = []
        self._known: dict[bytes, str] = {}
        self._targets: dict[bytes, str] = {}
        #: For columns that say nothing themselves: 1,234.
        self.comma = decimal_comma or columns.comma_of_others(table.frame)
        self.forced = decimal_comma

    def say(self, name: str, what: str) -> None:
        self.notices.append(f"{name}: {what}")

    def target(self, name: str) -> None:
        """A copy of it under another name is told, as words or as numbers."""
        cells = self.table.frame[name]
        self._targets[_digest(columns.words(cells))] = name
        if cells.dtype == "category":
            unit = columns.common_unit(cells.cat.categories)
            cells = columns.numbers(cells, self._decimal(cells, unit), unit)
        if cells.dtype == np.float64 and cells.notna().any():
            self._targets[_digest(cells)] = name

    def column(self, name: str, *, as_category: bool) -> Column | None:
        cells = self.table.frame[name]
        if cells.isna().all():
            self.say(name, "every cell is missing: left out")
            return None
        if as_category:
            return self._category(name, cells)
        if cells.dtype == np.float64:
            return self._number(name, cells, ".")
        if cells.dtype != "category":
            return self._date(name, cells, "ISO8601")
        levels = cells.cat.categories
        if coded := columns.codes(levels):
            return self._code(name, cells, coded)
        rows = cells.notna().sum()
        unit = columns.common_unit(levels)
        decimal = self._decimal(cells, unit)
        readable = columns.numbers(cells, decimal, unit).notna().sum() / rows
        if columns.only_limits(levels, unit):
            readable = 0.0
        if readable >= MOST:
            return self._number(name, cells, decimal, unit)
        form, _ = columns.date_format(levels)
        if form and columns.dates(cells, form).notna().sum() >= MOST * rows:
            return self._date(name, cells, form)
        if readable >= HALF and len(levels) > FEW_WORDS:  # too many words to be categories
            return self._number(name, cells, decimal, unit)
        return self._category(name, cells)

    def _code(self, name: str, cells: pd.Series, coded: list[str]) -> Column | None:
        """Digits with leading zeros, or very many: categories, where they are not too many."""
        count = cells.nunique()
        what = f"whole numbers {columns.why_codes(coded)}, such as {short(coded[0])}, are codes"
        if self.named and count == len(cells) >= ALL_DIFFERENT:
            self.say(name, f"{what}, different in every row, so an identifier: left out")
            return None
        if count <= MOST_LEVELS:
            self.say(name, f"{what}: taken as categories")
            return self._category(name, cells)
        found = self._number(name, cells, ".")
        if found is not None:
            self.say(name, f"{what}, {count:,} of them, too many for categories: read as numbers")
        return found

    def _decimal(self, cells: pd.Series, unit: str = "") -> str:
        """The column's own evidence, then that of the others, then what can be read at all."""
        own = columns.decimal_comma(level.removesuffix(unit) for level in cells.cat.categories)
        if self.forced or (self.comma if own is None else own):
            counts = [int(columns.numbers(cells, sign, unit).notna().sum()) for sign in ",."]
            return "," if counts[0] >= counts[1] else "."
        return "."

    def _number(
        self, name: str, cells: pd.Series, decimal: str, unit: str = ""
    ) -> Number | Category | None:
        values = columns.numbers(cells, decimal, unit)
        for what in columns.notation(cells, values, decimal, unit):
            self.say(name, what)
        self._strange(name, cells, values, "number")
        known = values.to_numpy()[values.notna().to_numpy()]
        code = columns.missing_code(known) if self.named and self.standardise else None
        if code is not None:
            count = int((known == code).sum())
            self.say(name, f"{code:g} in {count:,} of {len(cells):,} cells, far below all: {CODE}")
            values, known = values.mask(values == code), known[known != code]
        whole = (known == np.round(known)).all()
        distinct = len(np.unique(known)) == len(cells) > FEW_WORDS
        if self.named and ID.search(name) and whole and distinct:
            self.say(name, "a different whole number in every row, so an identifier: left out")
            return None
        if not len(known) or known.min() == known.max():
            if len(known) and self.named and cells.dtype == np.float64 and cells.isna().any():
                return self._category(
                    name, cells
                )  # 1 or nothing: that it is missing says something
            self.say(name, "the same in every row: left out")
            return None
        if self._copy(name, values):
            return None
        missing = self._missing(name, values)
        if not self.standardise:
            return Number(name, 0.0, 1.0, missing, decimal, unit)
        found = columns.mean_and_scale(known)
        if found is None:
            self.say(name, "differences below rounding precision: left out")
            return None
        low, high = np.quantile(known, [0.05, 0.95])
        if 0 < high - low < SWALLOWED * found[1]:
            far = known[np.abs(known - np.median(known)).argmax()]
            self.say(
                name, f"most are between {low:.4g} and {high:.4g}, but one is {far:.4g}: beside it "
                "the others hardly differ; is it a mistake, or in another unit?"
            )  # fmt: skip
        return Number(name, *found, missing, decimal, unit, code)

    def _date(self, name: str, cells: pd.Series, form: str) -> Date | None:
        times = columns.known_dates(cells, form)
        self._strange(name, cells, times, "date")
        if times.isna().all():
            self.say(name, "holds no date: left out")
            return None
        parts = {}
        clock = not any(part in form for part in ("%Y", "%y", "%d", "ISO"))  # a time of day alone
        for key, values in columns.phases(times).items():
            if clock and key != "days" and not key.endswith("of day"):
                continue
            known = values.to_numpy()[values.notna().to_numpy()]
            found = columns.mean_and_scale(known) if known.max() - known.min() > 1e-9 else None
            if found is not None:
                parts[key] = found
        if not parts:
            self.say(name, "the same date in every row: left out")
            return None
        how = f" (read as {form.replace('|', ' or ')})" if cells.dtype == "category" else ""
        what = f"times{how}: they" if clock else f"dates{how}: their day"
        self.say(name, f"{what}, and their place in {_cycles(parts)}, are inputs")
        if (sign := re.search("%d([/-])%m", form)) and not _day_first(cells, form):
            both = f"31{sign[1]}12 and 12{sign[1]}31"
            self.say(name, f"{both} cannot be distinguished here: the day is read first")
        return Date(name, form, parts, self._missing(name, times))

    def _category(self, name: str, cells: pd.Series) -> Category | None:
        found = columns.words(cells)
        counts = found.value_counts()
        levels = counts.drop(MISSING_LEVEL, errors="ignore")
        if len(levels) > FEW_WORDS and len(levels) > NAMES_ROWS * len(cells):
            self.say(
                name,
                f"{len(levels):,} different words in {len(cells):,} rows, such as "
                f"{short(str(levels.index[0]))}: names rows or is free text, left out",
            )
            return None
        if len(counts) < 2:
            self.say(name, "the same in every row: left out")
            return None
        if self.named and len(levels) >= ALL_DIFFERENT and levels.max() == 1:
            self.say(name, "a different word in every row, of no use for new rows: left out")
            return None
        if self._copy(name, found):
            return None
        self._spelling(name, levels)
        kept = sorted(levels.index)
        if len(levels) > MOST_LEVELS:
            common = levels.sort_index().sort_values(ascending=False, kind="stable")
            kept = [*sorted(common.index[: MOST_LEVELS - 1]), OTHER]
            self.say(
                name,
                f"{len(levels)} categories: the {MOST_LEVELS - 1} most frequent have an input "
                f"each, the others share one, {OTHER}",
            )
        if MISSING_LEVEL in counts:
            self._missing(name, cells, filled="a separate category")
            kept.append(MISSING_LEVEL)
        return Category(name, tuple(map(str, kept)))

    def _spelling(self, name: str, levels: pd.Series) -> None:
        """Notes words that differ only in capitals."""
        alike: dict[str, list[str]] = {}
        for level in sorted(map(str, levels.index)):
            alike.setdefault(level.casefold(), []).append(level)
        for group in [group for group in alike.values() if len(group) > 1][:1]:
            shown = " and ".join(map(short, group[:4]))
            self.say(
                name,
                f"{shown} differ only in capitals and are kept apart: if they are one, "
                "spell them alike",
            )

    def _missing(
        self,
        name: str,
        values: pd.Series,
        filled: str = "filled with the mean, and marked by an extra input",
    ) -> bool:
        missing = values.isna().to_numpy()
        count = int(missing.sum())
        if count:
            first = self.table.where(int(missing.argmax()))
            self.say(name, f"{_cells(count, len(missing))} missing (first: {first}): {filled}")
        return bool(count)

    def _strange(self, name: str, cells: pd.Series, values: pd.Series, kind: str) -> None:
        if values is cells:  # numbers, all of them finite or missing
            return
        strange = (values.isna() & cells.notna()).to_numpy()
        if strange.any():
            row = int(strange.argmax())
            shown = f"{short(str(cells.iloc[row]))}, {self.table.where(row)}"
            self.say(
                name,
                f"{_cells(int(strange.sum()), len(cells))} no {kind} (first: {shown}): taken as "
                "missing",
            )

    def _copy(self, name: str, values: pd.Series) -> bool:
        digest = _digest(values)
        if self._targets.pop(digest, None):
            self.say(
                name, f"the same as the target in every row: if new rows lack it, leave it out "
                f"(--drop {shlex.quote(name)})"
            )  # fmt: skip
        other = self._known.setdefault(digest, name)
        if other != name:
            self.say(name, f"the same as {other!r} in every row: left out")
        return other != name


def _digest(values: pd.Series) -> bytes:
    if values.dtype == np.float64:  # zero has two signs, and NaN many
        numbers = np.nan_to_num(values.to_numpy() + 0.0, nan=np.inf)
        return hashlib.sha256(numbers.tobytes()).digest()
    from pandas.util import hash_pandas_object

    return bytes(hash_pandas_object(values, index=False).to_numpy().tobytes())


def _cells(count: int, of: int) -> str:
    return f"{count:,} of {of:,} cells {'is' if count == 1 else 'are'}"


def _cycles(parts: dict[str, tuple[float, float]]) -> str:
    names = [name for name in columns.CYCLES if f"sin of {name}" in parts]
    return ", ".join(f"the {name}" for name in names) or "time"


def _day_first(cells: pd.Series, form: str) -> bool:
    """Whether some cell can only be read with the day in front."""
    other = re.sub("%d([/-])%m", r"%m\1%d", form)
    return bool(columns.dates(cells, other).isna().sum() > columns.dates(cells, form).isna().sum())
