"""A run: the phases of a plan one after the other, on one process or several, to the posterior."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin import random, schedules
from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import InMemory
from natural_langevin.distributed.process_mesh import ProcessMesh, shard_posterior
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.posterior import networks, stores
from natural_langevin.posterior.plan import Plan
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.units import Units
from natural_langevin.run import (
    descent,
    description,
    last_rows,
    loop,
    preparation,
    until,
)
from natural_langevin.run.checkpoint import (
    check_same_everywhere,
    check_same_way,
    open_checkpoint,
    resumed_config,
)
from natural_langevin.run.collector import SampleCollector
from natural_langevin.run.exchange import ReplicaExchange
from natural_langevin.run.kept_draws import Phase, check_memory, phases
from natural_langevin.run.look import Callback, ChainsLostError, Watching
from natural_langevin.run.loop import RunPlan
from natural_langevin.run.problem import notices
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.problem.step_size_checks import StepSize
from natural_langevin.run.time_limit import NO_LIMIT, TimeLimit, clock
from natural_langevin.run.until import EssTarget
from natural_langevin.run.until import parse as parse_until

log = logging.getLogger("natural_langevin")


@dataclass(frozen=True, eq=False)
class Options:
    """Options that are not part of a plan: stores, checkpoints, callbacks, the time limit.

    ``begin``: weights, and what likelihoods have learned, to begin at in place of the plan's start,
    of all chains or the first. ``pattern``: see ``descent``.
    ``trial``: the run compares settings and is not diagnosed: a diverging chain or a stiff step
    size is a result there, not a warning. ``partial``: whether Ctrl-C may end the run with the
    draws that there are. ``probe``: whether the temperature is measured at its end. ``said``:
    notices that were given already. ``commit``: called after every checkpoint
    (``checkpoint.local_folders``)."""

    where: str | Path = "device"
    commit: Callable[[], None] | None = None
    dtype: torch.dtype | None = None
    checkpoint: str | os.PathLike[str] | None = None
    every: int | None = None
    callback: Callback | None = None
    progress: bool | str = False
    limit: TimeLimit = NO_LIMIT
    begin: tuple[Params, Params] | None = None
    pattern: Tensor | None = None
    trial: bool = False
    partial: bool = True
    probe: bool = True
    said: set[str] = field(default_factory=set)

    @property
    def may_end_early(self) -> bool:
        """Whether Ctrl-C may end the run with the draws that there are."""
        return self.partial and not self.trial

    @property
    def level(self) -> int:
        """At which trouble of a chain is logged."""
        return logging.INFO if self.trial else logging.WARNING


def run(motion: Motion, plan: Plan, options: Options) -> Posterior:
    """The posterior of a plan. A phase that was too short is followed by the next, from where it
    ended; one that loses chains by the first again, with smaller steps. A checkpoint's phase is
    gone on with, beyond its end if the plan has more steps.

    ``motion``: the plan's (``recipe.decide.follow``)."""
    todo = phases(plan, _stages(motion))
    there = resumed_config(options.checkpoint, motion.problem.chains.processes)
    number, known = min(int(there.get("phase", 0)), len(todo) - 1), Plan.from_config(there)
    while known is not None and plan.may_begin_again and plan.attempts > known.attempts:
        plan = plan.gentler()
    first = plan
    if known is not None and todo[number].continues(phases(known, _stages(motion))[number]):
        first = replace(plan, steps=known.steps, end=known.end, extended=known.extended)
    found = _phase(motion, _Part(first, number, there.get("draws_before", [])), options, plan)
    while not isinstance(found, Posterior):
        found = _phase(motion, found, options)
    return found


@dataclass
class _Part:
    """The phase of a plan that is to run. ``old``: files of draws before. ``before``: where the
    phase before ended, or this one when it was shorter, by which steps it ``collected``."""

    plan: Plan
    number: int
    old: list[str]
    before: State | None = None
    collected: tuple[SampleCollector, RunPlan] | None = None


def _stages(motion: Motion) -> schedules.Stages | None:
    return None if motion.step_size is None else schedules.stages(motion.step_size)


class _Ready(NamedTuple):
    """A phase that can begin: what takes its steps, and what keeps and describes them.

    ``identity``: what a checkpoint or a folder of draws must have in common with it. ``where``:
    where this process keeps its draws."""

    steps: RunPlan
    engine: Engine
    state: State
    swaps: ReplicaExchange | None
    collector: SampleCollector
    sink: stores.Store
    where: str | Path
    config: dict[str, Any]
    identity: dict[str, Any]


def _phase(
    motion: Motion, part: _Part, options: Options, resumes: Plan | None = None
) -> Posterior | _Part:
    """One phase, or what is to follow it. ``resumes``: the plan by which a checkpoint's phase goes
    on, beyond its end if it is another."""
    problem, mesh, plan = motion.problem, motion.problem.chains.processes, part.plan
    todo, number, before = phases(plan, _stages(motion)), part.number, part.before
    phase = todo[number]
    ready = _ready(motion, part, phase, options)
    engine, collector, config, steps = ready.engine, ready.collector, ready.config, ready.steps

    def so_far(now: State) -> Posterior:
        return _posterior(motion, problem, collector.so_far, now, config)

    def left() -> float:
        return options.limit.left_for_steps(plan.seconds or 0.0)

    def again(every: bool) -> bool:
        return every or not options.limit.exists or left() > clock() - began

    wanted, began = parse_until(plan.until), clock()
    by_clock = plan.seconds is not None and (wanted is not None or options.limit.ends_run)
    target = EssTarget(
        wanted, so_far, engine.stream.example()[0], seconds=left if by_clock else None,
        anywhere=lambda late: mesh.any([late])[0],
    )  # fmt: skip
    watcher = Watching(
        engine, mesh, target, steps=phase.steps,
        again=again if plan.may_begin_again and not options.trial else None,
        callback=_shifted(options.callback, problem.units),
    )  # fmt: skip

    def start(state: State) -> State:
        if before is not None and part.collected is not None:
            (shorter, were), part.collected = part.collected, None  # draws may be large
            iterates = filter(were.keeps, itertools.count(were.burn_in + were.thin, were.thin))
            collector.take_over(shorter, map(steps.keeps, iterates), steps.look_every)
            return before
        begun = _started(motion, plan, engine, state, before, options)
        target.begin()
        return begun if ready.swaps is None else ready.swaps.begin(begun)

    as_it_is = before is None and options.begin is None and plan.descent is None
    with contextlib.ExitStack() as closing:
        closing.callback(ready.sink.close)
        saved = open_checkpoint(
            options.checkpoint, ready.identity, engine.stream, mesh, description.made_by(motion),
            options.commit,
        )  # fmt: skip
        if saved is not None:
            closing.callback(saved.close)
        with mesh.together("the run"):
            tree = None
            if saved is not None and resumes is not None:
                tree = saved.load(loop.tree(ready.state, collector))
            try:
                state, interrupted = loop.run(
                    steps, engine, ready.state, collector,
                    saved=saved, found=tree,
                    title=options.progress if isinstance(options.progress, str) else "sampling",
                    progress=bool(options.progress), processes=mesh, watcher=watcher,
                    start=None if as_it_is else start,
                    partial=saved is None and mesh.world == 1 and options.may_end_early,
                )  # fmt: skip
            except ChainsLostError as lost:
                gentler = plan.gentler()
                log.info("%s: again, with step_size=%s", lost, gentler.reasons["step_size"])
                return _Part(gentler, 0, [*part.old, *ready.sink.files])
        # Chains that were lost are reported: another phase would begin with them again.
        running = bool((mesh.all_rows(state.diverged) < 0).all())
        old, longer = [*part.old, *ready.sink.files], resumes
        if saved is not None and longer not in (None, plan):
            # The way of its steps is proven on one of them: the last, where it has ended.
            last = engine.rates.start + len(engine.rates) - 1
            engine.prepare(state._replace(step=state.step.clamp_max(last)))
            check_same_way(saved.way, engine.arithmetic)
        elif (end := plan.open_end) is not None and not interrupted and running:
            why = until.too_short(so_far(state), engine.stream, end.rule)
            if why and number + 1 < len(todo):
                # With a metric of few batches, chains that went on were thrown out, or lost.
                more = todo[number + 1].steps
                log.info("%s: %d steps were burn-in, and %d follow", why, phase.steps, more)
                return _Part(plan, number + 1, old, state)
            config["ended"] = f"no steps are left: {why}" if why else "its chains agree"
            log.info("the run ends: %s", config["ended"])
        if longer is not None and longer != plan:
            return _Part(longer, number, old, state, (collector, steps))
        config |= description.length_reached(plan, phase, target, state, interrupted)
        if ready.swaps is not None:
            config["exchange"] = ready.swaps.report(state)
        probe = options.probe and not options.trial
        config |= description.measured(motion, engine, state, probe=probe)
        if not options.trial and last_rows.noise_is_open(problem, plan):
            state, widths = last_rows.noise_widths(problem, plan, so_far, state)
            config |= widths
        found = _posterior(motion, problem.user, collector.finish, state, config)
    if plan.calibrate and not options.trial:
        last_rows.beside_trained(found, problem.user)
    for name in part.old:
        Path(ready.where, name).unlink(missing_ok=True)
    if problem.units is not None:
        problem.units.hand_back(found, problem.user.likelihood)
    return found


def _ready(motion: Motion, part: _Part, phase: Phase, options: Options) -> _Ready:
    """The phase with all that it needs."""
    problem, mesh, plan = motion.problem, motion.problem.chains.processes, part.plan
    weights = problem.network.trainable()
    dtype = options.dtype or next(iter(weights.values())).dtype
    own = {k: p.expand(len(problem.chains.ids), *p.shape) for k, p in weights.items()}
    specs = networks.specs(own, phase.draws, dtype)
    with mesh.together("preparing the run"):
        check_memory(specs, options.where, problem.device)
        step_size, engine, state = _prepared(motion, plan, phase, options)
    if not options.trial and part.before is None:
        fitted = plan.by_recipe and motion.start == "model"
        notices.notice(motion, engine.stream, fitted=fitted, said=options.said)
        engine.announce = True
    config = description.described(motion, plan, phase, options.where, dtype, engine)
    before = {"phase": part.number, "draws_before": part.old}
    config |= {k: v for k, v in before.items() if v}
    swaps = None
    if plan.exchange is not None:
        swaps = ReplicaExchange(
            engine, problem, every=plan.exchange, burn_in=phase.burn_in, spent=phase.spent
        )
        engine.pauses.append(swaps)
        state, config["exchange"] = swaps.begin(state), swaps.describe()
    description.refuse_different(plan.until, config, problem.chains.count)
    alone = options.checkpoint is None and not isinstance(options.where, Path) and mesh.world == 1
    identity = config if alone else description.identity(motion, phase, engine, step_size, config)
    where = check_same_everywhere(
        mesh, identity, description.made_by(motion), engine.stream, options.where
    )
    every = loop.LOOK_EVERY if plan.seconds is None else loop.looks_by_clock(phase.steps)
    # Where trajectories end: one that is cut is the same up to rounding alone.
    whole = motion.integrator.trajectory
    saves = options.every and -(-options.every // whole) * whole
    steps = RunPlan(
        phase.steps, phase.burn_in, phase.thin, saves, -(-every // whole) * whole,
        explores=_stages(motion),
    )  # fmt: skip
    sink = stores.open_store(where, specs, device=problem.device, run=identity)
    collector = SampleCollector(
        state, store=sink, dtype=dtype, looks=steps.looks,
        first=int(problem.chains.ids[0]), level=options.level, units=problem.units,
    )  # fmt: skip
    return _Ready(steps, engine, state, swaps, collector, sink, where, config, identity)


def _shifted(callback: Callback | None, units: Units | None) -> Callback | None:
    """The callback, shown losses in the user's units."""
    if units is None or callback is None or not callable(callback):
        return callback  # refused elsewhere, by name
    return lambda look: callback(replace(look, loss=look.loss + units.shift))


def _posterior(
    motion: Motion,
    owner: Problem,
    collected: Callable[..., Posterior],
    state: State,
    config: dict[str, Any],
) -> Posterior:
    """The posterior of all chains, from what was collected here, of the owner's network."""
    problem = motion.problem
    posterior = collected(state, model=owner.template, likelihood=problem.likelihood, config=config)
    posterior.prior = motion.frame.prior
    posterior.signature.adopt(owner.signature)
    mesh = problem.chains.processes
    return shard_posterior(posterior, mesh) if isinstance(mesh, ProcessMesh) else posterior


def _prepared(
    motion: Motion, plan: Plan, phase: Phase, options: Options
) -> tuple[StepSize, Engine, State]:
    """The step size, an engine, and a state like those that it runs."""
    planned = plan.schedule()
    step_size = motion.step_size if planned is None else planned
    assert step_size is not None, "a plan without a step size"
    engine, state = preparation.engine(
        motion, steps=phase.steps, batch_size=plan.batch_size, step_size=step_size,
        burn_in=phase.burn_in, level=options.level,
    )  # fmt: skip
    if phase.spent and plan.end is not None:
        # The noise goes on too: slow directions would be pushed the same way once more.
        noise, labels = engine.dynamics.noise, engine.dynamics.labels
        engine.dynamics = replace(
            engine.dynamics, noise=random.later(noise, phase.spent),
            labels=random.later(labels, phase.spent),
        )  # fmt: skip
        # As does the metric: that of a few batches alone throws chains away which fit their rows.
        engine.rates.remember(plan.end.rule.remembered)
    elif plan.descent is not None and planned is not None:
        # Nor is one known where the descent ends: gradients of few rows that are fitted vanish.
        engine.rates.rise(phase.burn_in // 4)
    return step_size, engine, state


def _started(
    motion: Motion,
    plan: Plan,
    engine: Engine,
    state: State,
    before: State | None,
    options: Options,
) -> State:
    """Where chains begin: where those ``before`` ended, downhill from the plan's start where it
    says so, or there."""
    if before is not None:
        params, learned, metric = pytree.tree_map(
            torch.clone, (before.params, before.likelihood, before.metric)
        )
        return motion.frame.init(params)._replace(likelihood=learned, metric=metric)
    ids, begin = motion.problem.chains.ids, options.begin
    if begin is not None:
        there = min(len(v) for v in begin[0].values())
        weights, learned = (
            {k: v[ids[ids < there].to(v.device)] for k, v in tree.items()} for tree in begin
        )
        if there <= int(ids.max()):  # the others go down
            rest = ids[ids >= there]
            moves = motion.frame_of(rest)
            others = motion.init_of(moves, rest)
            end = _gone_down(motion, plan, engine, moves, others, ids >= there, options)
            weights = {k: torch.cat([v, end.params[k]]) for k, v in weights.items()}
            learned = {k: torch.cat([v, end.likelihood[k]]) for k, v in learned.items()}
        return motion.frame.init(weights)._replace(likelihood=learned)
    if plan.descent is None:
        return state
    return _gone_down(motion, plan, engine, motion.frame, state, ids >= 0, options)


def _gone_down(
    motion: Motion,
    plan: Plan,
    engine: Engine,
    moves: LangevinDynamics,
    state: State,
    which: Tensor,
    options: Options,
) -> State:
    """The end of the descent from ``state``, which is of those of the chains that are here."""
    stream, ids = engine.stream, motion.problem.chains.ids
    if not isinstance(stream, InMemory):
        stream = motion.problem.stream_in_memory(plan.batch_size, ids)
    stream = stream.of_chains(which)
    assert plan.descent is not None, "a plan without a descent"
    return descent.descend(
        moves, state, stream, engine.num_data, plan.descent, mode=choose_mode(motion.compile),
        pattern=options.pattern, limit=options.limit,
    )  # fmt: skip
