"""From held-out predictions: the candidates' weights, and how much sharper or wider to say it.

Weights by stacking (``metrics.stacking_weights``), stopped early: of candidates that a few hundred
rows can hardly tell apart, the optimum would take one. The sharpness is one number, of the mixture:
class probabilities are raised to the power 1/scale and normalised; the noise of a regression is
multiplied by scale. A scale far from one needs many data to speak for it: ln scale has the prior
N(0, DEVIATION^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from natural_langevin.metrics import TemperatureScaling, stacking_weights
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive

DEVIATION = 0.5
#: Updates of the weights from equal ones, chosen on the tables of benchmarks/candidates.py.
UPDATES = 30
#: Candidates of smaller weight are not run.
LEAST_WEIGHT = 0.05
#: ln of the smallest density that is told from none.
LEAST_DENSITY = -1e6
#: Factors that the noise of a regression may be wrong by.
SCALES = torch.logspace(math.log10(0.5), math.log10(2.0), 29, dtype=torch.float64).tolist()

#: With fewer held-out rows nothing is made surer: on eleven tables cut down to 10 rows that cost
#: .06 nats per row and 4 % of coverage, at 20 rows nothing.
FEWEST_SURER = 20


@dataclass(frozen=True)
class HeldOut:
    """``rows`` of the table, fold by fold, and for every candidate that ran what its networks say
    of each fold."""

    rows: Tensor
    networks: dict[int, list[Networks]]


@dataclass(frozen=True)
class Weighed:
    """Held-out ``nll`` (None: it diverged) and ``weight`` of every candidate, ``scale``, and how
    strange the mixture found every held-out row: 1 - p of its class, or the level of the smallest
    central interval that holds it."""

    nll: list[float | None]
    weight: list[float]
    scale: float
    strangeness: Tensor = field(default_factory=lambda: torch.empty(0))


def weigh(held_out: HeldOut, outcome: Outcome, targets: Tensor, count: int) -> Weighed:
    """Of ``count`` candidates; ``targets`` of all rows, in their own units."""
    y = targets[held_out.rows]
    if outcome.classes:
        return _weigh_classes(held_out, outcome, y, count)
    best = None
    for scale in _scales(outcome, len(y)):
        log_density = densities(held_out, outcome, y, scale)
        weights = _pruned(stacking_weights(log_density, updates=UPDATES))
        fit = float(torch.logsumexp(log_density + weights.log(), dim=1).sum())
        fit -= (math.log(scale) / DEVIATION) ** 2 / 2
        if best is None or fit > best[0]:
            best = (fit, scale, weights)
    assert best is not None
    _, scale, weights = best
    strange = _levels(held_out, outcome, y, weights, scale)
    at_one = densities(held_out, outcome, y)
    return _weighed(list(held_out.networks), at_one, weights, scale, strange, count)


def best_scale(held_out: HeldOut, outcome: Outcome, y: Tensor) -> float:
    """Mean ln p of the held-out rows' targets ``y`` at the scale that suits them best."""
    return max(
        float(densities(held_out, outcome, y, scale).max(1).values.mean())
        - (math.log(scale) / DEVIATION) ** 2 / 2 / len(y)
        for scale in _scales(outcome, len(y), every=4)
    )


def _scales(outcome: Outcome, rows: int, every: int = 1) -> list[float]:
    """Every so many factors: none below 1 where few rows speak for it, and 1 alone for counts."""
    if outcome.task != "regression":
        return [1.0]
    return [scale for scale in SCALES[::every] if rows >= FEWEST_SURER or scale > 0.999]


def _levels(
    held_out: HeldOut, outcome: Outcome, y: Tensor, weights: Tensor, scale: float
) -> Tensor:
    """|2 P(Y <= y) - 1| under the weighted mixture; of several targets the largest."""
    sizes = [one.outputs.shape[1] for one in next(iter(held_out.networks.values()))]
    below = torch.zeros(len(y), y.shape[1], dtype=torch.float64)
    for weight, folds in zip(weights.tolist(), held_out.networks.values(), strict=True):
        if weight:
            parts = [
                _equal(fold, outcome, scale).cdf(own)
                for fold, own in zip(folds, y.split(sizes), strict=True)
            ]
            below += weight * torch.cat([torch.as_tensor(part) for part in parts])
    return (2 * below - 1).abs().amax(1)


def _equal(fold: Networks, outcome: Outcome, scale: float) -> Predictive:
    """The mixture of one candidate's networks."""
    shares = torch.full((len(fold.outputs),), 1 / len(fold.outputs), dtype=torch.float64)
    return Predictive(outcome, fold.law(outcome, scale), shares, flat=False)


def densities(held_out: HeldOut, outcome: Outcome, y: Tensor, scale: float = 1.0) -> Tensor:
    """ln p(y_n) under every candidate that ran: (n, candidate). ``y``: of the held-out rows."""
    if outcome.classes:
        p = torch.stack([_probabilities(folds, outcome) for folds in held_out.networks.values()])
        tiny = torch.finfo(torch.float64).tiny
        return p.clamp_min(tiny).log()[:, torch.arange(len(y)), y].T
    sizes = [one.outputs.shape[1] for one in next(iter(held_out.networks.values()))]
    found = []
    for folds in held_out.networks.values():
        parts = []
        for fold, own in zip(folds, y.split(sizes), strict=True):
            parts.append(torch.as_tensor(_equal(fold, outcome, scale).log_prob(own)))
        found.append(torch.cat(parts))
    # A network that ran far away without becoming infinite explains nothing, and may say NaN.
    return torch.stack(found, dim=1).nan_to_num(nan=LEAST_DENSITY).clamp_min(LEAST_DENSITY)


def _probabilities(folds: list[Networks], outcome: Outcome) -> Tensor:
    """Averages over networks, (n, class), of rows that lie fold by fold."""
    return torch.cat([fold.law(outcome).probs.mean(0) for fold in folds])  # type: ignore[attr-defined]


def _weigh_classes(held_out: HeldOut, outcome: Outcome, y: Tensor, count: int) -> Weighed:
    log_density = densities(held_out, outcome, y)
    weights = _pruned(stacking_weights(log_density, updates=UPDATES))
    every = torch.stack([_probabilities(folds, outcome) for folds in held_out.networks.values()])
    mixture = (weights[:, None, None] * every).sum(0)
    scaling = TemperatureScaling.fit(mixture, y, deviation=DEVIATION)
    strange = 1 - scaling(mixture)[torch.arange(len(y)), y]
    return _weighed(list(held_out.networks), log_density, weights, scaling.scale, strange, count)


def _pruned(weights: Tensor) -> Tensor:
    kept = torch.where(weights < LEAST_WEIGHT, 0.0, weights)
    return kept / kept.sum()


def _weighed(
    ran: list[int], log_density: Tensor, weights: Tensor, scale: float, strange: Tensor, count: int
) -> Weighed:
    nll: list[float | None] = [None] * count
    weight = [0.0] * count
    for place, k in enumerate(ran):
        nll[k], weight[k] = -float(log_density[:, place].mean()), float(weights[place])
    return Weighed(nll, weight, scale, strange)
