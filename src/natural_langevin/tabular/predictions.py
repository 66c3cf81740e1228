"""Predictions as rows of a CSV file: streamed, so that files may be larger than memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Source, Table
from natural_langevin.data.tables import did_you_mean
from natural_langevin.tabular.columns import parse_number
from natural_langevin.tabular.recipe import Learned
from natural_langevin.tabular.run import Run
from natural_langevin.tabular.scoring import INTERVAL

#: What a formula begins with, also in full-width signs.
FORMULA = "=+-@\uff1d\uff0b\uff0d\uff20"
#: Rows predicted at a time.
CHUNK = 1000


def columns(run: Run, interval: float = INTERVAL, *, zero: bool = False) -> list[str]:
    """The columns that predictions have, in order.

    Classes: the most probable one, every class's probability, and entropies in nats. Numbers: mean,
    median and standard deviation, the ends of a central interval, and the deviation from the two
    sources; of counts and of amounts in two parts (``zero``) also the probability of 0.
    The last says what was odd about a row; one that cannot be predicted has nothing else.
    """
    if run.target.classes:
        probabilities = [f"p({name})" for name in run.target.classes]
        return ["prediction", *probabilities, "total", "aleatoric", "epistemic", "note"]
    low, high = (f"q{100 * level:g}" for level in ends(interval))
    parts = ["p(0)"] if zero else []
    return ["mean", "median", "sd", low, high, "aleatoric_sd", "epistemic_sd", *parts, "note"]


def ends(interval: float) -> tuple[float, float]:
    """The levels of a central interval's two ends.

    >>> ends(0.9)
    (0.05, 0.95)
    """
    if not 0 < interval < 1:
        raise DataError(f"--interval must lie strictly between 0 and 1, got {interval!r}")
    return round((1 - interval) / 2, 12), round((1 + interval) / 2, 12)


def write_predictions(
    learned: Learned,
    run: Run,
    source: Source,
    out: TextIO,
    *,
    keep: Sequence[str] = (),
    interval: float = INTERVAL,
    formulas: bool = False,
) -> tuple[int, int, int]:
    """Writes a header and one row per row of ``source``; returns how many there were, how many of
    them have a note, and how many could not be predicted.

    ``keep`` names columns of the source that are copied in front of the predictions. ``formulas``:
    text that a spreadsheet would take for a formula is written as it is."""
    run.features.check_columns(source.label, source.names)
    for name in keep:
        if name not in source.names:
            raise DataError(
                f"{source.label} has no column {name!r} to keep"
                f"{did_you_mean(name, tuple(source.names))}"
            )
    writer, shown = csv.writer(out, lineterminator="\n"), str if formulas else escaped
    header = columns(
        run, interval, zero=learned.outcome.two_parts or learned.outcome.task == "count"
    )
    writer.writerow(map(shown, [*keep, *header]))
    count = noted = unpredicted = 0
    for chunk in source.chunks(CHUNK):
        encoded = run.features.encode(chunk)
        x = encoded.x[np.flatnonzero(encoded.usable)]
        rows = iter(())  # type: Iterator[list[str]]
        if len(x):
            rows = _class_rows(learned, run, x) if run.target.classes else _number_rows(
                learned, x, ends(interval)
            )  # fmt: skip
        kept = zip(*(_text(chunk, name) for name in keep), strict=True) if keep else None
        for usable, note in zip(encoded.usable, encoded.notes, strict=True):
            row = next(rows) if usable else [""] * (len(header) - 1)
            cells = [*(next(kept) if kept is not None else ()), *row, note]
            writer.writerow(map(shown, cells))
            unpredicted += not usable
            noted += bool(note)
        count += len(chunk)
    return count, noted, unpredicted


def escaped(cell: str) -> str:
    """With an apostrophe in front where a spreadsheet would compute the cell; numbers stay.

    >>> escaped("=1+1"), escaped("-1.5"), escaped("-1,234.50"), escaped("@home"), escaped("rose")
    ("'=1+1", '-1.5', '-1,234.50', "'@home", 'rose')
    """
    first = cell.lstrip()[:1]
    if not first or first not in FORMULA or any(np.isfinite(parse_number(cell, s)) for s in ".,"):
        return cell
    return cell if cell in ("-inf", "+inf") else f"'{cell}"


def _text(chunk: Table, name: str) -> list[str]:
    cells = chunk.frame[name]
    if cells.dtype == np.float64:
        return ["" if np.isnan(value) else f"{value:.15g}" for value in cells]
    if cells.dtype.kind == "M":  # as it was read, without the zone that all times have inside
        cells = cells.dt.tz_localize(None)
        midnight = bool((cells.dropna() == cells.dropna().dt.normalize()).all())
        cells = cells.dt.strftime("%Y-%m-%d" if midnight else "%Y-%m-%dT%H:%M:%S")
    return ["" if value is None or value != value else str(value) for value in cells]


def _class_rows(learned: Learned, run: Run, x: Tensor) -> Iterator[list[str]]:
    p, epistemic = learned.uncertainty(x)
    total = torch.special.entr(p).sum(-1)
    values = torch.cat([p, torch.stack([total, total - epistemic, epistemic], 1)], 1)
    for index, row in zip(p.argmax(1).tolist(), values.tolist(), strict=True):
        yield [run.target.classes[index], *(f"{value:.6g}" for value in row)]


def _number_rows(learned: Learned, x: Tensor, levels: tuple[float, float]) -> Iterator[list[str]]:
    p = learned.predictive(x)
    low, middle, high = (p.quantile(level) for level in (levels[0], 0.5, levels[1]))
    spreads = np.sqrt(p.aleatoric), np.sqrt(p.epistemic)
    parts = [] if p.zero is None else [p.zero]
    for row in np.stack([p.mean, middle, p.std, low, high, *spreads, *parts], 1).tolist():
        yield [f"{value:.7g}" for value in row]
