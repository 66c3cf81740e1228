"""Training: split, encode, learn, save, score. If killed, the same call continues."""

from __future__ import annotations

import itertools
import logging
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from natural_langevin._internal.atomic import remove_leftovers
from natural_langevin._internal.folder_lock import NAME as LOCK
from natural_langevin._internal.folder_lock import FolderInUseError, FolderLock
from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, short
from natural_langevin.data.tables import TrainingData
from natural_langevin.distributed import join
from natural_langevin.distributed.join import on_rank_zero
from natural_langevin.tabular import columns
from natural_langevin.tabular import run as folders
from natural_langevin.tabular.explain import permutation_importance
from natural_langevin.tabular.learned import Learned
from natural_langevin.tabular.outcome import check_size
from natural_langevin.tabular.quality import quality
from natural_langevin.tabular.recipe import CHUNK, learn, refit
from natural_langevin.tabular.run import OtherRunError, Run, RunFolderError
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.survey import fit_features
from natural_langevin.tabular.target import Target, find_target, fit_target, in_order

log = logging.getLogger("natural_langevin")

FEWEST_ROWS = 10
#: Held-out rows that answer all questions; to score more takes longer than to learn.
MOST_HELD_OUT = 20_000
#: Held-out rows in which columns are shuffled to see what each is good for: at most, of all columns
#: together, and at least.
MOST_SHUFFLED_ROWS, MOST_SHUFFLED, FEWEST_SHUFFLED_ROWS = 300, 12_000, 30
#: Classes of fewer rows than this are mentioned.
FEW_ROWS = 3
#: Rows that sum up others, where at most this share of a column's cells says so.
TOTAL = re.compile(
    r"(?i)((grand|sub|over)[ -]?)?total(s|e|i)?[ :]*|sums?|averages?|means?|summe|gesamt"
)
FEW_TOTALS = 0.05


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is known before the first step."""

    run: Run
    train: Table
    held_out: Table | None
    reason: str  # why this task


def prepare(
    data: TrainingData,
    *,
    source: str,
    task: str | None = None,
    categorical: frozenset[str] = frozenset(),
    skip_missing: bool = False,
    decimal_comma: bool = False,
    hold_out: float = 0.2,
    settings: Settings | None = None,
) -> Prepared:
    """Task, split, columns, and notes on the data."""
    settings = settings or Settings()
    if data.target in categorical:
        raise DataError(f"{data.target!r} is the target: use --task classification")
    _check_count(data.table)
    target, reason = find_target(data.table, data.target, task, decimal_comma=decimal_comma)
    table, notices = _rows_to_use(data.table, target, skip_missing)
    if not target.classes:
        cells = table.frame[target.name]
        values = columns.numbers(cells, target.decimal, target.unit)
        read = columns.notation(cells, values, target.decimal, target.unit)
        notices += [f"{target.name}: {what}" for what in read]
    _check_count(table)
    notices += _copies(table)
    train, held_out = table, data.test
    if target.classes:
        notices += _rare(target, table)
    if held_out is None:
        labels = target.encode(table).numpy() if target.classes else None
        inside, outside = split(len(table), hold_out, labels, settings.seed)
        train = table.take(inside)
        held_out = table.take(outside) if len(outside) else None
    target = fit_target(train, target)
    features = fit_features(
        train,
        targets=(target.name,),
        categorical=categorical,
        decimal_comma=decimal_comma,
        standardise=not data.pixels,
        named=data.named,
    )
    settings = settings.of_rows(len(train))
    check_size([features.width, *settings.layers, len(target.classes) or 1])
    run = Run(
        source=source,
        rows=(len(train), 0 if held_out is None else len(held_out)),
        features=features,
        target=target,
        settings=settings,
        hold_out=hold_out if data.test is None else 0.0,
        notices=(*data.notices, *notices),
    )
    return Prepared(run, train, held_out, reason)


def _check_count(table: Table) -> None:
    if len(table) < FEWEST_ROWS:
        raise DataError(
            f"{table.label} has {len(table)} rows to learn from, and learning needs at least "
            f"{FEWEST_ROWS}: add rows"
        )


def _rows_to_use(table: Table, target: Target, skip_missing: bool) -> tuple[Table, list[str]]:
    """Without rows that sum up others, that have no target and, with ``skip_missing``, without any
    that lack a cell."""
    table, notices = _without_totals(table, target.name)
    known = target.learned(table)
    if not known.all():
        first = table.where(int((~known).argmax()))
        lack = (~known).sum()
        notices.append(
            f"{lack:,} of {len(table):,} rows lack the target (first: {first}): left out"
        )
        table = table.take(np.flatnonzero(known))
    if skip_missing:
        complete = table.frame.notna().all(axis=1).to_numpy()
        if not complete.any():
            raise DataError(
                f"{table.label}: every one of its {len(table):,} rows lacks a cell: leave out "
                "--skip-missing, or the columns that are mostly empty (--drop)"
            )
        if not complete.all():
            notices.append(f"{(~complete).sum():,} rows lack a cell: left out (--skip-missing)")
        table = table.take(np.flatnonzero(complete))
    return table, notices


def _copies(table: Table) -> list[str]:
    """Whether rows are there several times that would hardly be by chance: a column of theirs is
    another in most rows that differ at all."""
    copied = table.frame.duplicated().to_numpy()
    rest = table.frame[~copied]
    if not copied.any() or 2 * int(rest.nunique().max()) < len(rest):
        return []
    first = table.where(int(copied.argmax()))
    return [
        f"{copied.sum():,} of {len(table):,} rows are copies of rows above them (first: {first}): "
        "held-out rows have copies that were learned from, so all that is said of how good and how "
        "sure it is would be too good; remove the copies"
    ]


def _without_totals(
    table: Table, target: str, learned: Collection[str] = ()
) -> tuple[Table, list[str]]:
    """Without rows in which a word says that they are the sum or mean of others; none of
    ``learned`` does, since rows with them were learned from."""
    notices, rest = list[str](), table
    for name in table.names:
        cells = rest.frame[name]
        if name == target or cells.dtype != "category":
            continue
        levels = cells.cat.categories.difference(learned)
        sums = [level for level in levels if TOTAL.fullmatch(level)]
        if in_order(cells.cat.categories) is not None:  # poor, average, good
            continue
        rows = cells.isin(sums).to_numpy()
        if 0 < rows.sum() <= max(1, FEW_TOTALS * len(rest)):
            first = int(rows.argmax())
            others = f" and {rows.sum() - 1:,} more" if rows.sum() > 1 else ""
            notices.append(
                f"{name}: {short(str(cells.iloc[first]))} ({rest.where(first)}{others}) is a "
                "total of other rows: left out (if it is an ordinary row, rename it)"
            )
            rest = rest.take(np.flatnonzero(~rows))
    return rest, notices


def _rare(target: Target, table: Table) -> list[str]:
    """Classes of so few rows that little can be learned of them."""
    counts = np.bincount(target.encode(table).numpy(), minlength=len(target.classes))
    rare = [f"{name} ({n})" for name, n in zip(target.classes, counts, strict=True) if n < FEW_ROWS]
    if not rare:
        return []
    shown = ", ".join(rare[:6]) + (", ..." if len(rare) > 6 else "")
    return [
        f"{target.name}: classes with fewer than {FEW_ROWS} rows are hardly learned, and one with "
        f"a single row is not tested: {shown}"
    ]


def split(
    rows: int, hold_out: float, labels: NDArray[np.int64] | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows held out (at most MOST_HELD_OUT), at random; each class in
    proportion where it can be, and a class of one row is learned rather than tested.

    >>> inside, outside = split(10, 0.2, np.array([0] * 5 + [1] * 5), seed=0)
    >>> len(inside), (outside // 5).tolist()
    (8, [0, 1])
    """
    from sklearn.model_selection import train_test_split

    if not 0 <= hold_out <= 0.9:
        raise DataError(f"--hold-out must be a fraction between 0 and 0.9, got {hold_out!r}")
    everything, count = np.arange(rows), min(MOST_HELD_OUT, int(rows * hold_out + 1e-9))
    if not count:
        return everything, everything[:0]
    several, strata = everything, None
    if labels is not None:
        several = everything[np.bincount(labels)[labels] > 1]
        kinds = len(np.unique(labels[several]))
        if kinds <= min(count, len(several) - count):
            strata = labels[several]
    count = min(count, len(several) - 1)
    outside = train_test_split(
        several, test_size=count, random_state=seed % 2**32, stratify=strata
    )[1]
    return np.setdiff1d(everything, outside), np.sort(outside)


def open_folder(folder: Path, run: Run, *, resume: bool, overwrite: bool = False) -> None:
    """Opens a new folder, one that holds the beginning of this run if ``resume``, or any run if
    ``overwrite``."""

    def opened() -> None:
        if overwrite and folders.is_run(folder):
            with FolderLock(folder, "training"):
                folders.remove(folder)
        _open_folder(folder, run, resume)

    on_rank_zero("opening the run's folder", opened)


def open_default_folder(folder: Path, run: Run, *, resume: bool) -> Path:
    """The same for the default folder: if another run uses it, the first of folder-2, folder-3, ...
    that is free (or, with ``resume``, that holds this run)."""
    name = on_rank_zero(
        "opening the run's folder", lambda: str(_open_first(folder, run, resume=resume))
    )
    return Path(join().exchange("the run's folder", name or "")[0])  # as the first process has it


def _open_first(folder: Path, run: Run, *, resume: bool) -> Path:
    refused: OtherRunError | FolderInUseError | None = None
    for number in itertools.count(1):
        chosen = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        if resume and refused is not None and not chosen.exists():
            raise refused  # there is nothing to go on with
        try:
            if folders.is_started(chosen):
                folders.check_same(chosen, run)
            _open_folder(chosen, run, resume)
        except (OtherRunError, FolderInUseError) as error:
            refused = refused or error
            continue
        if refused is not None:
            log.warning("%s; this run is kept in %s", refused, chosen)
        return chosen
    raise AssertionError("there is always a next number")


#: Run folders that are open at this process: nobody else writes there until ``fit`` is done.
_open: dict[Path, FolderLock] = {}


def _open_folder(folder: Path, run: Run, resume: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, "training")
    if folders.is_started(folder):
        if not resume:
            raise RunFolderError(
                f"{folder} already holds a run: continue it with --resume, replace it with "
                "--overwrite, or use another --out"
            )
        folders.check_same(folder, run)
    elif not folders.is_run(folder) and any(p.name != LOCK for p in folder.iterdir()):
        raise OtherRunError(f"{folder} exists and holds something else: use another --out")
    else:
        folders.write_run(folder, run)
    remove_leftovers(folder)
    _open[folder] = lock


def fit(prepared: Prepared, folder: Path, *, device: str, progress: bool = True) -> dict[str, Any]:
    """Learns, saves and scores: the content of quality.json. A finished run is only read. The
    folder is open to others when it ends.

    Every run of the recipe has a checkpoint; they are removed once all is saved."""
    try:
        return _fitted(prepared, folder, device, progress)
    finally:
        if (lock := _open.pop(folder, None)) is not None:
            lock.release()


def _fitted(prepared: Prepared, folder: Path, device: str, progress: bool) -> dict[str, Any]:
    if folders.is_finished(folder):
        return folders.read_quality(folder)
    run = prepared.run
    held_out = list(_batches(run, prepared.held_out))  # a bad row shows now, not after the run
    try:
        learned = learn(
            run.features.encode(prepared.train).x,
            run.target.encode(prepared.train),
            run.target.task,
            run.settings,
            classes=len(run.target.classes),
            time=run.features.time,
            device=device,
            progress=progress,
            checkpoint=folders.checkpoint_folder(folder),
        )
    except ValueError as error:  # settings that cannot be had, such as more chains than memory
        raise RunFolderError(str(error)) from error
    learned.save(folders.learned_folder(folder))
    label = f"held-out rows of {run.source}" if run.hold_out else f"{run.source}, test part"
    found = quality(learned, run.target, held_out, label=label, features=run.features)
    found |= {"reason": learned.reason, "choice": learned.choice}
    if found["rows"] and prepared.held_out is not None:
        found["importance"] = _importance(learned, run, prepared.held_out)
    if run.settings.refit and run.hold_out and prepared.held_out is not None:
        learned = _with_held_out(learned, prepared, folder, device, progress)
        learned.save(folders.learned_folder(folder))
        found["refit"] = sum(run.rows)
    on_rank_zero("writing down the quality", lambda: _finish(folder, found))
    return found


def _with_held_out(
    learned: Learned, prepared: Prepared, folder: Path, device: str, progress: bool
) -> Learned:
    """Learned from the rows that were held out too."""
    run, held_out = prepared.run, prepared.held_out
    assert held_out is not None
    parts = [prepared.train, _with_target(run, held_out)]
    return refit(
        learned,
        torch.cat([run.features.encode(part).x for part in parts]),
        torch.cat([run.target.encode(part) for part in parts]),
        device=device,
        progress=progress,
        checkpoint=folders.checkpoint_folder(folder) / "refit",
    )


def _importance(learned: Learned, run: Run, held_out: Table) -> list[dict[str, Any]]:
    """The importance of each column on held-out rows, the largest first; none for very many
    columns."""
    names = run.features.names
    rows = min(MOST_SHUFFLED_ROWS, MOST_SHUFFLED // len(names))
    if rows < FEWEST_SHUFFLED_ROWS:
        return []
    table = _with_target(run, held_out.take(np.arange(min(rows, len(held_out)))))
    if len(table) < 2:
        return []
    found = permutation_importance(learned, run.features, table, run.target.encode(table))
    order = np.argsort(-found.mean)
    return [
        {"column": names[k], "lost": float(found.mean[k]), "error": float(found.error[k])}
        for k in order
    ]


def _finish(folder: Path, found: dict[str, Any]) -> None:
    folders.write_quality(folder, found)
    shutil.rmtree(folders.checkpoint_folder(folder), ignore_errors=True)


def _batches(run: Run, table: Table | None) -> Iterator[tuple[Tensor, Tensor]]:
    for chunk in table.chunks(CHUNK) if table is not None else ():
        yield from labelled(run, chunk)


def _with_target(run: Run, chunk: Table) -> Table:
    known = [part.levels for part in run.features.parts if isinstance(part, columns.Category)]
    chunk, _ = _without_totals(chunk, run.target.name, {*itertools.chain(*known)})
    return chunk.take(np.flatnonzero(run.target.learned(chunk)))


def labelled(run: Run, chunk: Table) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of the rows that have both; a class must be one that was learned, and rows
    that sum up others are left out as in training."""
    chunk = _with_target(run, chunk)
    if len(chunk):
        encoded = run.features.encode(chunk)
        usable = np.flatnonzero(encoded.usable)
        yield encoded.x[usable], run.target.encode(chunk)[usable]
