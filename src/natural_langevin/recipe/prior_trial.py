"""The trial that chooses the prior's scale: runs of several scales, side by side on held-out folds,
each with the step size that a pilot finds for it. Folds and scales are the chains of one run.

Weights have the prior N(0, s gain^2 / fan_in). Every scale s runs on every fold's training rows,
and is scored by -ln of its predictive density on the rows held out, averaged over the draws of the
run's second half. If other scales are not clearly worse than the best, these continue for as long
again and are scored once more. The scale of the lowest score is chosen, or one between it and the
next wider, by interpolation. The same rows also calibrate the predictions (see
``posterior.calibration``): the sharpness for classes, the spread of the networks for numbers with
learned noise.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import Subsets
from natural_langevin.likelihoods.predictive import probabilities
from natural_langevin.posterior import calibration
from natural_langevin.posterior.plan import Calibration, Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.recipe import pace, step_size
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.cost import Search
from natural_langevin.recipe.settings import PriorTrial, Sharpness, Trial
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.run import Options, run

log = logging.getLogger("natural_langevin")

#: What held-out rows say of predictions, and why, by ``sharpness`` or ``spread``.
Calibrated = tuple[Calibration | None, dict[str, str]]
#: Healthy chains, and the rows that were held out of them.
Lines = list[tuple[list[int], Tensor]]
NO_TIME = "prior variance x 1: there is no time for a trial of others"


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

    def calibration(self, problem: Problem, scale: float, rule: Sharpness) -> Calibrated:
        """How sharp the predictions of a scale's chains should be, or how wide their spread: of
        classes, but for weighted ones, whose probabilities are of other proportions; or of numbers
        whose noise is learned, by several chains. One cannot tell how far they are apart."""
        (folds, chains), likelihood = (self.trial.folds, self.trial.chains), problem.likelihood
        classes = likelihood.link is not None and likelihood.class_weights is None
        numbers = likelihood.learns_width and chains > 1
        if not (classes or numbers) or not problem.one_temperature:
            return None, {}
        first = self.scales.index(scale) * folds
        # Where the rows held out are the same for every fold, one fold has them all.
        used = 1 if problem.held_out is not None else folds
        outside = self.outside[::chains][first : first + used].to(self.data[0].device)
        lines = [(pooled(self.found, k, chains), rows) for k, rows in enumerate(outside, first)]
        if not all(own for own, _ in lines):
            return None, {}
        if numbers:
            return spread_of_networks(self, lines)
        return sharpness(self, lines, likelihood.ignore_index, rule)


def choose(search: Search, data: tuple[Tensor, Tensor]) -> recipe.Choice | None:
    """The prior's scale by held-out rows, and the step size for it: with a wide prior the posterior
    is steeper in the metric. The pilot's choice at the usual scale where none was tried, and None
    if there are too few rows, or no time.

    The chains of several processes all have the same prior: each process chooses alone."""
    settings = search.costs.settings
    rule = settings.prior
    if len(data[0]) < rule.fewest_rows:
        return None
    choices, runs = _compare(search, data)
    if not runs:
        return choices.get(1.0)
    best, scale, why = best_scale(_scores(runs, rule), rule)
    # Networks that learn nothing all say the same, which beats the sure ones of a short trial on
    # few rows: narrower than usual only where all that are not are clearly behind.
    near = [runs[-1].scales[k] for k in near_best(runs[-1].nll, rule)]
    if scale < 1.0 and any(s >= 1.0 for s in near):
        best = scale = 1.0
    chosen = [one for one in runs if best in one.scales][-1]
    log.info("prior variance x %.3g: %s", scale, why)
    # A wider prior is steeper in the metric: what one chain found at a narrower one holds here too.
    upto = [c for s, c in choices.items() if s <= best]
    found, reasons = chosen.calibration(search.motion.problem, best, settings.sharpness)
    return dataclasses.replace(
        recipe.Choice.most_careful(upto),
        prior_scale=float(f"{scale:.3g}"),
        calibration=found,
        why={"prior": why} | reasons,
        trial_chains=chosen.trial.chains,
        end=chosen.end((best,)),
    )


def calibrated_as_run(
    search: Search, data: tuple[Tensor, Tensor], choice: recipe.Choice, steps: int
) -> recipe.Choice:
    """The choice, with the sharpness by as many chains as the run's and so many of its steps, on
    the rows held out of one fold: fewer chains, or shorter ones, are surer than the run. As the
    trial found it where that had as many, rows or steps are few, or time is limited; and where
    steps are no calls of torch: by an engine these would be a third of a search on 10,000 images.
    """
    rule, count = search.costs.settings.prior, search.motion.problem.chains.count
    few = choice.trial_chains < count and recipe.of_calls(choice.way)
    enough = len(data[0]) // rule.folds >= rule.enough_held_out and not search.limit.exists
    trial, scale = dataclasses.replace(rule.costly, steps=steps, chains=count), choice.prior_scale
    sharpened = choice.calibration is not None and choice.calibration.sharpness is not None
    if not (few and enough and sharpened) or scale is None or steps < 2 * trial.draws:
        return choice
    tried = _try_out(search, data, (scale,), [choice], trial, None, after=rule.native.rounds)
    if tried is None:
        return choice
    found, why = tried.calibration(search.motion.problem, scale, search.costs.settings.sharpness)
    return dataclasses.replace(choice, calibration=found, why=dict(choice.why) | why)


def _scores(runs: list[Compared], rule: PriorTrial) -> dict[float, float]:
    """Mean held-out -ln density of every scale, those of a later round replace earlier ones. A
    scale that was dropped before is assumed to have gained as much as the best of the others."""
    scores: dict[float, float] = {}
    for one in runs:
        found = dict(zip(one.scales, means(one.nll, rule), strict=True))
        if scores:
            best = min(found, key=found.__getitem__)
            scores = {s: value + found[best] - scores[best] for s, value in scores.items()}
        scores |= found
    return scores


def _compare(
    search: Search, data: tuple[Tensor, Tensor]
) -> tuple[dict[float, recipe.Choice], list[Compared]]:
    """The step sizes that a pilot finds for every scale, and the rounds of a trial of all: none
    where there is no time, or all chains are lost."""
    costs, batch_size, limit = search.costs, search.batch_size, search.limit
    settings, rule = costs.settings, costs.settings.prior
    inside, budget = len(data[0]), costs.budget
    step = costs.per_sample * min(batch_size, inside)  # of one chain
    most = costs.of_trial(batch_size, search.motion.problem.chains.count)
    scales = rule.affordable(most / (step * rule.costly.steps))
    work = step * len(scales) * rule.folds  # with a chain on each fold
    costly = budget.spares and work * rule.eager.steps > most
    scaled, pattern = _with_scales(search.motion, scales, 1)
    scaled = scaled.on(scaled.problem.on(data))
    took = None
    if limit.exists:
        took = pace.of_steps(scaled, batch_size, settings.step_size.first, settings.time)
    if took and not limit.allows(pace.least(search, len(scales), took)):
        log.info(NO_TIME)
        return {}, []
    # Where going down costs much, the trial goes on where the pilot has come to, on its fold.
    seen = data
    if costly and scaled.problem.held_out is None:
        seed, form = scaled.problem.chains.seed, rule.costly
        rows = folds(inside, seed, form.chains, form.folds, 1, rule).inside[0]
        seen = data[0][rows], data[1][rows]
    choices = step_size.by_curvature(
        search._replace(motion=scaled), seen, inside, len(scales), pattern=pattern
    )
    end = step_size.ends(choices) if costly else None
    usual = rule.eager if recipe.of_calls(choices[0].way) else rule.native
    affordable = usual.affordable(work, most) or rule.eager.affordable(work, most)
    trial = rule.costly if costly or affordable is None else affordable
    if not budget.engine:
        trial = trial.on_enough(inside, rule.enough_held_out)
    if took:
        trial = pace.fitting(search, trial, len(scales), took)
    runs: list[Compared] = []
    found = dict(zip(scales, choices, strict=True))
    if not limit.allows(0.0):
        log.info(NO_TIME)
        return found, runs
    while len(runs) < trial.rounds:
        begin = runs[-1].end(scales) if runs else end
        tried = _try_out(search, data, scales, choices, trial, begin, after=len(runs))
        if tried is None:
            break
        runs.append(tried)
        left = near_best(tried.nll, rule)
        if len(left) < 2:
            break
        scales, choices = tuple(scales[k] for k in left), [choices[k] for k in left]
    return found, runs


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
    rows = folds(
        inside, problem.chains.seed, trial.chains, trial.folds, len(scales), settings.prior
    )
    if problem.held_out is not None:  # all rows to learn from, and others to be scored on
        x, y = (torch.cat([a, b.to(a)]) for a, b in zip((x, y), problem.held_out, strict=True))
        numbers = torch.arange(len(x)).expand(len(scales) * repeats, -1)
        rows = Folds(numbers[:, :inside], numbers[:, inside:])
    etas = torch.tensor([c.step_size for c in choices]).repeat_interleave(repeats)
    compared, pattern = _with_scales(search.motion, scales, repeats, after=after)
    compared = compared.on(compared.problem.on(Subsets(x, y, rows.inside)))
    half, batch = trial.steps // 2, rows_of_batch(search, choices)
    descent = search.costs.descent(rows.inside.shape[1], search.batch_size, search.limit)
    descent = dataclasses.replace(descent, rounds=descent.rounds[: settings.prior.descent_rounds])
    plan = Plan(
        recipe="auto", prior="scales", metric="", dynamics="",
        batch_size=min(batch, rows.inside.shape[1]), steps=trial.steps, burn_in=half,
        thin=half // trial.draws, start=compared.start,
        descent=descent if search.downhill else None,
    )  # fmt: skip
    options = Options(begin=begin, pattern=pattern, limit=search.limit, trial=True)
    try:
        found = run(dataclasses.replace(compared, step_size=etas), plan, options)
    except DivergenceError:
        return None
    nll = held_out_nll(found, (x, y), rows.outside, trial.chains)
    nll = nll.unflatten(0, (-1, trial.folds)).flatten(1)
    return Compared(scales, choices, trial, found, (x, y), rows.outside, nll)


def rows_of_batch(search: Search, choices: list[recipe.Choice]) -> int:
    """Rows of a trial's minibatch: by the native engine, as few as keep the heat below its limit at
    the trial's friction, the usual one."""
    settings, usual = search.costs.settings, search.batch_size
    heat = max(c.heat * c.friction for c in choices) / settings.step_size.friction
    if choices[0].way != "native" or not heat:
        return usual
    fewest = round(usual * heat / settings.step_size.heat)
    return min(usual, max(settings.batch.fewest, fewest))


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


def near_best(scores: Tensor, rule: PriorTrial) -> list[int]:
    """The scales that are not clearly worse than the best, on the same rows."""
    each = bounded(scores, rule)
    behind = each - each[each.mean(1).argmin()]
    error = behind.std(1) / each.shape[1] ** 0.5
    close = behind.mean(1) <= (rule.errors * error).clamp_min(rule.behind)
    found: list[int] = close.nonzero().flatten().tolist()  # none that is not finite
    return found


def best_scale(scores: dict[float, float], rule: PriorTrial) -> tuple[float, float, str]:
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


def pooled(found: Posterior, line: int, chains: int) -> list[int]:
    """The healthy ones of a line's chains; none where most of them were lost: one that was is no
    verdict on a scale."""
    healthy = [c for c in range(line * chains, (line + 1) * chains) if c in found.healthy]
    return healthy if 2 * len(healthy) >= chains else []


def sharpness(tried: Compared, lines: Lines, ignored: int | None, rule: Sharpness) -> Calibrated:
    """How sharply the chains of some lines should predict; ``ignored``: a label without a say."""
    (x, y), mixtures, targets = tried.data, [], []
    for own, rows in lines:
        p = probabilities(tried.found.predict_dist(x[rows], chains=own))
        mixtures.append(p.reshape(-1, p.shape[-1]).cpu())
        targets.append(y[rows].flatten().long().cpu())
    p, labels = torch.cat(mixtures), torch.cat(targets)
    if ignored is not None:
        p, labels = p[labels != ignored], labels[labels != ignored]
    if not len(labels):
        return None, {}
    value, why = calibration.sharpness(
        p, labels, deviation=rule.deviation, least_gain=rule.least_gain
    )
    log.info("sharpness %.3g: %s", value, why)
    return Calibration(sharpness=value), {"sharpness": why}


def spread_of_networks(tried: Compared, lines: Lines) -> Calibrated:
    """How far networks should be from their mean (see ``posterior.calibration``); nothing where
    all of it is kept."""
    (x, y), found, parts = tried.data, tried.found, []
    for own, rows in lines:
        outputs = found.predict(x[rows], chains=own, sharpness=1.0).samples
        assert outputs is not None
        noise = found.learned["variance"][own].repeat_interleave(found.draws)
        parts.append(calibration.Predicted(outputs.cpu(), noise.cpu(), y[rows].cpu()))
    fitted = calibration.fit_spread(parts)
    if fitted is None:
        return None, {}
    a, widths, variance, gain = fitted
    why = f"{gain:.3g} nats gained on {sum(len(part.y) for part in parts)} held-out rows"
    log.info("spread of networks x %.3g: %s", a, why)
    return Calibration(spread=a, widths=tuple(widths), variance=variance), {"spread": why}


def held_out_nll(
    found: Posterior, data: tuple[Tensor, Tensor], outside: Tensor, chains: int
) -> Tensor:
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
