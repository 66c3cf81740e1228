"""Scores as results.json holds them: mean, standard deviation and the values themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from natural_langevin import metrics
from natural_langevin.tabular.scoring import reliability

__all__ = ["finite", "reliability", "score", "sizes_up_to", "summary", "uncertain_inputs"]

Summary = dict[str, Any]


def summary(values: Sequence[float]) -> Summary:
    """{"mean", "std", "values"}; the standard deviation is the sample's, 0 for one value."""
    values = [float(v) for v in values]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": spread, "values": values}


def score(probabilities: Tensor, y: Tensor) -> dict[str, Summary]:
    """Scores of several predictors, (predictor, n, classes), against labels (n,)."""
    columns: dict[str, list[float]] = {"nll": [], "accuracy": [], "brier": [], "ece": []}
    for p in probabilities:
        columns["nll"].append(metrics.nll(p, y))
        columns["accuracy"].append(100 * metrics.accuracy(p, y))
        columns["brier"].append(metrics.brier(p, y))
        columns["ece"].append(metrics.expected_calibration_error(p, y))
    return {name: summary(values) for name, values in columns.items()}


def sizes_up_to(count: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... and the count itself."""
    sizes = [d * 10**e for e in range(6) for d in (1, 2, 5) if d * 10**e < count]
    return [*sizes, count]


def finite(values: Tensor) -> list[float | None]:
    """For JSON, which knows no NaN."""
    return [v if math.isfinite(v) else None for v in values.flatten().tolist()]


def uncertain_inputs(p: Tensor, entropy: Tensor, x: Tensor, y: Tensor) -> list[Any]:
    """The twelve inputs on which mean probabilities ``p`` (n, classes) are most uncertain: pixels.

    ``entropy`` (n,) is the mean entropy of the members: total minus it is the epistemic part.
    """
    total = torch.special.entr(p).sum(1)
    side = math.isqrt(x.shape[1])
    rows = []
    for index in total.topk(min(12, len(p))).indices.tolist():
        rows.append(
            {
                "index": index,
                "width": side,
                "height": x.shape[1] // side,
                "pixels": (x[index] * 255).round().int().tolist(),
                "label": int(y[index]),
                "probabilities": p[index].tolist(),
                "total": float(total[index]),
                "epistemic": float((total - entropy)[index].clamp_min(0)),
            }
        )
    return rows
