"""The target: classes, ordered classes, counts or a real number, with the reason in words."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, short
from natural_langevin.metrics import blind
from natural_langevin.tabular import columns
from natural_langevin.tabular.columns import MISSING_LEVEL

#: Whole numbers of at most this many different values are taken for classes, unless there are more
#: than this many which begin too high for numbers of classes, or of which a fifth is hardly there.
FEW_VALUES, VERY_FEW, HIGH, HARDLY = 20, 5, 10, 3
MOST_CLASSES = 500
TASKS = ("classification", "regression", "count", "ordinal")
#: Whole numbers from 0 on are counts where the largest is at most this and the most are small.
MOST_COUNTED = 1000
#: Words whose order is known.
SCALES = (
    ("very low", "low", "medium low", "medium", "medium high", "high", "very high"),
    ("low", "moderate", "high", "extreme", "critical"),
    ("low", "mid", "high"),
    ("xs", "s", "m", "l", "xl", "xxl"),
    ("tiny", "small", "medium", "large", "huge"),
    ("never", "rarely", "seldom", "sometimes", "often", "usually", "always"),
    ("very bad", "bad", "poor", "fair", "average", "good", "very good", "great", "excellent"),
    ("poor", "fair", "ok", "good", "very good", "excellent", "outstanding"),
    ("none", "mild", "moderate", "severe", "very severe"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("very dissatisfied", "dissatisfied", "neutral", "satisfied", "very satisfied"),
    ("bronze", "silver", "gold", "platinum"),
    ("beginner", "intermediate", "advanced", "expert"),
    ("first", "second", "third", "fourth", "fifth"),
)


@dataclass(frozen=True)
class Target:
    """``classes`` are the names of a classification's (or, in order, of an ordinal target's)
    classes, () otherwise, and ``shares`` the fraction of training rows in each; a regression is
    sampled on (y - mean) / scale, with both from the training rows. ``decimal`` is the sign in
    front of decimals where numbers are text, and ``unit`` the word behind them. ``amounts``: of
    numbers of which none is negative the share above 0, mean and deviation of their logarithms."""

    name: str
    classes: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    task: str = "classification"
    decimal: str = "."
    unit: str = ""
    amounts: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def guess(self) -> blind.Guess:
        """What the training rows say of a number without its inputs."""
        known = (self.mean, self.scale, *self.amounts)
        return blind.Guess(*(torch.tensor([v], dtype=torch.float64) for v in known))

    def known(self, table: Table) -> np.ndarray:
        """Which rows have a target at all."""
        cells = table.frame[self.name]
        return (cells if self.classes else self._numbers(cells)).notna().to_numpy()

    def learned(self, table: Table) -> np.ndarray:
        """Which rows have a target that can be scored: of classes, one that was learned."""
        known = self.known(table)
        if not self.classes:
            return known
        found: np.ndarray = columns.words(table.frame[self.name]).isin(self._index()).to_numpy()
        return known & found

    def _index(self) -> dict[str, int]:
        """The number of every class, whichever way its own number is written: 7 and 007 are one."""
        return {columns.canonical(name): i for i, name in enumerate(self.classes)}

    def _numbers(self, cells: Any) -> Any:
        return columns.numbers(cells, self.decimal, self.unit)

    def encode(self, table: Table) -> Tensor:
        """(rows,) int64 class indices, or (rows, 1) float64 values in their own units, of a table
        in which every target is one that was ``learned``."""
        cells = table.frame[self.name]
        if not self.classes:
            return torch.from_numpy(self._numbers(cells).to_numpy().copy())[:, None]
        index = self._index()
        return torch.tensor([index[word] for word in columns.words(cells)], dtype=torch.int64)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for run.json."""
        lists = {k: list(getattr(self, k)) for k in ("classes", "shares", "amounts")}
        return asdict(self) | lists

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Target:
        """The target of a run.json; a ``ValueError`` says what is wrong with it."""
        target = Target(
            str(value["name"]),
            tuple(map(str, value["classes"])),
            tuple(map(float, value["shares"])),
            float(value["mean"]),
            float(value["scale"]),
            str(value["task"]),
            str(value["decimal"]),
            str(value.get("unit", "")),
            _three(value.get("amounts", (0.0, 0.0, 0.0))),
        )
        if not (np.isfinite(target.mean) and 0 < target.scale < np.inf):
            raise ValueError("the target has no finite mean and scale")
        if len(target.shares) != len(target.classes) or target.task not in TASKS:
            raise ValueError("the target needs a task, and a share for every class")
        if bool(target.classes) != (target.task in ("classification", "ordinal")):
            raise ValueError(f"a {target.task} has {len(target.classes)} classes")
        if target.decimal not in columns.GROUPED:
            raise ValueError(f"decimal is {target.decimal!r}")
        return target


def find_target(
    table: Table, name: str, asked: str | None = None, *, decimal_comma: bool = False
) -> tuple[Target, str]:
    """The task and its classes, from all rows, and the reason for it. A column of text that can be
    read as numbers but for some cells is refused, with the first of them. ``decimal_comma``: 1,234
    is less than two; otherwise the other columns tell."""
    if asked is not None and asked not in TASKS:
        raise DataError(f"--task must be {' or '.join(TASKS)}, got {asked!r}")
    cells = table.frame[name].dropna()
    if not len(cells):
        raise DataError(
            f"the target {name!r} is missing in all {len(table)} rows: fill it in, or choose "
            "another column (--target)"
        )
    decimal, unit = ".", ""
    if cells.dtype == "category":
        levels = cells.cat.remove_unused_categories().cat.categories
        unit = columns.common_unit(levels)
        own = columns.decimal_comma(level.removesuffix(unit) for level in levels)
        comma = columns.comma_of_others(table.frame) if own is None else own
        decimal = "," if decimal_comma or comma else "."
    values = columns.numbers(cells, decimal, unit)
    if cells.dtype == "category" and columns.only_limits(levels, unit):
        values = values * np.nan
    strange = values.isna().to_numpy()
    if strange.any():
        row = table.frame.index.get_loc(cells.index[strange.argmax()])
        first = f"{short(str(cells[strange].iloc[0]))} ({table.where(row)})"
    if strange.all() and len(strange) and asked in ("regression", "count"):
        raise DataError(
            f"the target {name!r} holds words such as {first}, and a {asked} needs numbers: write "
            "only digits, leave --task out, or choose another column (--target)"
        )
    if strange.any() and not strange.all() and asked in (None, "regression", "count"):
        count = f", in {strange.sum():,} of {len(strange):,} rows" if strange.sum() > 1 else ""
        raise DataError(
            f"the target {name!r} holds numbers, but also {first}{count}: correct such cells or "
            "empty them (a row without a target is left out), or say that these are names of "
            "classes (--task classification)"
        )
    task, reason = (asked, "as you said") if asked else _task(name, values.to_numpy(), strange)
    coded = columns.codes(levels) if cells.dtype == "category" else []
    if coded and not asked and len(levels) <= min(FEW_VALUES, len(cells) // 2):
        task, reason = "classification", f"{name} holds codes {columns.why_codes(coded)}"
    if task in ("classification", "ordinal"):
        return Target(name, _classes(table, name, cells, task), task=task), reason
    if task == "count":
        _check_counts(name, values)
    return Target(name, task=task, decimal=decimal, unit=unit), reason


def are_counts(values: np.ndarray, fewest: int = FEW_VALUES) -> bool:
    """Whether these are whole numbers from 0 on, more different ones than ``fewest`` (too many for
    classes), at most MOST_COUNTED and on average below a third of the largest.

    >>> many = np.concatenate([np.zeros(30), np.arange(30)])
    >>> are_counts(many), are_counts(np.arange(30)), are_counts(many + 1)
    (True, False, False)
    """
    distinct = np.unique(values)
    counted = distinct[0] == 0 and distinct[-1] <= MOST_COUNTED and len(distinct) > fewest
    small = float(np.mean(values)) < distinct[-1] / 3
    return bool(counted and small and (distinct == np.round(distinct)).all())


def _name_classes(values: np.ndarray) -> bool:
    """Whether whole numbers are names of classes: few different ones, each more than once on
    average, and no quantities, which begin anywhere and thin out.

    >>> _name_classes(np.arange(8) % 4), _name_classes(90 + np.arange(99) % 9)
    (True, False)
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > min(FEW_VALUES, len(values) // 2):
        return False
    thin = (counts < HARDLY).mean() >= 0.2 and distinct[0] == 0
    return len(distinct) <= VERY_FEW or not (distinct[0] >= HIGH or thin)


#: Of two values, and of more.
_OTHERWISE = (
    "are quantities: --task regression",
    "count something: --task count; have an order: --task ordinal; are other quantities: --task "
    "regression",
)


def _task(name: str, values: np.ndarray, strange: np.ndarray) -> tuple[str, str]:
    if strange.any():
        return "classification", f"{name} holds words"
    distinct = np.unique(values)
    if (distinct != np.round(distinct)).any():
        return "regression", f"{name} holds numbers with decimals"
    if _name_classes(values):
        reason = f"{name} holds only {len(distinct)} different whole numbers"
        return "classification", f"{reason} (if they {_OTHERWISE[len(distinct) > 2]})"
    if are_counts(values, fewest=VERY_FEW):
        reason = f"{name} holds whole numbers from 0 on, most of them small, as counts do"
        return "count", f"{reason} (if they are not counts: --task regression)"
    names = " (if they name classes: --task classification)" * (len(distinct) <= FEW_VALUES)
    return "regression", f"{name} holds {len(distinct)} different numbers{names}"


def _check_counts(name: str, values: Any) -> None:
    wrong = (values < 0) | (values != np.round(values))
    if wrong.any():
        raise DataError(
            f"the target {name!r} holds {values[wrong].iloc[0]:g}, and counts are 0, 1, 2, ...: "
            "use --task regression"
        )


def _classes(table: Table, name: str, cells: Any, task: str) -> tuple[str, ...]:
    """The classes of all rows, held out or not, in the order of numbers, of a known scale (low,
    medium, high) or of the alphabet, which is no order for an ordinal target."""
    classes = set(columns.words(cells)) - {MISSING_LEVEL}
    if len(classes) < 2:
        raise DataError(
            f"the target {name!r} is {short(classes.pop())} in all {len(table)} rows, one class "
            "only: there is nothing to learn; choose another column (--target), or add rows of "
            "other classes"
        )
    if len(classes) > min(MOST_CLASSES, len(table) // 2):
        raise DataError(
            f"the target {name!r} has {len(classes)} different values in {len(table)} rows, such "
            f"as {short(str(cells.iloc[0]))}: too many for classes; choose another column, or "
            "write numbers with digits only (and --task regression)"
        )
    if cells.dtype == "category":  # with the leading zeros that they have
        written = {columns.canonical(code): code for code in columns.codes(cells.unique())}
        classes = {written.get(word, word) for word in classes}
    found = in_order(classes)
    if found is None and task == "ordinal":
        raise DataError(
            f"the target {name!r} holds {', '.join(map(short, sorted(classes)[:4]))}"
            f"{', ...' * (len(classes) > 4)}, whose order is not known: write the number of each "
            "in front (1 small, 2 large), or use --task classification"
        )
    return found or tuple(sorted(classes))


def in_order(words: Collection[str]) -> tuple[str, ...] | None:
    """Numbers, words with numbers in front, or words of a known scale, from low to high; None where
    the order is not known.

    >>> in_order(["high", "Low", "medium"]), in_order(["10-19", "5-9"]), in_order(["ash", "oak"])
    (('Low', 'medium', 'high'), ('5-9', '10-19'), None)
    """
    front = {word: re.match(r"[<≤]?\s*([+-]?\d+(?:\.\d+)?)", word) for word in words}
    values = {word: columns.parse_number(word) for word in words}
    if np.isfinite(list(values.values())).all() and len(set(values.values())) == len(words):
        return tuple(sorted(words, key=values.__getitem__))
    if all(front.values()):
        first = {word: float(match[1]) for word, match in front.items() if match}
        if len(set(first.values())) == len(words):
            return tuple(sorted(words, key=first.__getitem__))
    plain = {word: re.sub(r"[\s_-]+", " ", word.strip().lower()) for word in words}
    for scale in SCALES:
        if set(plain.values()) <= set(scale) and len(set(plain.values())) == len(words):
            return tuple(sorted(words, key=lambda word: scale.index(plain[word])))
    return None


def fit_target(train: Table, target: Target) -> Target:
    """With shares, or mean and scale, of the training rows."""
    found = asdict(target)
    y = target.encode(train)
    if target.classes:
        shares = torch.bincount(y, minlength=len(target.classes)) / len(y)
        return Target(**found | {"shares": tuple(shares.tolist())})
    values = y.numpy()[:, 0]
    size = columns.mean_and_scale(values)
    if size is None or not size[1] < np.inf:
        raise DataError(
            f"the target {target.name!r} is {values[0]:g} in every row: there is nothing to learn; "
            "choose another column (--target)"
        )
    guess = blind.Guess.of(y)
    amounts = tuple(map(float, guess[2:])) if guess.share > 0 else (0.0, 0.0, 0.0)
    return Target(**found | {"mean": size[0], "scale": size[1], "amounts": amounts})


def _three(values: Any) -> tuple[float, float, float]:
    share, mean, deviation = map(float, values)
    if not (0 <= share <= 1 and np.isfinite(mean) and 0 <= deviation < np.inf):
        raise ValueError(f"amounts cannot be {values!r:.80}")
    return share, mean, deviation
