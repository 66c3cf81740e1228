"""Predictions as rows of a CSV file: streamed, so that files may be larger than memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import TextIO

import torch
from torch import Tensor

from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Source
from natural_langevin.likelihoods import mixtures
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.run import Run
from natural_langevin.tabular.scoring import INTERVAL, noise_of_networks

#: Rows predicted at a time.
CHUNK = 1000


def columns(run: Run, interval: float = INTERVAL) -> list[str]:
    """The columns that predictions have, in order.

    Classes: the most probable one, every class's probability, and entropies in nats. Numbers: mean
    and standard deviation, the ends of a central interval, and the deviation from the two sources.
    """
    if run.target.classes:
        probabilities = [f"p({name})" for name in run.target.classes]
        return ["prediction", *probabilities, "total", "aleatoric", "epistemic"]
    low, high = (f"q{100 * level:g}" for level in ends(interval))
    return ["mean", "sd", low, high, "aleatoric_sd", "epistemic_sd"]


def ends(interval: float) -> tuple[float, float]:
    """The levels of a central interval's two ends.

    >>> ends(0.9)
    (0.05, 0.95)
    """
    if not 0 < interval < 1:
        raise DataError(f"--interval must lie strictly between 0 and 1, got {interval!r}")
    return round((1 - interval) / 2, 12), round((1 + interval) / 2, 12)


def write_predictions(
    posterior: Posterior,
    run: Run,
    source: Source,
    out: TextIO,
    *,
    keep: Sequence[str] = (),
    interval: float = INTERVAL,
) -> int:
    """Writes a header and one row per row of ``source``, and returns how many.

    ``keep`` names columns of the source that are copied in front of the predictions."""
    label = getattr(source, "label", "the input")
    run.features.check_columns(label, source.names)
    for name in keep:
        if name not in source.names:
            raise DataError(f"{label} has no column {name!r} to keep")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keep, *columns(run, interval)])
    noise = None if run.target.classes else noise_of_networks(posterior)
    count = 0
    for chunk in source.chunks(CHUNK):
        x = run.features.encode(chunk)
        if noise is None:
            rows = _class_rows(posterior, run, x)
        else:
            rows = _number_rows(posterior, run, x, noise, ends(interval))
        kept = zip(*(chunk.cells(name) for name in keep), strict=True) if keep else None
        for row in rows:
            writer.writerow([*next(kept), *row] if kept is not None else row)
        count += len(chunk)
    return count


def _class_rows(posterior: Posterior, run: Run, x: Tensor) -> Iterator[list[str]]:
    p = posterior.predict(x, keep_samples=False)
    assert p.total is not None
    assert p.aleatoric is not None
    best = p.mean.argmax(1).tolist()
    values = torch.cat([p.mean, torch.stack([p.total, p.aleatoric, p.epistemic], 1)], 1)
    for index, row in zip(best, values.tolist(), strict=True):
        yield [run.target.classes[index], *(f"{value:.6g}" for value in row)]


def _number_rows(
    posterior: Posterior, run: Run, x: Tensor, noise: Tensor, levels: tuple[float, float]
) -> Iterator[list[str]]:
    p = posterior.predict(x)
    assert p.samples is not None
    assert p.total is not None
    assert p.aleatoric is not None
    mean, scale = run.target.mean, run.target.scale
    quantiles = [mixtures.quantile(level, p.samples[..., 0], noise) for level in levels]
    places = [p.mean[:, 0].double(), *quantiles]
    spreads = [v[:, 0].double().sqrt() * scale for v in (p.total, p.aleatoric, p.epistemic)]
    middle, low, high = (mean + scale * v for v in places)
    table = torch.stack([middle, spreads[0], low, high, *spreads[1:]], 1)
    for row in table.tolist():
        yield [f"{value:.7g}" for value in row]
