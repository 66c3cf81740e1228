"""The trial that chooses the prior's scale: runs of several scales, side by side on held-out folds
(see ``prior_scale``), each with the step size that a pilot finds for it.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import Subsets
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe import cost, pace, prior_scale, step_size, trial_predictions
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.settings import PriorTrial, Sharpness, Trial
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.run import Options, run
from natural_langevin.run.time_limit import TimeLimit

log = logging.getLogger("natural_langevin")


class Search(NamedTuple):
    """The setting of a trial of scales: the run's motion, whether its chains descend first, the
    cost of steps, and the time limit."""

    motion: Motion
    downhill: bool
    batch_size: int
    costs: cost.Costs
    limit: TimeLimit


def _with_scales(
    motion: Motion, scales: tuple[float, ...], repeats: int, after: int = 0
) -> tuple[Motion, Tensor]:
    """The motion of ``repeats`` chains for every scale of the prior, ``after`` so many others,
    whose noise it does not repeat; and which of them go downhill for all (see ``descent``)."""
    problem, variances = motion.problem, torch.tensor(scales).repeat_interleave(repeats)
    count, device = len(variances), problem.device
    several = dataclasses.replace(
        problem.with_chains(count, after=after),
        num_data=None,
        anchors=None,
        held_out=None,
        origin=None,
        units=None,
    )
    compared = motion.on(several.with_prior(recipe.prior(variances)))
    usual = repeats * (scales.index(1.0) if 1.0 in scales else 0)
    pattern = usual + torch.arange(repeats, device=device)
    start = motion.start_weights
    start = None if start is None else {k: v[:1] for k, v in start.items()}
    compared = dataclasses.replace(compared, mean_rate=None, start_weights=start)
    return compared, pattern.repeat(len(scales))


class Compared(NamedTuple):
    """Scales of the prior that were tried side by side, on the same rows from the same starts."""

    scales: tuple[float, ...]
    choices: list[recipe.Choice]  # step sizes
    trial: Trial
    found: Posterior  # of all of them
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

    def by_held_out_rows(self, problem: Problem, scale: float, rule: Sharpness) -> dict[str, Any]:
        """How sharp the predictions of a scale's chains should be, or how wide their spread."""
        folds, chains = self.trial.folds, self.trial.chains
        first = self.scales.index(scale) * folds
        # Where the rows held out are the same for every fold, one fold has them all.
        used = 1 if problem.held_out is not None else folds
        outside = self.outside[::chains][first : first + used]
        held_out = trial_predictions.HeldOut(self.found, self.data, outside, first, chains)
        return {
            "sharpness": trial_predictions.sharpness(problem, held_out, rule),
            "spread": trial_predictions.spread_of_networks(problem, held_out),
        }


def choose(search: Search, data: tuple[Tensor, Tensor]) -> recipe.Choice | None:
    """The prior's scale by held-out rows, and the step size for it: with a wide prior the posterior
    is steeper in the metric. None if there are too few rows, or it costs too much.

    The chains of several processes all have the same prior: each process chooses alone."""
    settings = search.costs.settings
    rule = settings.prior
    if len(data[0]) < rule.fewest_rows:
        return None
    runs = _compare(search, data)
    if not runs:
        return None
    best, scale, why = prior_scale.best(_scores(runs, rule), rule)
    # Networks that learn nothing all say the same, which beats the sure ones of a short trial on
    # few rows: narrower than usual only where all that are not are clearly behind.
    near = [runs[-1].scales[k] for k in prior_scale.near(runs[-1].nll, rule)]
    if scale < 1.0 and any(s >= 1.0 for s in near):
        best = scale = 1.0
    chosen = [one for one in runs if best in one.scales][-1]
    log.info("prior variance x %.3g: %s", scale, why)
    # A wider prior is steeper in the metric: what one chain found at a narrower one holds here too.
    upto = [c for s, c in zip(runs[0].scales, runs[0].choices, strict=True) if s <= best]
    return dataclasses.replace(
        recipe.Choice.most_careful(upto),
        prior_scale=recipe.HeldOutChoice(float(f"{scale:.3g}"), why),
        **chosen.by_held_out_rows(search.motion.problem, best, settings.sharpness),
    )


def _scores(runs: list[Compared], rule: PriorTrial) -> dict[float, float]:
    """Mean held-out -ln density of every scale, those of a later round replace earlier ones. A
    scale that was dropped before is assumed to have gained as much as the best of the others."""
    scores: dict[float, float] = {}
    for one in runs:
        found = dict(zip(one.scales, prior_scale.means(one.nll, rule), strict=True))
        if scores:
            best = min(found, key=found.__getitem__)
            scores = {s: value + found[best] - scores[best] for s, value in scores.items()}
        scores |= found
    return scores


def _compare(search: Search, data: tuple[Tensor, Tensor]) -> list[Compared]:
    """A pilot for every scale, then a trial of all, in rounds; None if it costs too much or
    fails."""
    costs, batch_size, limit = search.costs, search.batch_size, search.limit
    settings, rule = costs.settings, costs.settings.prior
    scales = rule.scales
    inside, lines, budget = len(data[0]), len(scales) * rule.folds, costs.budget
    work = costs.per_sample * lines * min(batch_size, inside)  # of a step with a chain on each fold
    most = costs.of_trial(batch_size, search.motion.problem.chains.count)
    costly = budget.spares and work * rule.eager.steps > most
    if work / rule.folds * rule.costly.steps > most:
        log.info("prior variance x 1: a trial of others would cost more than the run")
        return []
    scaled, pattern = _with_scales(search.motion, scales, 1)
    scaled = scaled.on(scaled.problem.on(data))
    took = None
    if limit.exists:
        took = pace.of_steps(scaled, batch_size, settings.step_size.first, settings.time)
    if took and not limit.allows(pace.least(len(scales), took, settings, costly=budget.spares)):
        log.info("prior variance x 1: there is no time for a trial of others")
        return []
    choices = step_size.by_curvature(
        scaled, data, inside, batch_size, costs, len(scales), downhill=search.downhill,
        pattern=pattern, limit=limit,
    )  # fmt: skip
    usual = rule.eager if recipe.of_calls(choices[0].way) else rule.native
    affordable = usual.affordable(work, most) or rule.eager.affordable(work, most)
    trial = rule.costly if costly or affordable is None else affordable
    if not budget.engine:
        trial = trial.on_enough(inside, rule.enough_held_out)
    if took:
        cheaper = pace.fitting(trial, len(scales), took, settings, limit, costly=budget.spares)
        trial = cheaper or rule.costly
    runs: list[Compared] = []
    while len(runs) < trial.rounds:
        begin = runs[-1].end(scales) if runs else None
        tried = _try_out(search, data, scales, choices, trial, begin, after=len(runs))
        if tried is None:
            break
        runs.append(tried)
        left = prior_scale.near(tried.nll, rule)
        if len(left) < 2:
            break
        scales, choices = tuple(scales[k] for k in left), [choices[k] for k in left]
    return runs


def _try_out(
    search: Search,
    data: tuple[Tensor, Tensor],
    scales: tuple[float, ...],
    choices: list[recipe.Choice],
    trial: Trial,
    begin: tuple[Params, Params] | None,
    *,
    after: int,
) -> Compared | None:
    """A round of a trial, from where chains ``begin`` (None: at the end of their descent),
    ``after`` so many others; None where all chains were lost."""
    (x, y), problem = data, search.motion.problem
    inside, repeats = len(x), trial.folds * trial.chains
    settings = search.costs.settings
    rows = prior_scale.folds(
        inside, problem.chains.seed, trial.chains, trial.folds, len(scales), settings.prior
    )
    if problem.held_out is not None:  # all rows to learn from, and others to be scored on
        x, y = (torch.cat([a, b.to(a)]) for a, b in zip((x, y), problem.held_out, strict=True))
        numbers = torch.arange(len(x)).expand(len(scales) * repeats, -1)
        rows = prior_scale.Folds(numbers[:, :inside], numbers[:, inside:])
    etas = torch.tensor([c.step_size for c in choices]).repeat_interleave(repeats)
    compared, pattern = _with_scales(search.motion, scales, repeats, after=after)
    compared = compared.on(compared.problem.on(Subsets(x, y, rows.inside)))
    half = trial.steps // 2
    plan = Plan(
        recipe="auto", prior="scales", metric="", dynamics="",
        batch_size=min(search.batch_size, rows.inside.shape[1]), steps=trial.steps, burn_in=half,
        thin=half // trial.draws, start=compared.start,
        descent=settings.descent if search.downhill else None,
    )  # fmt: skip
    options = Options(
        begin=begin,
        pattern=pattern,
        rounds=settings.prior.descent_rounds,
        limit=search.limit,
        trial=True,
    )
    try:
        found = run(dataclasses.replace(compared, step_size=etas), plan, options)
    except DivergenceError:
        return None
    nll = trial_predictions.nll(found, (x, y), rows.outside, trial.chains)
    nll = nll.unflatten(0, (-1, trial.folds)).flatten(1)
    return Compared(scales, choices, trial, found, (x, y), rows.outside, nll)
