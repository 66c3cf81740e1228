"""The scale of the prior, chosen on held-out rows: folds and scales are the chains of one run.

Weights have the prior N(0, s gain^2 / fan_in). Every scale s runs on every fold's training rows,
and is scored by -ln of its predictive density on the rows held out, averaged over the draws of the
run's second half. Chosen is the scale with the lowest score; ties of less than a standard error go
to the middle one, s = 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin import random

#: Variances in units of the default's.
SCALES = (0.2, 1.0, 5.0, 25.0, 125.0)
FOLDS, FEWEST_ROWS, MOST_ROWS = 3, 40, 4000
STEPS, EAGER_STEPS, DRAWS = 1_500, 500, 30


class Folds(NamedTuple):
    """Which rows each chain learns from, and which it is scored on: (chain, rows)."""

    inside: Tensor
    outside: Tensor


def folds(count: int, seed: int) -> Folds:
    """A line for every scale of every fold: scale 0 on fold 0, scale 0 on fold 1, ..."""
    key = random.stream(random.origin(seed, random.HELD_OUT, torch.zeros(1)), 0)
    order = random.permutation(key, count)[0]
    size = count // FOLDS
    outside = [order[k * size : (k + 1) * size] for k in range(FOLDS)]
    inside = [
        torch.cat([order[: k * size], order[(k + 1) * size : FOLDS * size]]) for k in range(FOLDS)
    ]
    every = len(SCALES)
    return Folds(torch.stack(inside).repeat(every, 1), torch.stack(outside).repeat(every, 1))


def best(scores: Tensor) -> tuple[int, str]:
    """The index of the chosen scale, and why. ``scores``: -ln density, (scale, held-out row)."""
    mean = scores.mean(1)
    usual = SCALES.index(1.0)
    found = int(torch.where(torch.isfinite(mean), mean, math.inf).argmin())
    gain = scores[usual] - scores[found]
    error = float(gain.std() / math.sqrt(len(gain))) if len(gain) > 1 else math.inf
    if found != usual and float(gain.mean()) < error:
        found = usual
    said = ", ".join(f"{float(m):.3f} at {s:g}" for s, m in zip(SCALES, mean, strict=True))
    return found, f"held-out NLL by variance, in units of 2 / fan-in: {said}"
