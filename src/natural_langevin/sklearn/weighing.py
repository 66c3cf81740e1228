"""From held-out predictions: the candidates' weights, and how much sharper or wider to say it.

Weights by stacking (``metrics.stacking_weights``), stopped early: of candidates that a few hundred
rows can hardly tell apart, the optimum would take one. The sharpness is one number, of the mixture:
class probabilities are raised to the power 1/scale and normalised; the noise of a regression is
multiplied by scale. A scale far from one needs many data to speak for it: ln scale has the prior
N(0, DEVIATION^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin.metrics import TemperatureScaling, stacking_weights
from natural_langevin.sklearn.problem import HeldOut, Networks

DEVIATION = 0.5
#: Updates of the weights from equal ones, chosen on the tables of benchmarks/candidates.py.
UPDATES = 30
#: Candidates of smaller weight are not run.
LEAST_WEIGHT = 0.05
#: Factors that the noise of a regression may be wrong by.
SCALES = torch.logspace(math.log10(0.5), math.log10(2.0), 29, dtype=torch.float64)


@dataclass(frozen=True)
class Weighed:
    """Held-out ``nll`` (None: it diverged) and ``weight`` of every candidate, and the ``scale``."""

    nll: list[float | None]
    weight: list[float]
    scale: float


def weigh_classes(held_out: HeldOut, labels: Tensor, count: int) -> Weighed:
    """Of ``count`` candidates; ``labels`` of all rows."""
    y = labels[held_out.rows]
    probabilities = {
        k: torch.cat([fold.outputs.mean(0) for fold in folds]).double()
        for k, folds in held_out.networks.items()
    }
    every = torch.stack(list(probabilities.values()))  # (candidate, n, class)
    tiny = torch.finfo(torch.float64).tiny
    log_density = every.clamp_min(tiny).log()[:, torch.arange(len(y)), y].T
    weights = _pruned(stacking_weights(log_density, updates=UPDATES))
    mixture = (weights[:, None, None] * every).sum(0)
    scale = TemperatureScaling.fit(mixture, y, deviation=DEVIATION).scale
    return _weighed(list(probabilities), log_density, weights, scale, count)


def weigh_numbers(held_out: HeldOut, targets: Tensor, count: int) -> Weighed:
    """The same for ``targets`` (rows, target). Weights and scale are found together."""
    y = targets[held_out.rows].double()
    best = None
    for scale in SCALES.tolist():
        log_density = torch.stack(
            [_log_density(folds, y, scale) for folds in held_out.networks.values()], dim=1
        )
        weights = _pruned(stacking_weights(log_density, updates=UPDATES))
        fit = float(torch.logsumexp(log_density + weights.log(), dim=1).sum())
        fit -= (math.log(scale) / DEVIATION) ** 2 / 2
        if best is None or fit > best[0]:
            best = (fit, scale, weights)
    assert best is not None
    at_one = torch.stack([_log_density(f, y, 1.0) for f in held_out.networks.values()], dim=1)
    return _weighed(list(held_out.networks), at_one, best[2], best[1], count)


def _log_density(folds: list[Networks], y: Tensor, scale: float) -> Tensor:
    """ln of the mean density over networks, (n,), of rows that lie fold by fold in ``y``."""
    found = []
    for fold, own in zip(folds, y.split([f.outputs.shape[1] for f in folds]), strict=True):
        assert fold.sigma is not None
        sigma = (scale * fold.sigma.double()).reshape(-1, 1, 1)
        each = torch.distributions.Normal(fold.outputs.double(), sigma).log_prob(own).sum(-1)
        found.append(torch.logsumexp(each, dim=0) - math.log(len(each)))
    return torch.cat(found)


def _pruned(weights: Tensor) -> Tensor:
    kept = torch.where(weights < LEAST_WEIGHT, 0.0, weights)
    return kept / kept.sum()


def _weighed(
    ran: list[int], log_density: Tensor, weights: Tensor, scale: float, count: int
) -> Weighed:
    nll: list[float | None] = [None] * count
    weight = [0.0] * count
    for place, k in enumerate(ran):
        nll[k], weight[k] = -float(log_density[:, place].mean()), float(weights[place])
    return Weighed(nll, weight, scale)
