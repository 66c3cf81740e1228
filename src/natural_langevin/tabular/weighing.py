"""From held-out predictions: the candidates' weights, and how much sharper or wider to say it.

Weights by stacking (``metrics.stacking_weights``), stopped early: of candidates that a few hundred
rows can hardly tell apart, the optimum would take one. Class probabilities of the mixture are
raised to the power 1/scale, normalised and averaged over the posterior of the scale, given the
held-out rows and the prior N(0, DEVIATION^2) of ln scale: of a few hundred rows the best scale may
be much too sure, since a handful that are told wrong decide it. The noise of a regression is
stacked at several widths, since cold chains disagree too little, hot ones too much, and residuals
have longer tails than a normal variable:

    p(y | x) = sum_k sum_f w_kf p_k(y | x with noise f sigma),    f of FACTORS,

where w begins at a prior, equal over candidates k and log-normal over f, that counts as PRIOR_ROWS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from natural_langevin.metrics import TemperatureScaling, stacking_weights
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive

DEVIATION = 0.5
#: Updates of the weights from equal ones, chosen on the tables of lab/candidates.py.
UPDATES = 30
#: Candidates of smaller weight are not run.
LEAST_WEIGHT = 0.05
#: ln of the smallest density that is told from none.
LEAST_DENSITY = -1e6
#: Factors that the noise of a regression may be wrong by: one for all, to compare views, and mixed.
SCALES = torch.logspace(math.log10(0.5), math.log10(2.0), 8, dtype=torch.float64).tolist()
#: Scales of classes that are averaged over; those of a smaller probability are left out.
CLASS_SCALES = torch.linspace(-1.5, 1.5, 61, dtype=torch.float64).exp().tolist()
LEAST_PROBABLE = 1e-3
#: Neighbouring factors are much alike, and take more updates to be told apart.
FACTORS, PRIOR_ROWS, MORE_UPDATES = (0.5, 0.7, 1.0, 1.4, 2.0, 4.0), 10.0, 100
#: Factors of a smaller share of a candidate's weight are left out.
LEAST_SHARE = 0.003

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
    central interval that holds it. ``factors``: of the noise of those that count, [factor, share]
    each (default: 1 alone); ``scale`` is then their geometric mean. ``scales``: of classes, [scale,
    share] each, ``scale`` being their geometric mean too."""

    nll: list[float | None]
    weight: list[float]
    scale: float
    strangeness: Tensor = field(default_factory=lambda: torch.empty(0))
    factors: dict[int, list[list[float]]] = field(default_factory=dict)
    scales: list[list[float]] = field(default_factory=lambda: [[1.0, 1.0]])


def weigh(held_out: HeldOut, outcome: Outcome, targets: Tensor, count: int) -> Weighed:
    """Weights of ``count`` candidates from what they say of held-out rows; ``targets`` are those of
    all rows, in their own units."""
    y = targets[held_out.rows]
    if outcome.classes:
        return _weigh_classes(held_out, outcome, y, count)
    factors = _offered(FACTORS, outcome, len(y))
    log_density = torch.stack([densities(held_out, outcome, y, f) for f in factors], -1)
    prior = torch.tensor([math.exp(-((math.log(f) / DEVIATION) ** 2) / 2) for f in factors])
    prior = prior.repeat(log_density.shape[1])
    counted = PRIOR_ROWS if len(y) >= FEWEST_SURER else 0.0
    weights = stacking_weights(
        log_density.flatten(1), updates=MORE_UPDATES, prior=prior, prior_rows=counted
    ).reshape(-1, len(factors))
    share = weights / weights.sum(1, keepdim=True)
    weights = _pruned(weights.sum(1))[:, None] * torch.where(share < LEAST_SHARE, 0.0, share)
    weights = weights / weights.sum()
    strange = _levels(held_out, outcome, y, weights, factors)
    scale = math.exp(float((weights * torch.tensor(factors).double().log()).sum()))
    ran, at_one = list(held_out.networks), log_density[..., factors.index(1.0)]
    found = _weighed(ran, at_one, weights.sum(1), scale, strange, count)
    shares = (weights / weights.sum(1, keepdim=True)).tolist()
    mixed = {
        k: [[f, s] for f, s in zip(factors, own, strict=True) if s]
        for k, own in zip(ran, shares, strict=True) if found.weight[k]
    }  # fmt: skip
    return replace(found, factors=mixed)


def best_scale(held_out: HeldOut, outcome: Outcome, y: Tensor) -> float:
    """Mean ln p of the held-out rows' targets ``y`` at the scale that suits them best."""
    return max(
        float(densities(held_out, outcome, y, scale).max(1).values.mean())
        - (math.log(scale) / DEVIATION) ** 2 / 2 / len(y)
        for scale in _offered(SCALES, outcome, len(y))
    )


def _offered(factors: Sequence[float], outcome: Outcome, rows: int) -> list[float]:
    """None below 1 where few rows speak for it, and 1 alone for counts."""
    if outcome.task != "regression":
        return [1.0]
    return [factor for factor in factors if rows >= FEWEST_SURER or factor > 0.999]


def _levels(
    held_out: HeldOut, outcome: Outcome, y: Tensor, weights: Tensor, factors: list[float]
) -> Tensor:
    """The level of the smallest central interval that holds y, under the weighted mixture: of
    1 - 2 P(Y <= y) and 2 P(Y < y) - 1 the larger, which differ by more than a sign where y has a
    probability (0 of amounts, 100 of percentages). Of several targets the largest."""
    sizes = [one.outputs.shape[1] for one in next(iter(held_out.networks.values()))]
    # At (and in front of) y; counts keep the wider P(Y <= y) for both.
    ends = (y, torch.nextafter(y, torch.tensor(-math.inf, dtype=y.dtype)) if outcome.real else y)
    below = torch.zeros(2, len(y), y.shape[1], dtype=torch.float64)
    for own, folds in zip(weights.tolist(), held_out.networks.values(), strict=True):
        for weight, factor in zip(own, factors, strict=True):
            for end, total in zip(ends, below, strict=True) if weight else ():
                parts = [
                    _equal(fold, outcome, factor).cdf(rows)
                    for fold, rows in zip(folds, end.split(sizes), strict=True)
                ]
                total += weight * torch.cat([torch.as_tensor(part) for part in parts])
    return torch.maximum(1 - 2 * below[0], 2 * below[1] - 1).clamp_min(0.0).amax(1)


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
    scales = likely_scales(mixture, y)
    strange = 1 - at_scales(mixture, scales)[torch.arange(len(y)), y]
    scale = math.exp(sum(share * math.log(one) for one, share in scales))
    ran = list(held_out.networks)
    found = _weighed(ran, log_density, weights, scale, strange, count)
    return replace(found, scales=scales)


def likely_scales(p: Tensor, y: Tensor) -> list[list[float]]:
    """[scale, its probability] given labels ``y`` of rows with probabilities ``p`` (n, class)."""
    index = torch.arange(len(y)), y
    tiny = torch.finfo(torch.float64).tiny
    log_posterior = torch.tensor([
        float(TemperatureScaling(scale)(p.double())[index].clamp_min(tiny).log().sum())
        - (math.log(scale) / DEVIATION) ** 2 / 2
        for scale in CLASS_SCALES
    ], dtype=torch.float64)  # fmt: skip
    share = log_posterior.softmax(0)
    share = torch.where(share < LEAST_PROBABLE, 0.0, share)
    kept = (share / share.sum()).tolist()
    return [[scale, own] for scale, own in zip(CLASS_SCALES, kept, strict=True) if own]


def at_scales(p: Tensor, scales: list[list[float]]) -> Tensor:
    """The average over [scale, share] of p^(1/scale), normalised: (n, class).

    >>> at_scales(torch.tensor([[0.2, 0.8]]), [[1.0, 1.0]])
    tensor([[0.2000, 0.8000]])
    """
    found = torch.zeros_like(p)
    for scale, share in scales:
        found = found + share * TemperatureScaling(scale)(p)
    return found


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
