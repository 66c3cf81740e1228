"""The scale of the prior, chosen on held-out rows: folds and scales are the chains of one run.

Weights have the prior N(0, s gain^2 / fan_in). Every scale s runs on every fold's training rows,
and is scored by -ln of its predictive density on the rows held out, averaged over the draws of the
run's second half. If other scales are not clearly worse than the best, these continue for as long
again and are scored once more. The scale of the lowest score is chosen, or one between it and the
next wider, by interpolation. The same rows also calibrate the predictions (see
``posterior.calibration``): the sharpness for classes, the spread of the networks for numbers with
learned noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.recipe.settings import PriorTrial


class Folds(NamedTuple):
    """Which rows each chain learns from, and which it is scored on: (chain, rows)."""

    inside: Tensor
    outside: Tensor


def folds(count: int, seed: int, chains: int, used: int, scales: int, rule: PriorTrial) -> Folds:
    """A line for every chain of every one of ``scales`` on every fold: the ``chains`` of scale 0 on
    fold 0, those of scale 0 on fold 1, ...; ``used``: how many of the folds. Not by scikit-learn's
    ``KFold``, which ``import natural_langevin`` does without."""
    key = random.stream(random.origin(seed, random.HELD_OUT, torch.zeros(1)), 0)
    order = random.permutation(key, count)[0]
    size, upto = min(count // rule.folds, rule.most_held_out), count - count % rule.folds
    outside = [order[k * size : (k + 1) * size] for k in range(used)]
    inside = [torch.cat([order[: k * size], order[(k + 1) * size : upto]]) for k in range(used)]
    lines = [torch.stack(rows).repeat_interleave(chains, 0) for rows in (inside, outside)]
    return Folds(*(rows.repeat(scales, 1) for rows in lines))


def bounded(scores: Tensor, rule: PriorTrial) -> Tensor:
    """-ln density (scale, row) of rows held out, each at most ``most_above`` nats above the median
    of all: otherwise a few outliers, which no network predicts, would select a prior under which
    none predicts anything. A NaN counts as such an outlier. A scale with an infinite entry, whose
    chains diverged, is infinite."""
    known, lost = scores.isfinite(), scores.isinf()
    if not bool(known.any()):
        return torch.full_like(scores, math.inf)
    most = float(scores[known].median()) + rule.most_above
    limited = scores.nan_to_num(nan=most, posinf=most).clamp_max(most)
    return limited.masked_fill(lost.any(1, keepdim=True), math.inf)


def means(scores: Tensor, rule: PriorTrial) -> list[float]:
    """Of every scale, over the rows held out, ``bounded``."""
    return bounded(scores, rule).mean(1).tolist()


def near(scores: Tensor, rule: PriorTrial) -> list[int]:
    """The scales that are not clearly worse than the best, on the same rows."""
    each = bounded(scores, rule)
    behind = each - each[each.mean(1).argmin()]
    error = behind.std(1) / each.shape[1] ** 0.5
    close = behind.mean(1) <= (rule.errors * error).clamp_min(rule.behind)
    found: list[int] = close.nonzero().flatten().tolist()  # none that is not finite
    return found


def best(scores: dict[float, float], rule: PriorTrial) -> tuple[float, float, str]:
    """The best scale tried, the scale between it and its neighbours where a parabola in ln s
    through their three scores is lowest, and why. ``scores``: mean -ln density on held-out rows by
    scale. Not a narrower one: a trial has fewer rows, chains and steps than the run, each of which
    speaks against wide priors."""
    order = sorted(scores)
    found = min(order, key=scores.__getitem__)
    if not math.isfinite(scores[found]):
        found = 1.0
    scale, k = found, order.index(found)
    if 0 < k < len(order) - 1:
        down, up = (scores[order[j]] - scores[found] for j in (k - 1, k + 1))
        if math.isfinite(down + up):
            scale *= rule.factor ** max(0.0, 0.5 * (down - up) / max(down + up, 1e-12))
    said = ", ".join(f"{scores[s]:.3f} at {s:g}" for s in order)
    return found, scale, f"held-out NLL by variance, in units of 2 / fan-in: {said}"
