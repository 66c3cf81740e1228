"""A table by its name: a file (CSV, Excel, Parquet, NPZ of x and y), standard input, a dataset."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from natural_langevin.data import frame_files
from natural_langevin.data.csv_file import MOST_COLUMNS, UNNAMED, CsvFile
from natural_langevin.data.errors import DataError
from natural_langevin.data.images import NAMES, load
from natural_langevin.data.npz import read_npz
from natural_langevin.data.table import WORDS, Source, Table, compact, need_pandas

ARRAY_TARGET = "y"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows to learn from and, where the source has its own, rows to test on."""

    table: Table
    test: Table | None
    target: str
    pixels: bool = False  # all in [0, 1] already: not to be standardised
    named: bool = True  # columns have names that say something
    notices: tuple[str, ...] = ()  # what was done to read the file


def read_training(
    name: str, *, target: str | None, drop: frozenset[str] = frozenset()
) -> TrainingData:
    """The data called ``name`` with its target column, all in memory."""
    kind = _kind(name)
    if kind == "dataset":
        found = load(name)
        return TrainingData(
            _arrays(f"{name} (training part)", found.train_x.numpy(), found.train_y.numpy()),
            _arrays(f"{name} (test part)", found.test_x.numpy(), found.test_y.numpy()),
            ARRAY_TARGET,
            pixels=True,
            named=False,
        )
    if kind == "npz":
        table = _npz(name, with_target=True)
        target = target or ARRAY_TARGET
        _check_names(name, table.names, target, drop)
        frame = table.frame.drop(columns=sorted(drop))
        return TrainingData(replace(table, frame=frame), None, target, named=False)
    if kind == "frame":
        table, notices = frame_files.read(name, target=target)
        _check_names(name, table.names, target, drop)
        table = replace(table, frame=table.frame.drop(columns=sorted(drop)))
        said = _settle_words(table, str(target), set())
        return TrainingData(table, None, str(target), notices=(*notices, *said))
    with _csv(name, target) as file:
        _check_names(name, file.names, target, drop)
        table = file.table(skip=drop)
        said = _settle_words(table, str(target), file.among_numbers)
        return TrainingData(table, None, str(target), notices=(*file.notices, *said))


def _settle_words(table: Table, target: str, among_numbers: set[str]) -> list[str]:
    """Whether a target's "none" or "NA" is a class among words, or a missing cell: that it is
    among numbers, in the target or in a column of them. Says which, and changes ``table`` so."""
    cells = table.frame[target]
    doubtful = [] if cells.dtype != "category" else [
        level for level in cells.cat.categories if level.lower() in WORDS
    ]  # fmt: skip
    if not doubtful:
        return []
    others = [level for level in cells.cat.categories if level not in doubtful]
    words = not any(level.lstrip("+-(<>=.,$€£ ")[:1].isdigit() for level in others)
    said = []
    for level in doubtful:
        count = f"{target}: {level!r} in {(cells == level).sum():,} of {len(table):,} rows is taken"
        if words and level.lower() not in among_numbers:
            said.append(f"{count} as a class (if the target is missing there, clear these cells)")
            continue
        table.frame[target] = table.frame[target].cat.remove_categories(level)
        if words:
            said.append(f"{count} as missing, as it is among the numbers of other columns")
    return said


def did_you_mean(name: str, names: tuple[str, ...]) -> str:
    """The end of an error about a name that is not there.

    >>> did_you_mean("Species", ("sepal", "species")), did_you_mean("x", ("sepal",))
    (": did you mean 'species'?", ': it has sepal')
    """
    lower = {known.lower(): known for known in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    if close:
        return f": did you mean {lower[close[0]]!r}?"
    return f": it has {', '.join(names[:20])}{', ...' * (len(names) > 20)}"


@contextlib.contextmanager
def open_source(name: str, *, target: str | None = None) -> Iterator[Source]:
    """The table called ``name``, to be read in chunks; a dataset gives its test part.

    ``target`` is the column that must be there as well, if any."""
    kind = _kind(name)
    if kind == "csv":
        with _csv(name, target) as file:
            yield file
    elif kind == "npz":
        yield _npz(name, with_target=target is not None)
    elif kind == "frame":
        yield frame_files.read(name, target=target)[0]
    else:
        found = load(name)
        yield _arrays(f"{name} (test part)", found.test_x.numpy(), found.test_y.numpy())


def _kind(name: str) -> str:
    if name == "-":
        return "csv"
    if Path(name).exists():
        if frame_files.kind_of(name) is not None:
            return "frame"
        return "npz" if name.lower().endswith(".npz") else "csv"
    datasets = [known for known in NAMES if known != "auto"]
    if name in datasets:
        return "dataset"
    raise DataError(
        f"there is no file {name!r}: give a CSV, Excel, Parquet or NPZ file, - for standard input, "
        f"or one of {', '.join(datasets)}"
    )


def _csv(name: str, target: str | None = None) -> CsvFile:
    if name == "-":
        return CsvFile(sys.stdin.buffer, label="standard input", target=target)
    return CsvFile(name, label=os.path.basename(name), target=target)


def _check_names(
    label: str, names: tuple[str, ...], target: str | None, drop: frozenset[str]
) -> None:
    """The target is there and stays, and what is to be left out is there."""
    label = os.path.basename(label)
    if target is None:
        shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise DataError(f"{label}: which column is to be predicted? --target with one of {shown}")
    if target not in names:
        hint = did_you_mean(target, names)
        if sum(not name.startswith(UNNAMED) for name in names) == 1:
            hint += " alone: is line 1 a title? Then remove what is above the header; cells are "
            hint += "separated by a comma, semicolon, tab or bar"
        raise DataError(f"{label}: there is no column {target!r} (--target){hint}")
    for column in sorted(drop - set(names)):
        raise DataError(
            f"{label} has no column {column!r} to leave out (--drop){did_you_mean(column, names)}"
        )
    if target in drop:
        raise DataError(f"{target!r} is the target and cannot be left out: drop others")


def _npz(path: str, *, with_target: bool) -> Table:
    label = os.path.basename(path)
    arrays = read_npz(path, ("x", "y") if with_target else ("x",))
    x, y = arrays["x"], arrays.get("y")
    if x.dtype.kind in "SU" or x.ndim < 1 or 0 in x.shape:
        raise DataError(f"{label}: x must be numbers of shape (rows, columns), got {x.shape}")
    x = x.reshape(len(x), -1)
    if x.shape[1] > MOST_COLUMNS:
        raise DataError(
            f"{label}: x has {x.shape[1]:,} columns, more than {MOST_COLUMNS:,}: select some"
        )
    if y is None:
        return _arrays(label, x, None)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (len(x),):
        raise DataError(f"{label}: y must have one value per row of x, {len(x)}, got {y.shape}")
    return _arrays(label, x, _words(y, label) if y.dtype.kind in "SU" else y)


def _words(y: NDArray[Any], label: str) -> list[str]:
    try:
        return [v.decode("utf-8") if isinstance(v, bytes) else str(v) for v in y]
    except ValueError:  # a code point or byte that is no character
        raise DataError(f"{label}: y holds text that is not valid Unicode: save it again") from None


def _arrays(label: str, x: NDArray[Any], y: NDArray[Any] | list[str] | None) -> Table:
    """A table of x0, x1, ... and y."""
    pd = need_pandas()
    numbers = x.astype(np.float64)
    columns: dict[str, Any] = {f"x{i}": numbers[:, i] for i in range(numbers.shape[1])}
    if isinstance(y, list):
        columns[ARRAY_TARGET] = compact(pd.Series(y, dtype=object))
    elif y is not None:
        columns[ARRAY_TARGET] = y.astype(np.float64)
    return Table(label, pd.DataFrame(columns), "row")
