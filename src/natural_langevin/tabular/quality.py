"""quality.json: scores on labelled rows, what they look like as pictures, and a diagnosis."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.version import __version__
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.tabular.columns import Category, Number
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.run import FORMAT
from natural_langevin.tabular.scoring import Predictor, of_slice, scorer
from natural_langevin.tabular.sureness import warnings
from natural_langevin.tabular.target import Target

#: R-hat and effective sample size are looked at on this many rows.
PROBES = 40
#: The loss of every chain is kept as at most this many points.
TRACE_POINTS = 400

Batches = Iterable[tuple[Tensor, Tensor]]


def quality(
    predictor: Predictor,
    target: Target,
    batches: Batches,
    *,
    label: str,
    features: Features | None = None,
) -> dict[str, Any]:
    """Scores and diagnosis on encoded rows (x, y); without any, the diagnosis' place is empty. With
    ``features`` also the calibration by columns."""
    posterior = predictor.best
    scores, probes, rows = scorer(predictor, target), list[Tensor](), 0
    by_column = ColumnSlices(features) if features is not None else None
    for x, y in batches:
        hit, said = scores.add(x, y)
        if by_column is not None:
            by_column.add(x, hit, said)
        probes.append(predictor.inputs(x[: max(0, PROBES - rows)]))
        rows += len(x)
    head = {
        "format": FORMAT,
        "version": __version__,
        "data": label,
        "rows": rows,
        "task": "classification" if target.classes else "regression",
        "trace": trace(posterior),
    }
    if not rows:
        return head | {"diagnosis": None}
    found = scores.result()
    if by_column is not None:
        found["column_slices"] = by_column.result()
    for kind in ("scores", "baseline", "chance"):  # JSON knows no infinity
        found[kind] = {k: v if math.isfinite(v) else None for k, v in found[kind].items()}
    verdict = diagnosis(posterior, torch.cat(probes))
    if features is not None:
        verdict["verdicts"] = [_for_the_command(said) for said in verdict["verdicts"]]
    verdict["verdicts"] = [*warnings(found | {"rows": rows}), *verdict["verdicts"]]
    return head | found | {"diagnosis": verdict}


def _for_the_command(said: str) -> str:
    """A verdict with options of ``train`` where it has arguments of Python; the recipe has chosen
    the step size, and leaves out a chain that diverged."""
    said = re.sub(
        r"(diverged at step [\d,]+): use a smaller step size", r"\1, and is left out", said
    )
    said = re.sub(r"steps=(\d+)( or until=\"ess:400\")?", r"--steps \1", said)
    return said.replace(", or leave step_size out, so that it is chosen", "")


def diagnosis(posterior: Posterior, x: Tensor) -> dict[str, Any]:
    """``summary`` in one sentence, and ``verdicts``: what is suspicious and what to do about it."""
    try:
        found = posterior.diagnose(x)
    except (ImportError, ValueError) as error:  # no ArviZ, or too few draws to say anything
        return {"summary": f"Not diagnosed: {error}.", "verdicts": []}
    chains = f"{found.chains} chains of {found.draws} draws"
    summary = f"Convergence of {chains}, the view of largest weight:"
    return {"summary": summary, "verdicts": list(found.verdicts)}


def trace(posterior: Posterior) -> dict[str, Any]:
    """Minibatch losses along the run, one list per chain; None where a chain had stopped."""
    rows = posterior.trace
    kept = rows[:: max(1, math.ceil(len(rows) / TRACE_POINTS))]
    losses = [[v if math.isfinite(v) else None for v in column.tolist()] for column in kept.T[1:]]
    return {"step": [int(step) for step in kept[:, 0].tolist()], "loss": losses}


#: Beyond this many slices, the columns that come later are not looked at.
MOST_SLICES = 200


class ColumnSlices:
    """Calibration by column, as a model that is calibrated on average need not be in a slice: the
    rows of every category, above and below every number's mean, and without a value.

    Sums over the rows of every slice, batch by batch: their number, how often the truth was hit,
    the probability p of that as it was said, and its variance p (1 - p)."""

    def __init__(self, features: Features) -> None:
        #: Name, input and sign: the rows where sign * input > 0.
        self._slices: list[tuple[str, int, int]] = []
        for part, (value, missing, levels) in features.places():
            if isinstance(part, Category):
                names = enumerate(part.levels, levels)
                self._slices += [(f"{part.name} {level}", k, 1) for k, level in names]
                continue
            if isinstance(part, Number) and (part.mean, part.scale) != (0.0, 1.0):
                mean = f"{part.mean:.4g}"
                self._slices.append((f"{part.name} below {mean}", value, -1))
                self._slices.append((f"{part.name} above {mean}", value, 1))
            if part.missing:
                self._slices.append((f"missing {part.name}", missing, 1))
        self._slices = self._slices[:MOST_SLICES]
        self._sums = torch.zeros(len(self._slices), 4, dtype=torch.float64)

    def add(self, x: Tensor, hit: Tensor, said: Tensor) -> None:
        """Adds rows: inputs (n, width), whether the truth was hit (n,), and its probability."""
        if not self._slices:
            return
        _, place, sign = zip(*self._slices, strict=True)
        inside = (x[:, list(place)] * torch.tensor(sign) > 0).double()
        said = said.double()
        columns = [torch.ones_like(said), hit.double(), said, said * (1 - said)]
        self._sums += inside.T @ torch.stack(columns, 1)

    def result(self) -> list[dict[str, Any]]:
        """Every slice that has rows (``of_slice``); a predictor that ran away says NaN."""
        every = zip(self._slices, self._sums.tolist(), strict=True)
        return [
            of_slice(name, int(rows), *sums)
            for (name, *_), (rows, *sums) in every
            if rows and not math.isnan(sums[1])
        ]
