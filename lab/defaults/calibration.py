"""How far predictions are from calibrated, kept so that the test rows of several splits can be put
together: the error of one small test set is mostly chance.

Of classes the mean gap between confidence and accuracy over bins of confidence; of numbers the mean
distance of central intervals' coverage from their level. Both need no more than counts:

* classes: of every occupied bin its ``rows``, their mean ``confidence``, and how many are ``right``
* numbers: how many of the ``rows`` are ``inside`` the interval of each level
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natural_langevin.metrics import reliability
from natural_langevin.metrics.summary import LEVELS

BINS = 15
#: How often outcomes are drawn from predictions, to see what calibrated ones would score.
DRAWN = 2000
Counts = dict[str, Any]


def of_classes(probabilities: Tensor, y: Tensor) -> Counts:
    """Counts of class probabilities (n, classes) against labels (n,)."""
    found = reliability(probabilities, y, bins=BINS)
    return {
        "rows": found.count.tolist(),
        "confidence": found.confidence.tolist(),
        "right": (found.accuracy * found.count).round().long().tolist(),
    }


def of_numbers(below: Tensor) -> Counts:
    """Counts of predictive distribution functions at their targets, F_n(y_n): (n,)."""
    off_centre = (2 * below.double() - 1).abs()
    return of_coverage({v: float((off_centre <= v).double().mean()) for v in LEVELS}, len(below))


def of_coverage(coverage: dict[float, float], rows: int) -> Counts:
    """Counts of the parts of ``rows`` that are inside the interval of each level."""
    return {"rows": rows, "inside": {f"{k:g}": round(v * rows) for k, v in coverage.items()}}


def error(parts: Sequence[Counts]) -> float:
    """The calibration error of all rows of these counts together.

    >>> error([{"rows": 10, "inside": {"0.5": 7}}, {"rows": 10, "inside": {"0.5": 4}}])
    0.05
    """
    rows, expected, happened = _pooled(parts)
    return float(_gap(rows, expected, happened))


def if_calibrated(parts: Sequence[Counts]) -> float:
    """The error that is expected of these very predictions if they are right: outcomes are drawn
    from them, ``DRAWN`` times, rows of one bin with their mean confidence."""
    rows, expected, _ = _pooled(parts)
    draws = np.random.default_rng(0).binomial(rows, expected, (DRAWN, len(rows)))
    return float(_gap(rows, expected, draws).mean())


def _gap(rows: np.ndarray, expected: np.ndarray, happened: np.ndarray) -> Any:
    """Mean of |expected - happened / rows| over bins or levels, weighed by their rows."""
    return np.abs(rows * expected - happened).sum(-1) / rows.sum()


def _pooled(parts: Sequence[Counts]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, expected share and number of what happened, of every bin or level: (bin,) each."""
    if "inside" in parts[0]:
        levels = list(parts[0]["inside"])
        inside = [sum(part["inside"][level] for part in parts) for level in levels]
        rows = sum(part["rows"] for part in parts)
        return np.full(len(levels), rows), np.array([float(v) for v in levels]), np.array(inside)
    rows, stated, right = (
        torch.tensor([v for part in parts for v in part[k]], dtype=torch.float64)
        for k in ("rows", "confidence", "right")
    )
    bin_of = (stated * BINS).long().clamp(0, BINS - 1)  # of a bin's mean: the bin itself
    count, confidence, happened = (
        torch.bincount(bin_of, weights=w, minlength=BINS) for w in (rows, rows * stated, right)
    )
    some = count > 0
    share = (confidence / count)[some].clamp_max(1)
    return count[some].long().numpy(), share.numpy(), happened[some].numpy()
