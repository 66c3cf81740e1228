"""Scores as results.json holds them: mean, standard deviation and the values themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from natural_langevin import metrics
from natural_langevin.tabular.scoring import reliability

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


def row(
    method: str,
    estimate: str,
    label: str,
    predict: Callable[[str], Tensor],
    scored: dict[str, tuple[Tensor, Tensor]],
    *,
    settings: dict[str, Any],
    seconds: Sequence[float],
    paper: bool = False,
    note: str | None = None,
) -> dict[str, Any]:
    """A row of the table. ``predict``: class probabilities (predictor, n, classes) on a scored set,
    by its name."""
    return {
        "method": method,
        "estimate": estimate,
        "label": label,
        "group": "paper" if paper else "extra",
        "note": note,
        "settings": settings,
        "seconds": summary(seconds),
        **{name: score(predict(name), y) for name, (_, y) in scored.items()},
    }


def curve(method: str, label: str, steps: list[int], losses: Tensor) -> dict[str, Any]:
    """The mean training loss (look, network) along the steps."""
    return {"method": method, "label": label, "step": steps, "loss": finite(losses.mean(1))}


def diagram(method: str, estimate: str, label: str, p: Tensor, y: Tensor) -> dict[str, Any]:
    """A reliability diagram of probabilities (n, classes)."""
    return {"method": method, "estimate": estimate, "label": label, **reliability(p, y)}


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
