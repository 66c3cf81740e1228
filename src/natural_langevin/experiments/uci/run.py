"""One fit per table and split, scored on the split's test rows; what is done is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from natural_langevin._internal.atomic import output
from natural_langevin._internal.checked_json import read_json
from natural_langevin.data.table import Table, need_pandas
from natural_langevin.experiments.origin import origin
from natural_langevin.experiments.uci.data import TABLES, load, split
from natural_langevin.tabular.recipe import CHUNK, learn
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.survey import fit_features


class UciError(ValueError):
    """Results of another configuration, or a table that there is not."""


def run(
    names: Sequence[str],
    out: Path,
    *,
    splits: int | None = None,
    settings: Settings | None = None,
    device: str | None = None,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The content of ``out``, to which every fit is added as soon as it is done. ``splits``: the
    first so many of each table."""
    settings = settings or Settings()
    for name in names:
        if name not in TABLES:
            raise UciError(f"there is no table {name!r}: choose from {', '.join(TABLES)}")
    results: dict[str, Any] = {"settings": settings.to_json(), "rows": []}
    known: list[tuple[str, int]] = []
    if out.exists():
        try:
            results = read_json(out)
            known = [(row["table"], row["split"]) for row in results["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UciError(f"{out} holds no results ({error}): give another --out") from None
        if results.get("settings") != json.loads(json.dumps(settings.to_json())):
            raise UciError(f"{out} holds results of other settings: give another --out")
    done = set(known)
    for name in names:
        arrays, count = load(name), TABLES[name].splits
        for number in range(count if splits is None else min(splits, count)):
            if (name, number) in done:
                continue
            row = fit(split(arrays, number), settings, device=device, progress=progress)
            row = {"table": name, "split": number} | row
            results["rows"].append(row)
            results |= origin(device or "cpu")
            with output(out) as handle:
                handle.write(json.dumps(results, indent=1, allow_nan=False).encode())
            say(
                f"{name} {number + 1}/{count}: log-likelihood {row['log_likelihood']:.3f}, RMSE "
                f"{row['rmse']:.4g}, {row['seconds']:.1f} s"
            )
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
