"""Training: split, encode, sample, save, score. Killed at any moment, the same call goes on."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from natural_langevin._internal.atomic import remove_leftovers
from natural_langevin._internal.folder_lock import NAME as LOCK
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table
from natural_langevin.data.tables import TrainingData
from natural_langevin.distributed.rank_zero import on_rank_zero
from natural_langevin.tabular import run as folders
from natural_langevin.tabular.features import fit_features
from natural_langevin.tabular.quality import quality
from natural_langevin.tabular.run import Run, RunFolderError
from natural_langevin.tabular.settings import check_seed, choose_settings, sampler
from natural_langevin.tabular.target import find_task, fit_classes, fit_target

FEWEST_ROWS = 10
CHUNK = 1000


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is known before the first step."""

    run: Run
    train: Table
    held_out: Table | None
    reason: str  # why this task
    skipped: int = 0  # rows that lacked a cell and were left out


def prepare(
    data: TrainingData,
    *,
    source: str,
    task: str | None = None,
    categorical: frozenset[str] = frozenset(),
    hold_out: float = 0.2,
    standardise: bool | None = None,
    seed: int = 0,
    **settings: Any,
) -> Prepared:
    """Task, split, columns, network and settings. ``settings`` are those of choose_settings."""
    table, target = data.table, data.target
    if len(table) < FEWEST_ROWS:
        raise DataError(
            f"{table.label} has {len(table)} rows, and learning needs at least {FEWEST_ROWS}"
        )
    found, reason = find_task(table, target, task)
    classes = fit_classes(table, target) if found == "classification" else ()
    train, held_out = table, data.test
    if held_out is None:
        labels = fit_target(table, target, classes).encode(table).numpy() if classes else None
        inside, outside = split(len(table), hold_out, labels, seed)
        train = table.take(inside)
        held_out = table.take(outside) if len(outside) else None
    features = fit_features(
        train,
        target=target,
        categorical=categorical,
        standardise=not data.pixels if standardise is None else standardise,
    )
    run = Run(
        source=source,
        rows=(len(train), 0 if held_out is None else len(held_out)),
        features=features,
        target=fit_target(train, target, classes),
        settings=choose_settings(len(train), seed=seed, **settings),
        hold_out=hold_out if data.test is None else 0.0,
    )
    return Prepared(run, train, held_out, reason, data.skipped)


def split(
    rows: int, hold_out: float, labels: NDArray[np.int64] | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on and rows held out, at random; each class in proportion (stratified).

    >>> inside, outside = split(10, 0.2, np.array([0] * 5 + [1] * 5), seed=0)
    >>> len(inside), (outside // 5).tolist()
    (8, [0, 1])
    """
    if not 0 <= hold_out <= 0.9:
        raise DataError(f"--hold-out must be a fraction between 0 and 0.9, got {hold_out!r}")
    order = np.random.default_rng(check_seed(seed)).permutation(rows)
    groups = [order] if labels is None else [order[labels[order] == k] for k in np.unique(labels)]
    # Rounded down, so that a class of one row is learned rather than tested.
    outside = np.concatenate([group[: int(len(group) * hold_out + 1e-9)] for group in groups])
    return np.setdiff1d(order, outside), np.sort(outside)


def open_folder(folder: Path, run: Run, *, resume: bool) -> None:
    """The folder is new, or holds the beginning of this very run and ``resume`` was said."""
    on_rank_zero("opening the run's folder", lambda: _open_folder(folder, run, resume))


#: Run folders that are open at this process: nobody else writes there until ``fit`` is done.
_open: dict[Path, FolderLock] = {}


def _open_folder(folder: Path, run: Run, resume: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, "training")
    if folders.is_started(folder):
        if not resume:
            raise RunFolderError(
                f"{folder} holds a run already: go on with it with --resume, or use another --out"
            )
        folders.check_same(folder, run)
    elif not folders.is_run(folder) and any(p.name != LOCK for p in folder.iterdir()):
        raise RunFolderError(f"{folder} exists and holds something else: use another --out")
    else:
        folders.write_json(folder / "run.json", run.to_json())
    remove_leftovers(folder)
    _open[folder] = lock


def _closes_folder(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """However the function ends, its folder is left to others."""

    @functools.wraps(function)
    def closing(prepared: Prepared, folder: Path, **options: Any) -> dict[str, Any]:
        try:
            return function(prepared, folder, **options)
        finally:
            if (lock := _open.pop(folder, None)) is not None:
                lock.release()

    return closing


@_closes_folder
def fit(prepared: Prepared, folder: Path, *, device: str, progress: bool = True) -> dict[str, Any]:
    """Samples, saves and scores: the content of quality.json. A finished run is only read.

    Checkpoints are written some fifty times along the run, and removed once it is saved."""
    if folders.is_finished(folder):
        return folders.read_quality(folder)
    run, settings = prepared.run, prepared.run.settings
    data = (run.features.encode(prepared.train), run.target.encode(prepared.train))
    held_out = list(_batches(run, prepared.held_out))  # a bad row shows now, not after the run
    try:
        posterior = sampler(settings, run.features.width, run.target, device).sample(
            data,
            steps=settings.steps,
            batch_size=settings.batch_size,
            burn_in=settings.burn_in,
            thin=settings.thin,
            checkpoint=folders.checkpoint_folder(folder),
            every=max(1, settings.steps // 50),
            progress=progress,
        )
    except ValueError as error:  # settings that cannot be had, such as more chains than memory
        raise RunFolderError(str(error)) from error
    posterior.save(folders.posterior_folder(folder))
    label = f"held-out rows of {run.source}" if run.hold_out else f"{run.source}, test part"
    found = quality(posterior, run.target, held_out, label=label)
    found["step_size"] = posterior.config.get("pilot", {}).get("reason", "")
    on_rank_zero("writing down the quality", lambda: _finish(folder, found))
    return found


def _finish(folder: Path, found: dict[str, Any]) -> None:
    folders.write_json(folder / "quality.json", found)
    shutil.rmtree(folders.checkpoint_folder(folder), ignore_errors=True)


def _batches(run: Run, table: Table | None) -> Iterator[tuple[Tensor, Tensor]]:
    for chunk in table.chunks(CHUNK) if table is not None else ():
        yield run.features.encode(chunk), run.target.encode(chunk)
