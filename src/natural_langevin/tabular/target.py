"""The target: classes or a real number, found from the column, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Chunk, Table, parse_numbers, short

#: Whole numbers of at most this many different values are taken for classes.
FEW_VALUES = 20
MOST_CLASSES = 500
TASKS = ("classification", "regression")


@dataclass(frozen=True)
class Target:
    """``classes`` are the names of a classification's classes, () for a regression, and
    ``shares`` the fraction of training rows in each; a regression is sampled on
    (y - mean) / scale, with both from the training rows."""

    name: str
    classes: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @property
    def task(self) -> str:
        return "classification" if self.classes else "regression"

    @property
    def outputs(self) -> int:
        return len(self.classes) or 1

    def encode(self, chunk: Chunk) -> Tensor:
        """(rows,) int64 class indices, or (rows, 1) float32 standardised values."""
        if not self.classes:
            values = (chunk.numbers(self.name).astype(np.float64) - self.mean) / self.scale
            return torch.from_numpy(values.astype(np.float32)[:, None])
        index = {name: i for i, name in enumerate(self.classes)}
        words = chunk.words(self.name)
        codes = torch.tensor([index.get(_canonical(word), -1) for word in words])
        if (codes < 0).any():
            row = int((codes < 0).int().argmax())
            known = ", ".join(self.classes[:8]) + (", ..." if len(self.classes) > 8 else "")
            raise DataError(
                f"{chunk.where(row)}: the target {self.name!r} is {short(words[row])}, which is "
                f"none of the classes {known}: correct it, or remove the row"
            )
        return codes

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "classes": list(self.classes),
            "shares": list(self.shares),
            "mean": self.mean,
            "scale": self.scale,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Target:
        target = Target(
            str(value["name"]),
            tuple(map(str, value["classes"])),
            tuple(map(float, value["shares"])),
            float(value["mean"]),
            float(value["scale"]),
        )
        if not (np.isfinite(target.mean) and 0 < target.scale < np.inf):
            raise ValueError("the target has no finite mean and scale")
        if len(target.shares) != len(target.classes):
            raise ValueError("the target needs a share for every class")
        return target


def _canonical(word: str) -> str:
    """1, 1.0 and 01 are the same class.

    >>> _canonical("01"), _canonical("1.50"), _canonical("setosa")
    ('1', '1.5', 'setosa')
    """
    return word if parse_numbers([word]) is None else f"{float(word):.15g}"


def find_task(table: Table, name: str, asked: str | None = None) -> tuple[str, str]:
    """The task and the reason for it."""
    if asked is not None:
        if asked not in TASKS:
            raise DataError(f"--task must be {' or '.join(TASKS)}, got {asked!r}")
        return asked, "as you said"
    column = table.columns[name]
    if column.odd:
        raise DataError(
            f"the target {name!r} holds numbers, but also {column.odd}: correct that cell, or say "
            "that these are names of classes (--task classification)"
        )
    if column.values is None:
        return "classification", f"{name} holds words"
    values = table.numbers(name)
    distinct = np.unique(values)
    if (distinct != np.round(distinct)).any():
        return "regression", f"{name} holds numbers with decimals"
    if len(distinct) <= FEW_VALUES:
        reason = f"{name} holds only {len(distinct)} different whole numbers"
        return "classification", f"{reason} (if they are quantities: --task regression)"
    return "regression", f"{name} holds {len(distinct)} different numbers"


def fit_classes(table: Table, name: str) -> tuple[str, ...]:
    """The classes of all rows, held out or not, in the order of numbers or of the alphabet."""
    classes = {_canonical(word) for word in table.words(name)}
    if len(classes) < 2:
        raise DataError(
            f"the target {name!r} is {short(classes.pop())} in all {len(table)} rows, one class "
            "only: there is nothing to learn; choose another column (--target), or add rows of "
            "other classes"
        )
    if len(classes) > min(MOST_CLASSES, len(table) // 2):
        raise DataError(
            f"the target {name!r} has {len(classes)} different values in {len(table)} rows: too "
            "many for classes; choose another column, or --task regression for numbers"
        )
    numbers = all(parse_numbers([word]) is not None for word in classes)
    return tuple(sorted(classes, key=float) if numbers else sorted(classes))


def fit_target(train: Table, name: str, classes: tuple[str, ...]) -> Target:
    """From the training rows; ``classes`` is () for a regression."""
    if classes:
        y = Target(name, classes).encode(train)
        shares = torch.bincount(y, minlength=len(classes)) / len(y)
        return Target(name, classes, tuple(shares.tolist()))
    column = train.columns[name]
    if column.values is None and not column.odd:
        raise DataError(
            f"the target {name!r} holds words such as {short(column.levels[0])}, and a regression "
            "needs numbers: leave --task out, or choose another column (--target)"
        )
    values = train.numbers(name).astype(np.float64)
    largest = float(np.abs(values).max()) or 1.0
    small = values / largest
    mean, scale = float(small.mean()) * largest, float(small.std()) * largest
    if not 0 < scale < np.inf:
        raise DataError(
            f"the target {name!r} is {values[0]:g} in every row: there is nothing to learn; choose "
            "another column (--target)"
        )
    return Target(name, (), (), mean, scale)
