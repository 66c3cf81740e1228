"""One fit per table and split, scored on the split's test rows; what is done is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.jobs import side_by_side
from lab.results import join_parts, open_results, write_results
from lab.uci.data import TABLES, load, split
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.data.table import Table, need_pandas
from natural_langevin.tabular.learned import CHUNK
from natural_langevin.tabular.recipe import learn
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.survey import fit_features


class UciError(ValueError):
    """Results of another configuration, or a table that there is not."""


def run(
    names: Sequence[str],
    out: Path,
    *,
    splits: int | None = None,
    only: Sequence[int] = (),
    settings: Settings | None = None,
    jobs: int = 1,
    device: str | None = None,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The content of ``out``, to which every fit is added as soon as it is done. ``splits``: the
    first so many of each table; ``only``: these, counted from 0. ``jobs``: processes, of one thread
    each where there are several."""
    settings = settings or Settings()
    wanted = pieces(names, splits=splits, only=only)
    results = open_results(out, settings.to_json(), [], UciError)
    done = {(row["table"], row["split"]) for row in results["rows"]}
    missing = [piece for piece in wanted if piece not in done]
    work = partial(_fit_piece, settings=settings, device=device, progress=progress and jobs == 1)
    for row in side_by_side(work, missing, jobs):
        results["rows"].append(row)
        results |= origin(device or "cpu")
        name, number = row["table"], row["split"]
        write_results(out, results)
        say(
            f"{name} {number + 1}/{TABLES[name].splits}: log-likelihood "
            f"{row['log_likelihood']:.3f}, RMSE {row['rmse']:.4g}, {row['seconds']:.1f} s"
        )
    results["rows"].sort(key=lambda row: (list(TABLES).index(row["table"]), row["split"]))
    write_results(out, results)
    return results


def _fit_piece(
    piece: tuple[str, int], settings: Settings, device: str | None, progress: bool
) -> dict[str, Any]:
    name, number = piece
    found = fit(split(load(name), number), settings, device=device, progress=progress)
    return {"table": name, "split": number} | found


def pieces(
    names: Sequence[str], *, splits: int | None = None, only: Sequence[int] = ()
) -> list[tuple[str, int]]:
    """Table and split of every fit that is asked for; a split that no table has is refused."""
    found = []
    for name in names:
        if name not in TABLES:
            raise UciError(f"there is no table {name!r}: choose from {', '.join(TABLES)}")
        count = TABLES[name].splits
        if strange := [number for number in only if not 0 <= number < count]:
            raise UciError(f"{name} has no split {strange[0]}: they are 0 to {count - 1}")
        found += [(name, number) for number in only or range(min(splits or count, count))]
    return found


def merge(folder: Path, out: Path) -> dict[str, Any]:
    """The files of ``folder``, each some of the fits, as one in ``out``: fits of one setting, on
    one version of the code."""
    results = join_parts(
        folder,
        same=("settings",),
        place=lambda row: (list(TABLES).index(row["table"]), row["split"]),
    )
    write_results(out, results)
    return results


def fit(
    parts: tuple[Any, ...], settings: Settings, *, device: str | None, progress: bool
) -> dict[str, Any]:
    """Test log-likelihood and root-mean-square error in the target's own units, as everybody gives
    them; seconds of the fit alone, by the clock and of the processors."""
    x, y, x_test, y_test = parts
    start, cpu = time.perf_counter(), time.process_time()
    frame = need_pandas().DataFrame
    train, test = (Table("x", frame(values).add_prefix("x"), "row") for values in (x, x_test))
    features = fit_features(train, named=False)
    learned = learn(
        features.encode(train).x,
        torch.as_tensor(y)[:, None],
        "regression",
        settings,
        device=device,
        progress=progress,
    )
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    inputs, log_p, errors = features.encode(test).x, [], []
    for part, own in zip(inputs.split(CHUNK), torch.as_tensor(y_test).split(CHUNK), strict=True):
        found = learned.predictive(part)
        log_p.append(found.log_prob(own))
        errors.append(found.mean - own.numpy())
    return {
        "log_likelihood": float(np.concatenate(log_p).mean()),
        "rmse": float(np.sqrt(np.square(np.concatenate(errors)).mean())),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "chosen": learned.reason,
    }
