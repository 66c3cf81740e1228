"""Kinds of columns: numbers as people write them, dates, and categories.

A column of text is parsed level by level (every different cell once), so that a million rows cost
no more than their different words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from natural_langevin.data.table import DIGITS, need_pandas

if TYPE_CHECKING:
    import pandas as pd

#: A column is of numbers (or dates) when this share of its cells can be read as such.
MOST = 0.9
#: Levels that get an input of their own; the rarer ones share one, OTHER. With 30, 50 places that
#: matter cost .3 nats; inputs of places that do not cost .01.
MOST_LEVELS = 100
#: More different words than these may be names of rows, or numbers with remarks among them.
FEW_WORDS = 30
OTHER, MISSING_LEVEL = "(other)", "(missing)"
#: Text of more different words than this share of the rows names rows and describes nothing.
NAMES_ROWS = 0.5
#: So many words, none of them twice, name rows as well.
ALL_DIFFERENT = 6
ID = re.compile(
    r"(?i)(^|[\W_])(id|idx|index|uuid|guid|key|n[or]\.?|number|rownames?|unnamed.*)$|[a-z](Id|ID)$"
)
SPACES = " \u00a0\u2009\u202f\u2019'"
#: Whole numbers with separated thousands (in India 12,34,567), then a decimal part; by which sign
#: is decimal. None begins with a zero: 0,126 and 0.126 have decimals.
GROUPED = {
    ".": re.compile(
        rf"[+-]?(?:[1-9]\d{{0,2}}(?:[{SPACES},]\d{{3}})+|[1-9]\d?(?:,\d\d)+,\d{{3}})(?:\.\d*)?"
    ),
    ",": re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:[{SPACES}.]\d{{3}})+(?:,\d*)?"),
}
WITHOUT_EXPONENT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
PLAIN = re.compile(rf"(?:{WITHOUT_EXPONENT.pattern})(?:[eE][+-]?\d+)?")
CURRENCY = (
    r"(?:(?<![A-Za-z])[A-Z]{1,2})?[$£¥฿₠-⃀]"  # R$, US$
    r"|(?<![A-Za-z])(?:Rs\.?|[Kk]r\.?|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK"
    r"|HUF|RON|RUB|TRY|ILS|ZAR|BRL|MXN|KRW|TWD|HKD|SGD|THB|IDR)(?![A-Za-z])"
)
AFFIX = re.compile(rf"^(?:[{SPACES}]|{CURRENCY})+|(?:[{SPACES}%]|{CURRENCY})+$")
UNIT = re.compile(
    rf"[+-]?\d[\d.,{SPACES}]*?[{SPACES}]?((?:[°‰]|[^\W\d_])[^\d,.;:%-]{{0,11}}[23]?)"  # km/h, m2
)
#: Numbers that people write for "missing"; 999 and the like may be prices.
CODES = (-9.0, -99.0, -999.0, -9999.0, -99999.0)
#: Where no other words are: a frame has 1 and 0, a file True, TRUE or true.
TRUTH = {"false": 0.0, "true": 1.0}
#: In front of a number that was beyond what can be measured.
LIMIT = re.compile(rf"^[<>≤≥][=]?[{SPACES}]*(?=[\d.,$€£])")
NEGATIVE = re.compile(r"\(([^-+()]+)\)|(\d[^-+()]*[.,]\d+)-")
SIGN = re.compile(rf"^([+-])(?:[{SPACES}]|{CURRENCY})+")
DATE = re.compile(
    r"\d{1,4}[-/. ]\w{1,9}[-/., ]+\d{1,4}|[A-Za-z]{3,9} \d{1,2},? \d{4}"
    r"|\d{4}[-/]\d{1,2}$|\d{1,2}/\d{4}$|[A-Za-z]{3,9} \d{4}$"
)
CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d)?( ?[AaPp][Mm])?")
CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p")
#: Microseconds: nanoseconds, in pandas, end in the year 2262.
TIME = "datetime64[us, UTC]"
#: Ways of writing dates that one column may mix.
MOST_FORMS = 3
DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%y",
    "%m/%d/%y", "%d/%m/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%Y.%m.%d", "%m-%d-%Y", "%d-%b-%Y", "%d-%b-%y",
    "%Y-%m", "%Y/%m", "%m/%Y", "%b %Y", "%B %Y",
)  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
#: Dates of these years, the ends of calendars, are written where there is none: 9999-12-31.
NO_YEARS = (1, 9999)
#: Cycles of a date, in days: their phases are inputs beside the day itself.
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}


@dataclass(frozen=True)
class Number:
    """One input, (value - mean) / scale; ``missing``: a second input marks missing values.

    ``decimal`` is the sign in front of decimals where the column was text, ``unit`` the word behind
    its numbers, and ``code`` a number that stands for a missing one."""

    name: str
    mean: float
    scale: float
    missing: bool = False
    decimal: str = "."
    unit: str = ""
    code: float | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """How many inputs are values, flags and levels."""
        return 1, int(self.missing), 0

    def read(self, cells: pd.Series) -> pd.Series:
        """Finite numbers, NaN where there is none."""
        found = numbers(truths(cells), self.decimal, self.unit)
        return found if self.code is None else found.mask(found == self.code)


@dataclass(frozen=True)
class Date:
    """The day, and cosine and sine of its phase in the year, the week and the day, as inputs.

    ``parts`` maps each to mean and scale; ``format`` is pandas' (for text)."""

    name: str
    format: str
    parts: Mapping[str, tuple[float, float]]
    missing: bool = False

    @property
    def size(self) -> tuple[int, int, int]:
        """How many inputs are values, flags and levels."""
        return len(self.parts), int(self.missing), 0

    def read(self, cells: pd.Series) -> pd.Series:
        """Cells as dates; what is none is missing."""
        return known_dates(cells, self.format)


@dataclass(frozen=True)
class Category:
    """One input of 0 or 1 per level. Words of no level are OTHER where that is a level, and zero in
    all inputs otherwise."""

    name: str
    levels: tuple[str, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """How many inputs are values, flags and levels."""
        return 0, 0, len(self.levels)

    def read(self, cells: pd.Series) -> pd.Series:
        """One of the levels, OTHER or MISSING_LEVEL in every row."""
        own = {str(int(TRUTH[w.lower()])): w for w in self.levels if w.lower() in TRUTH}
        found = words(truths(cells)).replace(own) if len(own) == len(TRUTH) else words(cells)
        return found.where(found.isin(self.levels) | (found == MISSING_LEVEL), OTHER)


Column = Number | Date | Category
KINDS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in (Number, Date, Category)}


def to_json(column: Column) -> dict[str, Any]:
    """A column as plain values."""
    return {"kind": type(column).__name__.lower()} | asdict(column)


def from_json(value: Mapping[str, Any]) -> Column:
    """The column, or a ValueError that says what is wrong with it."""
    kind = KINDS[value["kind"]]
    found: Column = kind(**{k: v for k, v in value.items() if k != "kind"})
    if not isinstance(found.name, str):
        raise ValueError(f"a column is called {found.name!r}")
    if isinstance(found, Category):
        if not found.levels or not all(isinstance(level, str) for level in found.levels):
            raise ValueError(f"column {found.name!r} has no levels")
        return Category(found.name, tuple(found.levels))
    pairs = [(found.mean, found.scale)] if isinstance(found, Number) else found.parts.values()
    if not all(np.isfinite(float(m)) and 0 < float(s) < np.inf for m, s in pairs):
        raise ValueError(f"column {found.name!r} has no finite mean and scale")
    if isinstance(found, Number):
        if found.decimal not in GROUPED or not isinstance(found.missing, bool):
            raise ValueError(f"column {found.name!r} is damaged")
        if not isinstance(found.unit, str):
            raise ValueError(f"column {found.name!r} is damaged")
        code = None if found.code is None else float(found.code)
        return Number(
            found.name, float(found.mean), float(found.scale), found.missing, found.decimal,
            found.unit, code,
        )  # fmt: skip
    parts = {str(k): (float(m), float(s)) for k, (m, s) in found.parts.items()}
    return Date(found.name, str(found.format), parts, bool(found.missing))


def parse_number(cell: str, decimal: str = ".") -> float:
    """A number as people write it, NaN where it is none.

    >>> parse_number("$1,234.50"), parse_number("1.234,5", ","), parse_number("12 %")
    (1234.5, 1234.5, 12.0)
    >>> parse_number("-$5"), parse_number("(12 EUR)"), parse_number("<0.05"), parse_number("Rome")
    (-5.0, -12.0, 0.05, nan)
    >>> parse_number("R$ 5"), parse_number("12,34,567"), parse_number("1.234,50-", ",")
    (5.0, 1234567.0, -1234.5)
    """
    text = SIGN.sub(r"\1", AFFIX.sub("", LIMIT.sub("", cell)))
    if match := NEGATIVE.fullmatch(text):  # as accountants write it
        return -parse_number(match[1] or match[2], decimal)
    if GROUPED[decimal].fullmatch(text):
        text = re.sub(rf"[{SPACES}{',' if decimal == '.' else '.'}]", "", text)
    elif decimal == "," and "." in text:
        return np.nan
    text = text.replace(",", ".") if decimal == "," else text
    value = float(text) if PLAIN.fullmatch(text) else np.nan
    return value if np.isfinite(value) else np.nan


def common_unit(levels: Iterable[str]) -> str:
    """The word behind nearly all numbers, such as km; "" where there is none, or several.

    >>> common_unit(["8.3 km", "11 km", "?"]), common_unit(["5 km", "300 m"]), common_unit(["5 %"])
    ('km', '', '')
    """
    found = [match[1] for level in levels if (match := UNIT.fullmatch(level))]
    unit, count = Counter(found).most_common(1)[0] if found else ("", 0)
    written = sum(any(map(str.isdigit, level)) for level in levels)
    return unit if count >= MOST * written else ""


def codes(levels: Iterable[str]) -> list[str]:
    """Those with leading zeros, where all are digits: no quantities, unless these are padded. So
    are those with so many digits that some are the same float64.

    >>> codes(["012", "007", "340"]), codes(["007", "1.5"]), codes(["01", "12"])
    (['012', '007'], [], [])
    >>> codes(["120201234567890123", "120201234567890124"])[:1], codes(["120201234567890123"])
    (['120201234567890123'], [])
    """
    levels = list(levels)
    if not all(map(re.compile(r"\d+").fullmatch, levels)):
        return []
    long = [level for level in levels if len(level) > DIGITS]
    if len(set(map(float, long))) < len(long):
        return long
    return [level for level in levels if re.match(r"0\d\d", level)]


def why_codes(found: list[str]) -> str:
    """What makes codes of these, in words."""
    return "with leading zeros" if found[0][0] == "0" else f"of more than {DIGITS} digits"


def only_limits(levels: Iterable[str], unit: str = "") -> bool:
    """Whether limits are all the numbers there are: <30 and >30 then name groups.

    >>> only_limits(["<30", ">30", "NO"]), only_limits(["<0.05", "0.2"]), only_limits(["NO"])
    (True, False, False)
    """
    limits = {level for level in levels if LIMIT.match(level)}
    plain = (level.removesuffix(unit) for level in levels if level not in limits)
    return bool(limits) and not any(np.isfinite(parse_number(p, s)) for p in plain for s in ".,")


def missing_code(values: np.ndarray) -> float | None:
    """-999 and the like, where it is repeated and far below the other numbers: a code that stands
    for a missing number. Far is three times their range for -9 and -99, which may be measurements.

    >>> missing_code(np.array([1.5, 2.5, -999, 1.0, -999])), missing_code(np.array([1.0, -9, -8]))
    (-999.0, None)
    """
    for code in CODES:
        rest = values[values != code]
        repeated = len(values) - len(rest) >= 2 and len(rest) >= 2
        far = np.ptp(rest) * (3 if code >= -99 else 1) if repeated else 0.0
        if repeated and rest.min() - code > far > 0:
            return code
    return None


def decimal_comma(levels: Iterable[str]) -> bool | None:
    """Whether commas are decimal; None where 1,234 may be either or there is no comma.

    >>> decimal_comma(["1,5"]), decimal_comma(["1,500.2"]), decimal_comma(["1,500"])
    (True, False, None)
    >>> decimal_comma(["1,500", "0,126"])
    True
    """
    for level in levels:
        text = AFFIX.sub("", level)
        point, comma = (np.isfinite(parse_number(text, sign)) for sign in ".,")
        if point != comma and ("," in text or text.count(".") > 1):
            return bool(comma)
    return None


def comma_of_others(frame: pd.DataFrame) -> bool:
    """Whether commas are decimal in the columns that tell, for those that do not: 1,234."""
    text = (cells for _, cells in frame.items() if cells.dtype == "category")
    said = {decimal_comma(cells.cat.categories) for cells in text}
    return True in said and False not in said


def notation(cells: pd.Series, values: pd.Series, decimal: str, unit: str = "") -> list[str]:
    """How text was read as numbers, in words, each with a cell as an example."""
    if cells.dtype != "category":
        return []
    known = values.notna().to_numpy()
    value = dict(zip(cells[known], values[known], strict=True))
    levels, found = list(value), []

    def example(level: str) -> str:
        return f"({level} is {value[level]:.15g})"

    for level in [level for level in levels if "," in level][:1]:
        what = "decimals" if decimal == "," else "thousands"
        found.append(f"commas are read as {what} {example(level)}")
    for level in [level for level in levels if decimal == "," and "." in level and not found][:1]:
        found.append(f"points are read as thousands {example(level)}, since commas are decimal")
    signs: dict[str, str] = {}
    for level in levels:
        signs.setdefault(" ".join(re.findall(rf"%|{CURRENCY}", level)), level)
    named = [sign for sign in signs if sign]
    if named:
        said = f"{' and '.join(named[:4])} left out {example(signs[named[0]])}"
        if len(signs) > 1:
            other = "others have none" if "" in signs else "others differ"
            said += (
                f", and {other} ({signs['' if '' in signs else named[1]]}): do all values "
                "have the same unit?"
            )
        found.append(said)
    for level in [level for level in levels if "(" in level][:1]:
        found.append(f"parentheses are read as a minus {example(level)}")
    for level in [level for level in levels if re.search(r"\d-", level)][:1]:
        found.append(f"a minus behind a number is read as one in front {example(level)}")
    for level in [level for level in levels if LIMIT.match(level)][:1]:
        found.append(f"beyond a limit is read as the limit {example(level)}")
    for level in [level for level in levels if unit and level.endswith(unit)][:1]:
        found.append(f"{unit} left out {example(level)}")
    return found


def numbers(cells: pd.Series, decimal: str = ".", unit: str = "") -> pd.Series:
    """float64 with NaN for what is missing, infinite or no number, with or without its ``unit``."""
    if cells.dtype == np.float64:
        infinite = np.isinf(cells.to_numpy())
        return cells.mask(infinite) if infinite.any() else cells
    if cells.dtype != "category":  # dates, where numbers were expected
        return need_pandas().Series(np.nan, index=cells.index)

    def read(level: str) -> float:
        return parse_number(level.removesuffix(unit), decimal)

    return _by_level(cells, read).astype(np.float64)


def truths(cells: pd.Series) -> pd.Series:
    """True and false as 1 and 0, where there are no other words; else the cells as they are."""
    if cells.dtype != "category" or not {w.lower() for w in cells.cat.categories} <= set(TRUTH):
        return cells
    return _by_level(cells, lambda word: TRUTH[word.lower()]).astype(np.float64)


def dates(cells: pd.Series, form: str) -> pd.Series:
    """Times (UTC) with NaT for what is missing or is written otherwise than ``form``."""
    pd = need_pandas()
    if pd.api.types.is_datetime64_any_dtype(cells):
        return cells
    if cells.dtype == np.float64:
        return pd.Series(pd.NaT, index=cells.index, dtype=TIME)
    levels = cells.cat.categories
    read = _times(pd.Series(levels, dtype=object), form)
    return cells.map(dict(zip(levels, read, strict=True))).astype(TIME)


def known_dates(cells: pd.Series, form: str) -> pd.Series:
    """``dates``, and NaT where the end of a calendar stands for a missing one."""
    found = dates(cells, form)
    none = found.dt.year.isin(NO_YEARS)
    return found.mask(none) if none.any() else found


def words(cells: pd.Series) -> pd.Series:
    """Text, with one spelling for every number (1, 1.0 and 01 are the same level)."""
    if cells.dtype == np.float64:
        found = cells.map("{:.15g}".format, na_action="ignore")
    elif cells.dtype == "category":
        found = _by_level(cells, canonical)
    else:
        found = cells.astype(str).where(cells.notna())
    return found.astype(object).where(found.notna(), MISSING_LEVEL)


def canonical(word: str) -> str:
    """One spelling of a number; a code is none (1E2), nor is what float64 would round.

    >>> canonical("01"), canonical("1.50"), canonical("setosa"), canonical("1E2")
    ('1', '1.5', 'setosa', '1E2')
    """
    exact = word.isdecimal() and len(word) > DIGITS
    return f"{float(word):.15g}" if WITHOUT_EXPONENT.fullmatch(word) and not exact else word


def _times(words: pd.Series, form: str) -> pd.Series:
    """By the first of the forms (``form`` has bars between them) that reads a word."""
    pd = need_pandas()
    found = pd.Series(pd.NaT, index=words.index, dtype=TIME)
    for one in form.split("|"):
        read = pd.to_datetime(words, format=one, errors="coerce", utc=True)
        found = found.fillna(read.astype(found.dtype))
    return found


def date_format(levels: pd.Index) -> tuple[str, float]:
    """How dates are written here, and the share that is; ("", 0.0) where they are none. Where one
    way of writing does not do, others follow it behind bars."""
    pd = need_pandas()
    some = pd.Series(levels[:: max(1, len(levels) // 500)], dtype=object)
    if len(some) and some.str.fullmatch(CLOCK).mean() >= MOST:
        offered = list(CLOCKS)
    elif len(some) and some.str.match(DATE).mean() >= MOST:
        offered = [*(day + time for time in TIMES for day in DAYS), "ISO8601"]
    else:
        return "", 0.0
    forms, left = list[str](), some
    while len(left) and len(forms) < MOST_FORMS:
        read = {
            form: pd.to_datetime(left, format=form, errors="coerce", utc=True).notna()
            for form in offered
        }
        best = max(offered, key=lambda form: int(read[form].sum()))
        if not read[best].any():
            break
        forms.append(best)
        left = left[~read[best]]
        if len(left) <= (1 - MOST) * len(some):
            break
    return "|".join(forms), 1 - len(left) / max(1, len(some))


def phases(times: pd.Series) -> dict[str, pd.Series]:
    """The inputs that dates become, before they are standardised; days since 1970."""
    pd = need_pandas()
    days = (times - pd.Timestamp(0, tz="UTC").as_unit("s")) / pd.Timedelta(days=1).as_unit("s")
    found = {"days": days.astype(np.float64)}
    for name, length in CYCLES.items():
        for form, function in (("cos", np.cos), ("sin", np.sin)):
            found[f"{form} of {name}"] = function(2 * np.pi * found["days"] / length)
    return found


def mean_and_scale(values: np.ndarray) -> tuple[float, float] | None:
    """None where they do not vary. Divided by the largest first, so that squares neither overflow
    nor vanish."""
    largest = float(np.abs(values).max()) or 1.0
    small = values / largest
    mean, scale = float(small.mean()) * largest, float(small.std()) * largest
    return (mean, scale) if scale > 0 else None


def _by_level(cells: pd.Series, function: Any) -> pd.Series:
    return cells.map({level: function(level) for level in cells.cat.categories}).astype(object)
