"""The trial that chooses the prior's scale: runs of several scales, side by side on held-out folds
(see ``prior_scale``), each with the step size that a pilot finds for it.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.proven import proven_network
from natural_langevin.data.streams import Subsets
from natural_langevin.sampling import (
    cost,
    pace,
    prior_scale,
    recipe,
    step_size_rule,
    time_limit,
    trial_predictions,
    trials,
)
from natural_langevin.sampling.density import first_power
from natural_langevin.sampling.loop import DivergenceError
from natural_langevin.types import Params

log = logging.getLogger("natural_langevin")


def _with_scales(
    sampler: Any, scales: tuple[float, ...], repeats: int, step_size: Any, after: int = 0
) -> Any:
    """A sampler like this one, with ``repeats`` chains for every scale of the prior; ``after`` so
    many others, whose noise it does not repeat."""
    variances = torch.tensor(scales).repeat_interleave(repeats)
    gradients, given = sampler._dynamics.gradients, sampler._given
    compared = type(sampler)(
        sampler._template, sampler.likelihood, prior=recipe.prior(variances),
        chains=len(variances),
        preconditioner=sampler.preconditioner, dynamics=sampler.dynamics, step_size=step_size,
        temperature=float(sampler._temperature[0]), mean_rate=None,
        init=sampler._start if given is None else {k: v[0] for k, v in given.items()},
        likelihood_power=first_power(sampler),
        seed=(sampler.seed + after) % (1 << 63), device=sampler.device, compile=sampler.compile,
        parallel=None,
        microbatch=gradients.microbatch, clip=gradients.clip,
        autocast=gradients.network.autocast,
    )  # fmt: skip
    compared._downhill, compared._noticed = sampler._downhill, True  # the run itself says it
    usual = repeats * (scales.index(1.0) if 1.0 in scales else 0)
    pattern = usual + torch.arange(repeats, device=sampler.device)
    compared._downhill_pattern = pattern.repeat(len(scales))
    compared.signature.adopt(sampler.signature)
    return compared


class Compared(NamedTuple):
    """Scales of the prior that were tried side by side, on the same rows from the same starts."""

    scales: tuple[float, ...]
    choices: list[recipe.Choice]  # step sizes
    trial: prior_scale.Trial
    found: Any  # the posterior of all of them
    data: tuple[Tensor, Tensor]  # with the rows held out
    outside: Tensor  # (chain, row) of these
    nll: Tensor  # (scale, row) of these

    def end(self, scales: tuple[float, ...]) -> tuple[Params, Params]:
        """Weights of these scales' chains, and what their likelihoods have learned."""
        repeats = self.trial.folds * self.trial.chains
        first = torch.tensor([self.scales.index(s) * repeats for s in scales])
        own = (first[:, None] + torch.arange(repeats)).flatten()
        weights, learned = (
            {k: v[own.to(v.device)] for k, v in tree.items()}
            for tree in (self.found.last, self.found.learned)
        )
        return weights, learned

    def by_held_out_rows(self, sampler: Any, scale: float) -> dict[str, Any]:
        """How sharp the predictions of a scale's chains should be, or how wide their spread."""
        folds, chains = self.trial.folds, self.trial.chains
        first = self.scales.index(scale) * folds
        # Where the rows held out are the same for every fold, one fold has them all.
        used = 1 if sampler.held_out is not None else folds
        outside = self.outside[::chains][first : first + used]
        held_out = trial_predictions.HeldOut(self.found, self.data, outside, first, chains)
        return {
            "sharpness": trial_predictions.sharpness(sampler, held_out),
            "spread": trial_predictions.spread_of_networks(sampler, held_out),
        }


def choose(
    sampler: Any, data: tuple[Tensor, Tensor], batch_size: int, costs: cost.Costs
) -> recipe.Choice | None:
    """The prior's scale by held-out rows, and the step size that goes with it: a wide prior leaves
    more to the data, and its posterior is steeper in the metric. None where there are too few rows,
    or it costs too much.

    The chains of several processes all have the same prior: each process chooses alone."""
    data = data[0][: prior_scale.MOST_ROWS], data[1][: prior_scale.MOST_ROWS]
    if len(data[0]) < prior_scale.FEWEST_ROWS:
        return None
    costly = costs.budget is cost.EAGER
    scales = prior_scale.COSTLY_SCALES if costly else prior_scale.SCALES
    began = time_limit.clock()
    runs = _compare(sampler, data, batch_size, costs, scales)
    if not runs:
        return None
    scores = _scores(runs)
    as_long = time_limit.allows((time_limit.clock() - began) / 2)
    pair = prior_scale.beyond(scores) if as_long and not costly else None
    more: list[Compared] = []
    if pair:  # what agreed with the reference in one trial does so in the next
        with proven_network() if runs[-1].choices[0].way == "native" else nullcontext():
            more = _compare(sampler, data, batch_size, costs, pair, runs)
    if pair and more:
        runs += more
        found = _scores(more)
        further = scores[pair[0]] + found[pair[1]] - found[pair[0]]  # from one start both
        scores[pair[1]] = further if math.isfinite(further) else math.inf
    best, scale, why = prior_scale.best(scores)
    chosen = [run for run in runs if best in run.scales][-1]
    log.info("prior variance x %.3g: %s", scale, why)
    # A wider prior is steeper in the metric: what one chain found at a narrower one holds here too.
    upto = [c for run in runs for s, c in zip(run.scales, run.choices, strict=True) if s <= best]
    return dataclasses.replace(
        recipe.Choice.most_careful(upto),
        prior_scale=recipe.HeldOutChoice(float(f"{scale:.3g}"), why),
        **chosen.by_held_out_rows(sampler, best),
    )


def _scores(runs: list[Compared]) -> dict[float, float]:
    """Mean held-out -ln density of every scale, those of a later round in the place of former ones.
    A scale that ended before is taken to have gained as much as the best of those did."""
    scores: dict[float, float] = {}
    for run in runs:
        found = dict(zip(run.scales, prior_scale.means(run.nll), strict=True))
        if scores:
            best = min(found, key=found.__getitem__)
            scores = {s: value + found[best] - scores[best] for s, value in scores.items()}
        scores |= found
    return scores


def _compare(
    sampler: Any,
    data: tuple[Tensor, Tensor],
    batch_size: int,
    costs: cost.Costs,
    scales: tuple[float, ...],
    before: Sequence[Compared] = (),
) -> list[Compared]:
    """A pilot for every scale, and then a trial of all, in rounds; none where it costs too much, or
    nothing came of it. After the rounds ``before``, all begin where the chains of the narrowest
    ended there."""
    inside, lines, budget = len(data[0]), len(prior_scale.SCALES) * prior_scale.FOLDS, costs.budget
    work = costs.per_sample * lines * min(batch_size, inside)  # of a step with a chain on each fold
    most = prior_scale.MOST_WORK if budget.trial is None else budget.trial
    costly = budget.trial is not None and work * prior_scale.EAGER.steps > most
    short = work / prior_scale.FOLDS * prior_scale.COSTLY.steps
    if short > most if costly else prior_scale.EAGER.affordable(work) is None:
        log.info("prior variance x 1: a trial of others would cost more than the run")
        return []
    scaled = _with_scales(sampler, scales, 1, recipe.FIRST_STEP)
    took = pace.of_scales(scaled, data, batch_size)
    if took and not time_limit.allows(pace.least(len(scales), took, costly=budget.spares)):
        log.info("prior variance x 1: there is no time for a trial of others")
        return []
    choices = step_size_rule.choose(scaled, data, inside, batch_size, costs, len(scales))
    usual = prior_scale.EAGER if choices[0].way.startswith("eager") else prior_scale.NATIVE
    affordable = usual.affordable(work) or prior_scale.EAGER.affordable(work)
    trial = prior_scale.COSTLY if costly else affordable
    assert trial is not None, "what the pilot was run for is affordable"
    if budget is cost.EAGER:
        trial = trial.on_enough(inside)
    if took:
        trial = pace.fitting(trial, len(scales), took, costly=budget.spares) or prior_scale.COSTLY
    runs: list[Compared] = []
    begin = None
    if before:
        last = next(run for run in reversed(before) if scales[0] in run.scales)
        trial = trial._replace(folds=last.trial.folds, chains=last.trial.chains)
        begin = last.end(scales[:1] * len(scales))
    while len(runs) < trial.rounds and scales:
        begin, after = runs[-1].end(scales) if runs else begin, len(before) + len(runs)
        run = _try_out(sampler, data, batch_size, scales, choices, trial, begin, after)
        if run is None:
            break
        runs.append(run)
        left = prior_scale.in_question(run.nll)
        scales, choices = tuple(scales[k] for k in left), [choices[k] for k in left]
    return runs


def _try_out(
    sampler: Any,
    data: tuple[Tensor, Tensor],
    batch_size: int,
    scales: tuple[float, ...],
    choices: list[recipe.Choice],
    trial: prior_scale.Trial,
    begin: tuple[Params, Params] | None,
    after: int,
) -> Compared | None:
    """A round of a trial, from where chains ``begin`` (None: at the end of their descent),
    ``after`` so many others; None where all chains were lost."""
    x, y = data
    inside, repeats = len(x), trial.folds * trial.chains
    rows = prior_scale.folds(inside, sampler.seed, trial.chains, trial.folds, len(scales))
    if sampler.held_out is not None:  # all rows to learn from, and others to be scored on
        x, y = (torch.cat([a, b.to(a)]) for a, b in zip((x, y), sampler.held_out, strict=True))
        numbers = torch.arange(len(x)).expand(len(scales) * repeats, -1)
        rows = prior_scale.Folds(numbers[:, :inside], numbers[:, inside:])
    etas = torch.tensor([c.step_size for c in choices]).repeat_interleave(repeats)
    compared = _with_scales(sampler, scales, repeats, etas, after=after)
    compared._begin = begin
    half = trial.steps // 2
    # Where the pilot went by the native engine, that has agreed with the reference on this network.
    checked = proven_network() if choices[0].way == "native" else nullcontext()
    try:
        with trials.trial(), checked:
            found = compared.sample(
                Subsets(x, y, rows.inside), trial.steps,
                batch_size=min(batch_size, rows.inside.shape[1]), burn_in=half,
                thin=half // trial.draws, progress=False,
            )  # fmt: skip
    except DivergenceError:
        return None
    nll = trial_predictions.nll(found, (x, y), rows.outside, trial.chains)
    nll = nll.unflatten(0, (-1, trial.folds)).flatten(1)
    return Compared(scales, choices, trial, found, (x, y), rows.outside, nll)
