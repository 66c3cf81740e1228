"""``decide``: chooses everything that the user did not give, by the recipe: a Plan.

    decide(motion, given, asked) -> Decided        follow(motion, plan) -> Motion

``motion`` holds the problem with its data; ``given`` are the sampler's arguments and constants,
``asked`` the arguments of ``sample``. The search runs a pilot for the step size and, if no
prior was given, trials of its scale on held-out rows; nothing else is run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from natural_langevin._internal.chains import Params
from natural_langevin._internal.fingerprints import stable_repr
from natural_langevin.data.loaders import SharedBatches
from natural_langevin.data.streams import Subsets
from natural_langevin.posterior.plan import Plan
from natural_langevin.recipe import (
    cost,
    pace,
    prior_trial,
    run_length,
    step_size,
)
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.open_settings import Given
from natural_langevin.run import preparation
from natural_langevin.run.kept_draws import check_given
from natural_langevin.run.problem import starts
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.step_size_checks import known_step_size
from natural_langevin.run.problem.validation import whole_number
from natural_langevin.run.time_limit import NO_LIMIT, Time, TimeLimit
from natural_langevin.run.until import parse, thinning

log = logging.getLogger("natural_langevin")

#: From the seed of a run to that of its search.
APART = 1 << 40
#: The reason of a length that the clock has chosen.
AS_TIME_ALLOWS = "as time allows"


@dataclass(frozen=True)
class Asked:
    """The arguments of ``sample``; None: not given."""

    steps: int | None = None
    seconds: float | None = None
    until: str | None = None
    batch_size: int | None = None
    burn_in: int | None = None
    thin: int | None = None
    keep: int | None = None
    exchange: int | None = None


class Decided(NamedTuple):
    """A plan; and where the first chains begin in the same call: weights, and what likelihoods have
    learned, of chains of the search that have gone down already."""

    plan: Plan
    begin: tuple[Params, Params] | None = None


def decide(motion: Motion, given: Given, asked: Asked, limit: TimeLimit = NO_LIMIT) -> Decided:
    """The plan of a run on the motion's problem."""
    check_given(
        steps=asked.steps, burn_in=asked.burn_in, thin=asked.thin, batch_size=asked.batch_size
    )
    processes, asked = motion.problem.chains.processes, _with_loaders_batch(motion, asked)
    log.info("recipe=%r chooses what was not given", given.recipe)
    if given.by_recipe:
        with processes.together("choosing what was not given"):
            found = _by_recipe(motion, given, asked, limit)
            return found._replace(plan=found.plan.as_decided())
    return Decided(_by_paper(motion, given, asked, limit).as_decided())


def follow(motion: Motion, plan: Plan) -> Motion:
    """The motion of a plan: with its chains, start, friction, prior scale and execution."""
    found = motion if motion.start == plan.start else replace(motion, start=plan.start)
    if plan.execution != str(motion.compile):
        mode = {"True": True, "False": False}.get(plan.execution, plan.execution)
        found = replace(found, compile=mode)
    if plan.chains is not None:
        found = found.on(found.problem.with_chains(plan.chains))
    if plan.friction is not None:
        found = replace(found, integrator=recipe.dynamics(plan.friction))
    if plan.control_variates != found.problem.anchors and plan.control_variates is not None:
        found = found.on(replace(found.problem, anchors=plan.control_variates))
    if plan.prior_scale is not None:
        found = found.on(found.problem.with_prior(recipe.prior(plan.prior_scale)))
    return found


def adopted(
    motion: Motion, given: Given, plan: Plan, asked: Asked, there: Mapping[str, Any],
    limit: TimeLimit = NO_LIMIT,
) -> Plan:  # fmt: skip
    """A plan made beforehand, changed by the arguments given beside it; refused if it was made for
    another prior, another metric or other dynamics, which are the sampler's own. ``there``: the
    configuration of a checkpoint. If it is of this plan, its current phase is extended to the steps
    asked for."""
    ours = _named(motion, given, asked)
    chosen = plan.prior_scale is not None
    if chosen != given.scale_open or (given.auto and plan.step_size is None):
        raise ValueError(
            "the plan belongs to another sampler: a prior or step size was given there and is "
            "chosen here, or the other way round. Give a plan returned by this sampler's plan(data)"
        )
    if plan.start == "given" and motion.start_weights is None:
        raise ValueError('start is "given" in the plan, and init= of this sampler is no weights')
    if plan.prior == (at_scale := _named(follow(motion, plan), given, asked).prior):
        ours = replace(ours, prior=at_scale)
    for name in ("recipe", "metric", "dynamics", "prior"):
        if (theirs := getattr(plan, name)) != (here := getattr(ours, name)):
            raise ValueError(
                f"the plan belongs to another sampler: {name} is {theirs} there, {here} here. "
                "Give a plan returned by this sampler's plan(data)"
            )
    asked = _with_loaders_batch(motion, asked)
    same = _with(plan, replace(asked, steps=None))
    if asked.steps is not None and Plan.from_config(there) == same:
        phase, steps = int(there.get("phase", 0)), int(there["steps"])
        if asked.steps >= steps:
            return same if asked.steps == steps else same.longer(phase, asked.steps)
    found = _with(plan, asked)
    if asked.seconds is None or found.until is not None:
        return found
    return _in_time(follow(motion, found), found, given.settings.time, limit)


def _in_time(motion: Motion, plan: Plan, rule: Time, limit: TimeLimit) -> Plan:
    """The plan, or as much of it as there is time for: what is open of its burn-in and thinning is
    that of a run of the steps expected, which the clock ends."""
    if not limit.ends_run:
        raise ValueError(
            f"seconds={plan.seconds:g} cannot end the run of a plan that has a checkpoint, or "
            "several processes: its steps are counted. Give steps=, or seconds= to plan(data)"
        )
    size = plan.schedule() or motion.step_size
    assert size is not None
    assert plan.seconds is not None
    down = 0 if plan.descent is None else motion.problem.chains.count
    steps = pace.steps_within(
        motion, plan.seconds, plan.batch_size, size, rule, going_down=down, limit=limit
    )
    most = plan.steps if plan.open_end is None else plan.open_end.most
    if steps >= most:
        return plan
    _, burn_in, thin = plan.usual(steps, plan.burn_in, plan.thin)
    steps = min(most, max(int(rule.more * steps), burn_in + thin))
    reasons = dict(plan.reasons) | dict.fromkeys(("steps", "burn_in", "thin"), AS_TIME_ALLOWS)
    return replace(plan, steps=steps, burn_in=burn_in, thin=thin, end=None, reasons=reasons)


def is_of(plan: Plan, given: Given) -> bool:
    """Whether a plan chooses exactly what the sampler was not given. Otherwise it belongs to
    another run, which a checkpoint reports better."""
    scale, size = plan.prior_scale is not None, plan.step_size is not None
    return plan.recipe == given.recipe and scale == given.scale_open and size == given.auto


def resumed(
    motion: Motion, given: Given, plan: Plan, asked: Asked, *, phase: int, steps: int
) -> Plan:
    """The plan of a resumed run, which keeps its choices; if more steps are asked for than the
    current ``phase`` has, the phase is extended."""
    asked = _with_loaders_batch(motion, asked)
    if asked.steps is not None and asked.steps >= steps:
        kept = resumed(motion, given, plan, replace(asked, steps=None), phase=phase, steps=steps)
        return kept if asked.steps == steps else kept.longer(phase, asked.steps)
    if not given.by_recipe:
        fresh = _given_plan(motion, given, replace(asked, steps=asked.steps or plan.steps))
        names = ("step_size", "falls_from", "measured", "reasons", "decided")
        chosen = {k: getattr(plan, k) for k in names}
        return replace(fresh, seconds=plan.seconds, **chosen)
    start = plan.start if given.start_open else motion.start
    same = replace(
        plan, start=start, calibrate=given.calibrate, until=asked.until, keep=asked.keep,
        exchange=asked.exchange, execution=str(motion.compile),
    )  # fmt: skip
    return _with(same, asked)


def _with_loaders_batch(motion: Motion, asked: Asked) -> Asked:
    """With the batch size of a DataLoader, if there is one: its batches are taken as they are."""
    size = motion.problem.loaders_batch
    return asked if size is None else replace(asked, batch_size=size)


def _with(plan: Plan, asked: Asked) -> Plan:
    """The plan with the given arguments in place of its own."""
    said = {f.name: getattr(asked, f.name) for f in dataclasses.fields(asked)}
    found = replace(plan, **{k: v for k, v in said.items() if v is not None})
    check_given(
        steps=found.steps, burn_in=found.burn_in, thin=found.thin, batch_size=found.batch_size
    )
    return found


def _named(motion: Motion, given: Given, asked: Asked) -> Plan:
    """A plan of no length, which names prior, metric and integrator, and what no recipe chooses."""
    priors = {stable_repr(p) for p in motion.problem.prior.values()}
    why = {k: v for k, v in given.why.items() if k != "prior" or not given.scale_open}
    return Plan(
        recipe=given.recipe,
        prior="; ".join(sorted(priors)),
        metric=stable_repr(motion.preconditioner),
        dynamics=stable_repr(motion.integrator),
        batch_size=1,
        steps=1,
        keep=asked.keep,
        until=asked.until,
        seconds=asked.seconds,
        exchange=asked.exchange,
        calibrate=given.calibrate,
        execution=str(motion.compile),
        reasons=why,
    )


def _by_paper(motion: Motion, given: Given, asked: Asked, limit: TimeLimit) -> Plan:
    """The plan of a sampler with a given step size or dynamics."""
    settings, steps = given.settings, asked.steps
    batch_size = _paper_batch(motion, asked)
    if steps is None and asked.seconds is not None and asked.until is None:
        size = known_step_size(given.step_size)
        steps = pace.steps_within(
            motion, asked.seconds, batch_size, size, settings.time, going_down=0,
            limit=limit,
        )  # fmt: skip
        steps = int(settings.time.more * steps) if limit.ends_run else steps
    clocked = asked.steps is None
    if steps is None:
        raise ValueError(
            "steps is required with a given step size: sample(data, steps=...); with "
            'step_size="auto", the default, the run chooses its length. With until=, steps is '
            "the upper limit"
        )
    plan = _given_plan(motion, given, replace(asked, steps=steps))
    if clocked:
        plan = replace(plan, reasons=dict(plan.reasons) | {"steps": AS_TIME_ALLOWS})
    if not given.auto:
        return plan
    with motion.problem.chains.processes.together("choosing the step size"):
        step_size.refuse_loader(motion.problem.data)
        preparation.engine(motion, steps=1, batch_size=batch_size, step_size=0.0)  # for its checks
        choice = step_size.by_held_out_rows(
            motion, settings.search, steps=plan.steps, batch_size=batch_size
        )
    return replace(
        plan, step_size=choice.step_sizes, falls_from=choice.steps,
        measured={"pilot": choice.as_dict()},
        reasons=dict(plan.reasons) | {"step_size": choice.reason},
    )  # fmt: skip


def _paper_batch(motion: Motion, asked: Asked) -> int:
    """Rows of a minibatch, without the recipe's rule."""
    size = preparation.open_batch(motion) if asked.batch_size is None else asked.batch_size
    return whole_number("batch_size", size)


def _given_plan(motion: Motion, given: Given, asked: Asked) -> Plan:
    """A plan of ``asked.steps`` steps in which only the step size is not given."""
    named = _named(motion, given, asked)
    usual = {
        "start": "the paper's" if given.start_open else None,
        "batch_size": "100, or all there are" if asked.batch_size is None else None,
        "burn_in": "the paper's" if asked.burn_in is None else None,
        "thin": "the paper's: every iterate is kept" if asked.thin is None else None,
    }
    return replace(
        named,
        batch_size=_paper_batch(motion, asked),
        steps=whole_number("steps", asked.steps),
        burn_in=whole_number("burn_in", asked.burn_in or 0),
        thin=whole_number("thin", 1 if asked.thin is None else asked.thin),
        start=motion.start,
        reasons=dict(named.reasons) | {k: v for k, v in usual.items() if v is not None},
    )


def _by_recipe(motion: Motion, given: Given, asked: Asked, limit: TimeLimit) -> Decided:
    """Chooses batch size, start, prior's scale, step size and length, if they were not given."""
    problem, batch_size, settings = motion.problem, asked.batch_size, given.settings
    parse(asked.until)  # refused here where it is no target
    # For its checks: whatever is wrong with the data is said before anything else is done.
    preparation.engine(
        motion, steps=1, batch_size=1 if batch_size is None else batch_size, step_size=0.0
    )
    x, y, num_data = problem.rows()
    costs = cost.of_problem(problem, x, settings)
    batch_why = "given" if problem.loaders_batch is None else "the DataLoader's"
    if batch_size is None:
        batch_size = _batch_size(motion, len(x), costs)
        rule = settings.batch
        batch_why = (
            f"a {rule.part}th of the rows, from {rule.fewest} to {rule.most}, as costs allow"
            if batch_size < num_data
            else "all rows: two minibatches would not fit"
        )
    if costs.are_cheap(batch_size, problem.chains.count):
        settings = settings.where_cheap(discrete=problem.likelihood.discrete)
        given, costs = replace(given, settings=settings), costs._replace(settings=settings)
    begin, downhill, why = motion.start, False, "given"
    if begin == "auto":
        begin, downhill = starts.better(problem, (x, y), settings.start)
        why = "the model is trained" if begin == "model" else "the model is untrained"
    if begin == "model" and problem.likelihood.own_parameter is not None:
        downhill = True  # the noise, at least, has learned nothing
    motion = replace(motion, start=begin)
    searching = motion
    if limit.exists:  # its chains may be the run's, which does not repeat their noise
        chains = replace(problem.chains, seed=(problem.chains.seed + APART) % (1 << 63))
        searching = motion.on(replace(problem, chains=chains))
    search = cost.Search(searching, downhill, batch_size, costs, limit.searching())
    choice = _chosen(search, given, (x, y), num_data)
    if given.auto:
        choice = step_size.with_anchors(choice, problem, num_data, batch_size, settings)
    else:
        choice = _with_step_size(choice, given)
    log.info("step_size=%s", choice.reason)
    scale = None
    if given.scale_open:
        scale = 1.0 if choice.prior_scale is None else choice.prior_scale
    named = _named(motion, given, asked)
    plan = replace(
        named,
        batch_size=batch_size,
        start=begin,
        descent=costs.descent(num_data, batch_size, limit) if downhill else None,
        prior_scale=scale,
        draws=costs.draws(problem.chains.count),
        step_size=choice.step_size if given.auto else None,
        attempts=settings.length.attempts,
        friction=choice.friction,
        control_variates=choice.control_variates,
        units=problem.units,
        measured=choice.measured(),
        reasons=dict(named.reasons) | choice.reasons() | {"start": why, "batch_size": batch_why},
    )
    affordable = None
    # Of several processes only the run without a target is as long as all of them have measured.
    by_time = asked.steps is None and asked.seconds is not None
    if by_time and (limit.exists or asked.until is None):
        plan, affordable = _within(search, plan, choice, limit, chains_open=given.chains_open)
    begin_at = choice.end if downhill and limit.exists else None
    lengths = _length(search, plan, choice, asked, affordable, ends=limit.ends_run)
    reasons = dict(plan.reasons) | {"steps": lengths.reason}
    if lengths.reason == AS_TIME_ALLOWS:
        chosen = [k for k in ("burn_in", "thin") if getattr(asked, k) is None]
        reasons |= dict.fromkeys(chosen, AS_TIME_ALLOWS)
    plan = replace(
        plan, steps=lengths.steps, burn_in=lengths.burn_in, thin=lengths.thin, end=lengths.end,
        reasons=reasons,
    )  # fmt: skip
    if not given.calibrate:
        return Decided(plan, begin_at)
    _, burn_in, _ = plan.lengths()[0]
    choice = prior_trial.calibrated_as_run(search, (x, y), choice, burn_in)
    plan = replace(
        plan, calibration=choice.calibration, reasons=dict(plan.reasons) | choice.reasons()
    )
    return Decided(plan, begin_at)


def _with_step_size(choice: recipe.Choice, given: Given) -> recipe.Choice:
    """The same with a given step size, whose largest value determines the length, and the heat."""
    size = known_step_size(given.step_size)
    eta = float(torch.as_tensor(size(0) if callable(size) else size).max())
    heat = choice.heat * eta / choice.step_size
    return dataclasses.replace(choice, step_size=eta, heat=heat, reason="given")


def _batch_size(motion: Motion, rows: int, costs: cost.Costs) -> int:
    """Rows of a minibatch, fewer where a run of them would cost too much: at the same heat, chains
    come as far per row with small minibatches as with large ones."""
    data, chains = motion.problem.data, motion.problem.chains.count
    num_data = data.rows.shape[1] if isinstance(data, Subsets) else rows
    rule = costs.settings
    affordable = costs.rows_of_step(rule.length.most_eager, chains)
    return recipe.batch_size(num_data, affordable, rule.batch)


def _chosen(
    search: cost.Search,
    given: Given,
    rows: tuple[Tensor, Tensor],
    num_data: float,
) -> recipe.Choice:
    """The step size, and the prior's scale if it was not given. With a DataLoader some of its rows
    are used to choose the scale; the step size follows from the number of all rows."""
    choice, motion, data = None, search.motion, search.motion.problem.data
    lent = isinstance(data, DataLoader | SharedBatches)
    if given.scale_open and (lent or motion.problem.in_memory):
        choice = prior_trial.choose(search, rows)
    if choice and not lent:
        return choice
    scale = choice.prior_scale if choice else None
    if given.scale_open:
        prior = recipe.prior(scale or 1.0)
        motion = motion.on(motion.problem.with_prior(prior))
        search = search._replace(motion=motion)
    pilot = step_size.by_curvature(search, rows, num_data, shuffled=not lent)
    found = replace(recipe.Choice.most_careful(pilot), end=step_size.ends(pilot))
    if choice is None:
        return found
    by_rows = {k: getattr(choice, k) for k in ("prior_scale", "calibration", "why")}
    return dataclasses.replace(found, **by_rows)


def _within(
    search: cost.Search, plan: Plan, choice: recipe.Choice, limit: TimeLimit, *, chains_open: bool
) -> tuple[Plan, int]:
    """The number of steps that there is time for, and the plan: with fewer chains where there is no
    time for all to go down, and with more if more steps would not help."""
    motion, costs, seconds = search.motion, search.costs, plan.seconds or 0.0
    there = 0 if choice.end is None else min(len(v) for v in choice.end[0].values())

    def steps_of(plan: Plan) -> int:
        run = follow(motion, plan)
        down = 0 if plan.descent is None else max(0, run.problem.chains.count - there)
        return pace.steps_within(
            run, seconds, plan.batch_size, choice.step_size, costs.settings.time, going_down=down,
            limit=limit,
        )  # fmt: skip

    count = motion.problem.chains.count
    if chains_open and plan.descent is not None and (going := limit.going(count, there)) < count:
        why = f"there is no time for {count} to go down"
        plan = replace(plan, chains=going, reasons=dict(plan.reasons) | {"chains": why})
        return plan, steps_of(plan)
    steps = steps_of(plan)
    times = min(costs.settings.time.most_chains, steps // costs.settings.length.most)
    if not (chains_open and limit.exists and times > 1):
        return plan, steps
    why = f"{count} would have time for {steps} steps each"
    plan = replace(
        plan, chains=times * count, draws=costs.draws(times * count),
        reasons=dict(plan.reasons) | {"chains": why},
    )  # fmt: skip
    return plan, steps_of(plan)


def _length(
    search: cost.Search, plan: Plan, choice: recipe.Choice, asked: Asked, affordable: int | None,
    *, ends: bool,
) -> run_length.Length:  # fmt: skip
    """The length of the run. ``affordable``: steps that there is time for, if time is limited;
    ``ends``: whether the clock ends it. Where a target may end it, ``steps`` is the most it may
    take, and burn-in and thinning are those of a run of the usual length, or of the time that there
    is if that is less."""
    problem, costs = follow(search.motion, plan).problem, search.costs

    def length(steps: int | None, burn_in: int | None, thin: int | None) -> run_length.Length:
        return run_length.choose(
            choice, costs.settings, costs.budget, steps=steps, burn_in=burn_in, thin=thin,
            work=costs.per_sample * problem.chains.count * plan.batch_size,
            fewest=costs.fewest_steps(problem.rows()[2], plan.batch_size, problem.chains.count),
        )  # fmt: skip

    burn_in, thin = asked.burn_in, asked.thin
    usual = None if asked.until is None else length(None, burn_in, thin)
    if affordable is not None and (usual is None or affordable < usual.steps):
        steps = affordable
        if ends or usual is not None:  # burn-in and thinning are those of the steps expected
            _, burn_in, thin = plan.usual(affordable, burn_in, thin)
            steps = int(costs.settings.time.more * affordable)
        return length(steps, burn_in, thin)._replace(reason=AS_TIME_ALLOWS)
    if usual is None or (asked.steps is not None and asked.steps <= usual.steps):
        return length(asked.steps, burn_in, thin)
    weights = 4 * problem.chains.count * problem.weights
    most = costs.settings.length.until
    return extended(plan, usual, asked.steps, asked.thin, weights, most)


def extended(
    plan: Plan,
    usual: run_length.Length,
    steps: int | None,
    thin: int | None,
    bytes_per_draw: int,
    times: int,
) -> run_length.Length:
    """A run that may go on to so many ``times`` its usual length, with draws as far apart as usual:
    further only where all of them would take too much memory, and the user has not said how
    far."""
    most = usual.steps * times if steps is None else steps
    _, burn_in, apart = plan.usual(usual.steps, usual.burn_in, usual.thin)
    factor = thinning((most - burn_in) // apart, bytes_per_draw) if thin is None else 1
    return run_length.Length(most, burn_in, apart * factor, None, "the most until the target")
