"""The scale of the prior, chosen on held-out rows: folds and scales are the chains of one run.

Weights have the prior N(0, s gain^2 / fan_in). Every scale s runs on every fold's training rows,
and is scored by -ln of its predictive density on the rows held out, averaged over the draws of the
run's second half. Where another scale is not clearly behind the best, these run on as long again,
and are scored anew. Chosen is the scale of the lowest score, between those that were tried; where
the widest of them wins, the next one is tried beside it, once. Of classes, the same rows then say
how much sharper the mixture of the best scale's chains should be (see ``posterior.sharpening``),
of numbers with learned noise how far the networks should be from their mean (``posterior.spread``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.metrics import TemperatureScaling, nll

#: Variances in units of the default's.
SCALES = (0.2, 1.0, 5.0, 25.0)
#: Where steps have no engine (see ``cost``), and no further ones are tried.
COSTLY_SCALES = (1.0, 5.0, 25.0, 125.0)
STEP = 5.0
#: By so many nats per row the widest must be ahead for the next one to be tried.
AHEAD = 0.01
#: By so many nats per row, and so many errors of that, a scale is clearly behind the best.
BEHIND, ERRORS = 0.02, 2.0
#: Nats that a row counts at most, above the median row.
MOST_ABOVE = 10.0
FOLDS, FEWEST_ROWS = 3, 40
#: Rows of a fold that are held out at most: more would not tell more.
MOST_HELD_OUT = 1333


class Trial(NamedTuple):
    """How long a scale is tried, with how many chains on every fold: a wide prior has more
    solutions than one chain finds, and the run that follows has several."""

    steps: int
    chains: int
    draws: int
    folds: int = FOLDS
    rounds: int = 1  # with the scales in question alone from the second one on

    def affordable(self, work: float, most: float) -> Trial | None:
        """The same with half the rounds or steps, and then with fewer chains, where it would take
        more than ``most`` operations; None where one chain is too many. ``work``: of a step with
        one chain on every fold."""
        trial = self
        if work * self.steps * self.rounds * self.chains > most:
            fewer = self.rounds > 1
            trial = self._replace(**{"rounds": 1} if fewer else {"steps": self.steps // 2})
        chains = int(most / (work * trial.steps))
        return trial._replace(chains=min(chains, self.chains)) if chains else None

    def on_enough(self, rows: int) -> Trial:
        """The same with folds held out in turn only until ``ENOUGH_HELD_OUT`` of the rows have
        been: where steps cost much.

        >>> [Trial(300, 2, 15).on_enough(rows).folds for rows in (100, 400, 1000)]
        [3, 2, 1]
        """
        return self._replace(folds=min(self.folds, -(-ENOUGH_HELD_OUT // max(1, rows // FOLDS))))


NATIVE, EAGER = Trial(300, 4, 10, rounds=2), Trial(300, 2, 15)
#: Where a step costs much (see ``cost``): one third of the rows is held out, once.
COSTLY = Trial(150, 1, 15, folds=1)
ENOUGH_HELD_OUT = 200
#: Of the prior of ln sharpness, and the nats on held-out labels below which it stays 1.
DEVIATION, LEAST_GAIN = 0.2, 2.0


class Folds(NamedTuple):
    """Which rows each chain learns from, and which it is scored on: (chain, rows)."""

    inside: Tensor
    outside: Tensor


def folds(
    count: int, seed: int, chains: int = 1, used: int = FOLDS, scales: int = len(SCALES)
) -> Folds:
    """A line for every chain of every one of ``scales`` on every fold: the ``chains`` of scale 0 on
    fold 0, those of scale 0 on fold 1, ...; ``used``: how many of the folds. Not by scikit-learn's
    ``KFold``, which ``import natural_langevin`` does without."""
    key = random.stream(random.origin(seed, random.HELD_OUT, torch.zeros(1)), 0)
    order = random.permutation(key, count)[0]
    size, upto = min(count // FOLDS, MOST_HELD_OUT), count - count % FOLDS
    outside = [order[k * size : (k + 1) * size] for k in range(used)]
    inside = [torch.cat([order[: k * size], order[(k + 1) * size : upto]]) for k in range(used)]
    lines = [torch.stack(rows).repeat_interleave(chains, 0) for rows in (inside, outside)]
    return Folds(*(rows.repeat(scales, 1) for rows in lines))


def bounded(scores: Tensor) -> Tensor:
    """-ln density (scale, row) of rows held out, each at most ``MOST_ABOVE`` nats above the median
    of all: a few outliers, which no network predicts, would otherwise choose a prior under which
    none predicts anything. A row of which nothing is known (NaN) counts as such an outlier. A scale
    with an infinite entry, whose chains were lost, is infinite altogether."""
    known, lost = scores.isfinite(), scores.isinf()
    if not bool(known.any()):
        return torch.full_like(scores, math.inf)
    most = float(scores[known].median()) + MOST_ABOVE
    limited = scores.nan_to_num(nan=most, posinf=most).clamp_max(most)
    return limited.masked_fill(lost.any(1, keepdim=True), math.inf)


def means(scores: Tensor) -> list[float]:
    """Of every scale, over the rows held out, ``bounded``."""
    return bounded(scores).mean(1).tolist()


def in_question(scores: Tensor) -> list[int]:
    """The scales that are not clearly behind the best, by the same rows; none where there is no
    other beside it."""
    each = bounded(scores)
    behind = each - each[each.mean(1).argmin()]
    error = behind.std(1) / each.shape[1] ** 0.5
    near = behind.mean(1) <= (ERRORS * error).clamp_min(BEHIND)  # false of what is not finite
    found: list[int] = near.nonzero().flatten().tolist()
    return found if len(found) > 1 else []


def beyond(scores: dict[float, float]) -> tuple[float, float] | None:
    """The widest scale tried, and the next one, where it is the best and clearly ahead of the one
    before; None where it is not. ``scores``: mean -ln density on held-out rows by scale. There is
    no such step down: on development tables it was taken twice, and both runs predicted worse."""
    *_, inner, last = sorted(scores)
    ahead = scores[last] == min(scores.values()) and scores[inner] - scores[last] > AHEAD
    return (last, last * STEP) if ahead else None


def clearly(last: float, further: float) -> float:
    """The score of a scale beyond the widest, whose own is ``last``: no better than that unless it
    is clearly ahead, as the widest had to be. The wider a prior, the slower its chains.

    >>> clearly(0.50, 0.48), clearly(0.50, 0.495), clearly(0.50, math.nan)
    (0.48, 0.5, inf)
    """
    if not math.isfinite(further):
        return math.inf
    return further if last - further > AHEAD else max(last, further)


def best(scores: dict[float, float]) -> tuple[float, float, str]:
    """The best scale tried, the scale between it and its neighbours where a parabola in ln s
    through their three scores is lowest, and why. ``scores``: as in ``beyond``."""
    order = sorted(scores)
    found = min(order, key=scores.__getitem__)
    if not math.isfinite(scores[found]):
        found = 1.0
    scale, k = found, order.index(found)
    if 0 < k < len(order) - 1:
        down, up = (scores[order[j]] - scores[found] for j in (k - 1, k + 1))
        if math.isfinite(down + up):
            scale *= STEP ** (0.5 * (down - up) / max(down + up, 1e-12))
    said = ", ".join(f"{scores[s]:.3f} at {s:g}" for s in order)
    return found, scale, f"held-out NLL by variance, in units of 2 / fan-in: {said}"


def sharpness(mixture: Tensor, y: Tensor) -> tuple[float, str]:
    """beta of the lowest -sum ln q(y) + (ln beta)^2 / (2 DEVIATION^2), q ~ m^beta, of held-out
    probabilities m (n, K) and labels (n,), and why; 1 where it gains less than ``LEAST_GAIN``.

    Never below 1: a trial's chains are fewer and have learned from fewer rows than the run's, so
    that their mixture is surer than the run's will be. On development tables, widening by what they
    asked for made the run's predictions worse two times of three."""
    scale = TemperatureScaling.fit(mixture, y, deviation=DEVIATION).scale
    before, after = (nll(TemperatureScaling(s)(mixture.double()), y) for s in (1.0, scale))
    gain, beta = (before - after) * len(y), float(f"{1 / scale:.3g}")
    if beta < 1.0:
        return 1.0, f"the trial's {len(y)} held-out labels ask for {beta:g}; a run is less sure"
    if not gain >= LEAST_GAIN:
        return 1.0, f"{beta:g} would gain {gain:.2g} nats on {len(y)} held-out labels: too few"
    return beta, f"{gain:.3g} nats gained on {len(y)} held-out labels"
