"""From held-out predictions: the views' weights, and how much sharper or wider to say it.

Weights by stacking (``metrics.stacking_weights``), stopped early: of views that a few hundred
rows can hardly tell apart, the optimum would take one. Class probabilities of the mixture are
raised to the power 1/scale, normalised and averaged over the posterior of the scale, given the
held-out rows and the prior N(0, DEVIATION^2) of ln scale: of a few hundred rows the best scale may
be much too sure, since a handful that are told wrong decide it. The noise of a regression is
stacked at several widths, since chains on folds have learned from fewer rows, and residuals have
longer tails than a normal variable:

    p(y | x) = sum_k sum_f w_kf p_k(y | x with noise f sigma),    f of FACTORS,

where w begins at a prior, equal over views k and log-normal over f, that counts as PRIOR_ROWS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from natural_langevin.metrics import TemperatureScaling, stacking_weights
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.predictive import Networks, Predictive

DEVIATION = 0.5
#: Updates of the weights from equal ones.
UPDATES = 30
#: Views of smaller weight are not run.
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
#: Factors of a smaller share of a view's weight are left out.
LEAST_SHARE = 0.003

#: Drifts of a target that are offered, in its deviations after as long a time as was seen, powers
#: of time by which they grow, and how many rows the future of the past counts as.
DRIFTS, DRIFT_POWERS, DRIFT_ROWS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.5, 1.0), 20
#: Where means may be bounded, in units of where they are.
BOUNDS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
#: With fewer held-out rows nothing is made surer: on eleven tables cut down to 10 rows that cost
#: .06 nats per row and 4 % of coverage, at 20 rows nothing.
FEWEST_SURER = 20


@dataclass(frozen=True)
class HeldOut:
    """What the networks of one view say of every fold's rows."""

    outcome: Outcome
    folds: list[Networks]


@dataclass(frozen=True)
class Weighed:
    """``nll`` of held-out rows and ``weight`` of every view, ``scale``, and how strange the mixture
    found every held-out row: 1 - p of its class, or the level of the smallest central interval that
    holds it. ``factors``: of the noise of every view, [factor, share] each; ``scale`` is then their
    geometric mean. ``scales``: of classes, [scale, share] each, ``scale`` being their geometric
    mean too."""

    nll: list[float]
    weight: list[float]
    factors: list[list[list[float]]]
    scale: float = 1.0
    strangeness: Tensor = field(default_factory=lambda: torch.empty(0))
    scales: list[list[float]] = field(default_factory=lambda: [[1.0, 1.0]])


def weigh(views: Sequence[HeldOut], y: Tensor) -> Weighed:
    """Weights of views, all of one task, from what they say of held-out rows, whose targets in
    their own units are ``y``, fold by fold."""
    if views[0].outcome.classes:
        return _weigh_classes(views, y)
    factors = _offered(FACTORS, views[0].outcome, len(y))
    log_density = torch.stack(
        [torch.stack([densities(view, y, f) for f in factors], -1) for view in views], 1
    )
    prior = torch.tensor([math.exp(-((math.log(f) / DEVIATION) ** 2) / 2) for f in factors])
    counted = PRIOR_ROWS if len(y) >= FEWEST_SURER else 0.0
    weights = stacking_weights(
        log_density.flatten(1), updates=MORE_UPDATES, prior=prior.repeat(len(views)),
        prior_rows=counted,
    ).reshape(-1, len(factors))  # fmt: skip
    share = weights / weights.sum(1, keepdim=True)
    share = torch.where(share < LEAST_SHARE, 0.0, share)
    share = share / share.sum(1, keepdim=True)
    weights = _pruned(weights.sum(1))[:, None] * share
    scale = math.exp(float((weights * torch.tensor(factors).double().log()).sum()))
    return Weighed(
        (-log_density[..., factors.index(1.0)].mean(0)).tolist(),
        weights.sum(1).tolist(),
        [[[f, s] for f, s in zip(factors, own, strict=True) if s] for own in share.tolist()],
        scale,
        _levels(views, y, weights, factors),
    )


def mean_bound(views: Sequence[HeldOut], found: Weighed, y: Tensor) -> float | None:
    """``Outcome.largest`` with which the means of held-out rows come closest to their targets: the
    mean of a log-normal law is decided by a tail that no row was seen in."""
    largest = views[0].outcome.largest
    if largest is None or len(y) < FEWEST_SURER:
        return largest

    def squares(bound: float) -> float:
        mean = torch.zeros_like(y, dtype=torch.float64)
        for weight, own, view in zip(found.weight, found.factors, views, strict=True):
            for factor, share in own if weight else ():
                held_out = HeldOut(replace(view.outcome, largest=bound), view.folds)
                parts = [
                    np.tensordot(said.weights, said.network_means, 1)
                    for said, _ in _by_fold(held_out, y, factor)
                ]
                mean += weight * share * torch.from_numpy(np.concatenate(parts)).reshape(y.shape)
        return float((mean - y).square().sum())

    return min((part * largest for part in BOUNDS), key=squares)


def drifts(views: Sequence[HeldOut], found: Weighed, y: Tensor, after: Tensor) -> list[list[float]]:
    """[c, h, its probability] of a drift of deviation c (t / unit)^h, t ``after`` the last row that
    was seen, given rows that views of the past say this of.

    Rows after one moment are as far off as each other: they count as DRIFT_ROWS."""
    offered = [(0.0, 1.0), *((c, h) for h in DRIFT_POWERS for c in DRIFTS)]
    log_posterior = []
    for c, h in offered:
        parts = [
            densities(view, y, factor, c * after**h) + math.log(weight * share)
            for view, weight, own in zip(views, found.weight, found.factors, strict=True)
            for factor, share in own if weight
        ]  # fmt: skip
        whole = torch.stack(parts).logsumexp(0)
        log_posterior.append(float(whole.mean()) * min(len(y), DRIFT_ROWS))
    share = torch.tensor(log_posterior, dtype=torch.float64).softmax(0)
    return [[c, h, s] for (c, h), s in zip(offered, share.tolist(), strict=True) if s > 0.01]


def rows_nll(view: HeldOut, y: Tensor) -> Tensor:
    """-ln p of every held-out row, (n,), at the one scale of noise that suits all of them best."""
    offered = _offered(SCALES, view.outcome, len(y))
    found = [densities(view, y, scale) for scale in offered]
    penalties = [(math.log(scale) / DEVIATION) ** 2 / 2 / len(y) for scale in offered]
    best = max(range(len(found)), key=lambda k: float(found[k].mean()) - penalties[k])
    return -found[best]


def _offered(factors: Sequence[float], outcome: Outcome, rows: int) -> list[float]:
    """None below 1 where few rows speak for it, and 1 alone for rates and classes."""
    if not outcome.real:
        return [1.0]
    return [factor for factor in factors if rows >= FEWEST_SURER or factor > 0.999]


def _levels(views: Sequence[HeldOut], y: Tensor, weights: Tensor, factors: list[float]) -> Tensor:
    """The level of the smallest central interval that holds y, under the weighted mixture: of
    1 - 2 P(Y <= y) and 2 P(Y < y) - 1 the larger, which differ by more than a sign where y has a
    probability (0 of amounts, 100 of percentages). Of several targets the largest."""
    # At (and in front of) y; counts keep the wider P(Y <= y) for both.
    real = views[0].outcome.task == "regression"
    ends = (y, torch.nextafter(y, torch.tensor(-math.inf, dtype=y.dtype)) if real else y)
    below = torch.zeros(2, len(y), y.shape[1], dtype=torch.float64)
    for own, view in zip(weights.tolist(), views, strict=True):
        for weight, factor in zip(own, factors, strict=True):
            for end, total in zip(ends, below, strict=True) if weight else ():
                parts = [said.cdf(rows) for said, rows in _by_fold(view, end, factor)]
                total += weight * torch.cat([torch.as_tensor(part) for part in parts])
    return torch.maximum(1 - 2 * below[0], 2 * below[1] - 1).clamp_min(0.0).amax(1)


def _by_fold(
    view: HeldOut, y: Tensor, scale: float, drift: Tensor | None = None
) -> Iterator[tuple[Predictive, Tensor]]:
    """The mixture of a view's networks for every fold, and the targets of its rows."""
    sizes = [fold.outputs.shape[1] for fold in view.folds]
    parts = [None] * len(sizes) if drift is None else drift[:, None].split(sizes)
    for fold, own, more in zip(view.folds, y.split(sizes), parts, strict=True):
        shares = torch.full((len(fold.outputs),), 1 / len(fold.outputs), dtype=torch.float64)
        yield Predictive(view.outcome, fold.law(view.outcome, scale, more), shares, flat=False), own


def densities(view: HeldOut, y: Tensor, scale: float = 1.0, drift: Tensor | None = None) -> Tensor:
    """ln p(y_n) of the held-out rows: (n,); ``drift`` (n,): see ``Networks.law``."""
    if view.outcome.classes:
        p = _probabilities(view)[torch.arange(len(y)), y]
        return p.clamp_min(torch.finfo(torch.float64).tiny).log()
    parts = [torch.as_tensor(said.log_prob(own)) for said, own in _by_fold(view, y, scale, drift)]
    # A network that ran far away without becoming infinite explains nothing, and may say NaN.
    return torch.cat(parts).nan_to_num(nan=LEAST_DENSITY).clamp_min(LEAST_DENSITY)


def _probabilities(view: HeldOut) -> Tensor:
    """Averages over networks, (n, class), of rows that lie fold by fold."""
    return torch.cat([fold.law(view.outcome).probs.mean(0) for fold in view.folds])  # type: ignore[attr-defined]


def _weigh_classes(views: Sequence[HeldOut], y: Tensor) -> Weighed:
    log_density = torch.stack([densities(view, y) for view in views], 1)
    weights = _pruned(stacking_weights(log_density, updates=UPDATES))
    every = torch.stack([_probabilities(view) for view in views])
    mixture = (weights[:, None, None] * every).sum(0)
    scales = likely_scales(mixture, y)
    return Weighed(
        (-log_density.mean(0)).tolist(),
        weights.tolist(),
        [[[1.0, 1.0]]] * len(views),
        math.exp(sum(share * math.log(one) for one, share in scales)),
        1 - at_scales(mixture, scales)[torch.arange(len(y)), y],
        scales,
    )


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
