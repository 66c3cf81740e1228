"""Predictions of a trial's chains on their held-out rows: scores, sharpness for classes, and spread
for numbers."""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin.likelihoods.predictive import probabilities
from natural_langevin.posterior import calibration
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.settings import Sharpness
from natural_langevin.run.problem.problem import Problem

log = logging.getLogger("natural_langevin")


class HeldOut(NamedTuple):
    """The lines of one scale of the prior, a fold each: ``chains`` chains of the trial's posterior
    ``found``, from line ``first`` on, and the numbers of the rows held out of each, (line, row)."""

    found: Posterior
    data: tuple[Tensor, Tensor]
    outside: Tensor
    first: int
    chains: int

    def lines(self) -> list[tuple[list[int], Tensor]]:
        """Healthy chains and rows of every line."""
        outside = self.outside.to(self.data[0].device)
        return [
            (pooled(self.found, line, self.chains), rows)
            for line, rows in enumerate(outside, self.first)
        ]


def pooled(found: Posterior, line: int, chains: int) -> list[int]:
    """The healthy ones of a line's chains; none where most of them were lost: one that was is no
    verdict on a scale."""
    healthy = [c for c in range(line * chains, (line + 1) * chains) if c in found.healthy]
    return healthy if 2 * len(healthy) >= chains else []


def sharpness(problem: Problem, held_out: HeldOut, rule: Sharpness) -> recipe.HeldOutChoice | None:
    """How sharply the chains should predict; None for numbers, for weighted classes, whose
    probabilities are of other proportions, and for chains of several posteriors."""
    likelihood, (x, y) = problem.likelihood, held_out.data
    several = not problem.one_temperature
    if likelihood.link is None or likelihood.class_weights is not None or several:
        return None
    mixtures, targets = [], []
    for own, rows in held_out.lines():
        if not own:
            return None
        p = probabilities(held_out.found.predict_dist(x[rows], chains=own))
        mixtures.append(p.reshape(-1, p.shape[-1]).cpu())
        targets.append(y[rows].flatten().long().cpu())
    p, labels = torch.cat(mixtures), torch.cat(targets)
    if likelihood.ignore_index is not None:
        there = labels != likelihood.ignore_index
        p, labels = p[there], labels[there]
    if not len(labels):
        return None
    value, why = calibration.sharpness(
        p, labels, deviation=rule.deviation, least_gain=rule.least_gain
    )
    log.info("sharpness %.3g: %s", value, why)
    return recipe.HeldOutChoice(value, why)


def spread_of_networks(problem: Problem, held_out: HeldOut) -> recipe.HeldOutNoise | None:
    """How far networks should be from their mean, of numbers whose noise is learned (see
    ``posterior.calibration``); None where all of it is kept, for chains of several posteriors, and
    where one chain cannot tell how far several are apart."""
    several = not problem.one_temperature
    if not problem.likelihood.learns_width or several or held_out.chains == 1:
        return None
    (x, y), found, parts = held_out.data, held_out.found, []
    for own, rows in held_out.lines():
        if not own:
            return None
        outputs = found.predict(x[rows], chains=own, sharpness=1.0).samples
        assert outputs is not None
        variance = found.learned["variance"][own].repeat_interleave(found.draws)
        parts.append(calibration.Predicted(outputs.cpu(), variance.cpu(), y[rows].cpu()))
    fitted = calibration.fit_spread(parts)
    if fitted is None:
        return None
    rows_in_all = sum(len(part.y) for part in parts)
    why = f"{fitted.gain:.3g} nats gained on {rows_in_all} held-out rows"
    log.info("spread of networks x %.3g: %s", fitted.spread, why)
    return recipe.HeldOutNoise(fitted.spread, why, fitted.widths, fitted.variance)


def nll(found: Posterior, data: tuple[Tensor, Tensor], outside: Tensor, chains: int) -> Tensor:
    """-ln of the density that ``chains`` chains together give to every row held out of them, (fold
    of a scale, row); infinite where most of them were lost, and NaN for a row whose density is 0,
    infinite or no number: one such row is no verdict on a scale. ``outside``: (chain, row)."""
    (x, y), each = data, outside[::chains]
    table = torch.full(each.shape, math.inf, dtype=torch.float64)
    for line, rows in enumerate(each.to(x.device)):
        own = pooled(found, line, chains)
        if own:
            density = found.log_likelihood(x[rows], y[rows], chains=own).flatten(0, 1)
            scores = math.log(len(density)) - torch.logsumexp(density.double().cpu(), 0)
            table[line] = scores.masked_fill(~scores.isfinite(), math.nan)
    return table
