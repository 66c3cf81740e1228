"""A sampler's run, on one process or several: from its settings to the posterior.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import TensorDataset

from natural_langevin import random
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.distributed import run_description, run_settings
from natural_langevin.distributed.posterior_shards import shard_posterior
from natural_langevin.distributed.process_mesh import ProcessMesh
from natural_langevin.distributed.run_description import Choice
from natural_langevin.distributed.run_settings import RunSettings
from natural_langevin.distributed.run_setup import (
    check_same_everywhere,
    open_checkpoint,
    resumed_config,
)
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.likelihoods.predictive import probabilities
from natural_langevin.posterior import noise_widths, spread, stores
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.sampling import (
    interrupts,
    noise_floor,
    notices,
    recipe,
    run_length,
    step_size_search,
    time_limit,
    trials,
    warm_up,
)
from natural_langevin.sampling.collector import SampleCollector
from natural_langevin.sampling.data_checks import outputs_of_few
from natural_langevin.sampling.exchange import ReplicaExchange
from natural_langevin.sampling.kept_draws import check_memory
from natural_langevin.sampling.look import Callback
from natural_langevin.sampling.loop import run
from natural_langevin.sampling.pitfalls import refuse_autocast
from natural_langevin.sampling.preparation import in_tensors
from natural_langevin.sampling.step_size_checks import StepSize
from natural_langevin.sampling.until import EssTarget
from natural_langevin.sampling.until import parse as parse_until
from natural_langevin.sampling.watching import ExplosionError, Watching

log = logging.getLogger("natural_langevin")


def sampled(
    sampler: Any,
    data: Any,
    *,
    callback: Callback | None,
    exchange: int | None,
    progress: bool | str,
    until: str | None,
    checkpoint: str | os.PathLike[str] | None,
    **open_or_given: Any,
) -> Posterior:
    """See ``Langevin.sample``: what its arguments leave open is settled, and then it is run. One
    whose loss still falls is followed by another, from where it ended (see ``run_length``)."""
    refuse_autocast(sampler.device)
    wanted = parse_until(until)
    data = in_tensors(sampler, data)
    if progress and (checkpoint is None or not os.path.exists(checkpoint)):
        notices.announce(sampler, progress if isinstance(progress, str) else "sampling")
    runs: RunSettings | None = run_settings.settle(
        sampler, data, until=until, wanted=wanted, checkpoint=checkpoint, exchange=exchange,
        **open_or_given,
    )  # fmt: skip
    found: Posterior | State | None = None
    while runs is not None and not isinstance(found, Posterior):
        try:
            found = _run_once(sampler, data, runs, found, callback, exchange, progress=progress)
        except ExplosionError as error:
            runs = runs.gentler()
            assert runs.choice is not None
            log.info("%s: begun anew, step_size=%s", error, runs.choice.reason)
        else:
            runs = runs.then
    assert isinstance(found, Posterior)
    return found


def _run_once(
    sampler: Any,
    data: Any,
    asked: RunSettings,
    before: State | None,
    callback: Callback | None,
    exchange: int | None,
    *,
    progress: bool | str,
) -> Posterior | State:
    """One run from where the one ``before`` ended; its end where another is to follow."""
    plan, mesh = asked.plan, sampler.mesh
    with mesh.together("preparing the run"):
        choice, step_size, engine, state = _prepared(sampler, data, asked, before)
    _notice(sampler, engine.stream)
    config = run_description.described(sampler, asked, engine, choice, step_size)
    swaps = None if exchange is None else _swaps(sampler, engine, exchange, plan.burn_in)
    if swaps is not None:
        state, config["exchange"] = swaps.begin(state), swaps.describe()
    run_description.refuse_different(asked.until, config, sampler.chains)
    identity = run_description.identity(sampler, asked, engine, step_size, config)
    made_by = run_description.made_by(sampler)
    where = check_same_everywhere(mesh, identity, made_by, engine.stream, asked.where)
    sink = stores.open_store(where, asked.specs, device=sampler.device, run=identity)
    collector = SampleCollector(
        state, store=sink, dtype=asked.dtype, looks=plan.looks, first=int(sampler.chain_ids[0])
    )

    def so_far(now: State) -> Posterior:
        return _posterior(sampler, sampler, collector.so_far, now, config)

    limit = time_limit.left_for_steps(asked.seconds) if asked.seconds and asked.wanted else None
    target = EssTarget(asked.wanted, so_far, engine.stream.example()[0], seconds=limit)
    watcher = Watching(
        engine, mesh, target, steps=plan.steps, callback=callback, breaks_off=asked.attempts > 0
    )
    title = progress if isinstance(progress, str) else "sampling"
    with contextlib.ExitStack() as closing:
        closing.callback(sink.close)
        saved = open_checkpoint(asked.checkpoint, identity, engine.stream, mesh, made_by)
        if saved is not None:
            closing.callback(saved.close)
        with mesh.together("the run"):
            state, interrupted = run(
                plan, engine, state, collector, saved=saved, title=title,
                progress=bool(progress), processes=mesh, watcher=watcher,
                partial=saved is None and mesh.world == 1 and interrupts.may_end_early(),
            )  # fmt: skip
        # Chains that were lost are reported: another run would begin with them again.
        may_go_on = asked.then is not None and not interrupted and bool((state.diverged < 0).all())
        if may_go_on and _goes_on(asked, so_far(state), engine.stream):
            return state
        config |= run_description.length_reached(asked, target, state, interrupted)
        if swaps is not None:
            config["exchange"] = swaps.report(state)
        config |= run_description.measured(sampler, asked, engine, state, step_size)
        if _noise_is_open(sampler, data):  # by this sampler's network, whose inputs the data are
            x, y, _ = recipe.rows_of(data, sampler.num_data, sampler.signature.split)
            state = state._replace(likelihood=noise_floor.raised(state.likelihood, y))
            config |= _noise_widths(choice, so_far(state), state, (x, y))
        return _posterior(sampler, sampler._owner, collector.finish, state, config)


def _swaps(sampler: Any, engine: Engine, every: int, burn_in: int) -> ReplicaExchange:
    """Swaps of chains before every so many steps of the engine."""
    found = ReplicaExchange(
        engine, sampler.mesh, sampler._temperature, sampler._prior, power=sampler._power,
        every=every, burn_in=burn_in, seed=sampler.seed,
    )  # fmt: skip
    engine.pauses.append(found)
    return found


def _goes_on(asked: RunSettings, so_far: Posterior, stream: Stream) -> bool:
    """Whether a run is to be followed by another, and says why: a first part also is where its
    chains disagree."""
    assert asked.then is not None
    if fall := run_length.falls_by(so_far.trace):
        why = f"the loss still fell by {fall:.2g} nats per sample in the last third"
    elif asked.part and (nats := _disagreement(so_far, *stream.example())) > recipe.DISAGREEMENT:
        why = f"chains disagree, by {nats:.2g} nats"
    else:
        return False
    log.info("%s: %d steps were burn-in, and %d follow",
             why, asked.plan.steps, asked.then.plan.steps)  # fmt: skip
    return True


def _disagreement(so_far: Posterior, x: Tensor, y: Tensor) -> float:
    """That of all chains (see ``run_length``): about every class, or the targets that are."""
    if so_far.likelihood.link is not None:
        laws = [so_far.predict_dist(x, chains=[c], sharpness=1.0) for c in so_far.healthy]
        each = torch.stack([probabilities(law) for law in laws])
        return run_length.disagreement(each, each.mean(0))
    log_density = so_far.log_likelihood(x, y).double()
    return run_length.disagreement(torch.exp(log_density - log_density.amax((0, 1))).mean(1))


def _noise_is_open(sampler: Any, data: Any) -> bool:
    """Whether the widths of the noise are left open with all else: of numbers in memory, with
    learned noise, under the recipe's own prior."""
    # Rows that were given to choose by are not all that the layers before have been fitted to.
    whole = sampler._owner is sampler or sampler.held_out is None
    ours = sampler._scale_open and whole and not trials.under_way()
    alike = sampler.mesh.world == 1 and bool((sampler._temperature == 1).all())
    alike = alike and sampler._power is None
    in_memory = isinstance(data, tuple | list | TensorDataset)
    return ours and alike and sampler.likelihood.learns_width and in_memory


def _noise_widths(
    choice: Choice | None, so_far: Posterior, state: State, data: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """The widths of the noise in predictions, and how far networks are from their mean there: as
    the trial chose them, or by the rows of the run."""
    if isinstance(choice, recipe.Choice) and (asks := choice.spread) is not None:
        noise = float(state.likelihood["variance"][state.diverged < 0].double().mean())
        value = spread.of_run(asks.value, asks.variance, noise)
        log.info("spread of networks x %.3g in predictions", value)
        return {"spread": value, "noise_widths": asks.widths}
    noise_widths.learn(so_far, *data)
    return {k: v for k, v in so_far.config.items() if k == "noise_widths"}


def _notice(sampler: Any, stream: Stream) -> None:
    """Says once what is most likely a mistake."""
    if sampler._noticed:
        return
    sampler._noticed = True
    x, y = (stream.x, stream.y) if isinstance(stream, InMemory) else stream.example()
    outputs = outputs_of_few(sampler._dynamics.gradients.network, sampler.init().params, x)
    fitted = sampler._by_recipe and sampler._start == "model"
    notices.notice(
        sampler.model, sampler.likelihood, sampler.signature, (x, y), outputs, fitted=fitted
    )


def _posterior(
    sampler: Any,
    owner: Any,
    collected: Callable[..., Posterior],
    state: State,
    config: dict[str, Any],
) -> Posterior:
    """The posterior of all chains, from what was collected here, of the owner's network."""
    posterior = collected(
        state, model=owner._template, likelihood=sampler.likelihood, config=config
    )
    posterior.prior = sampler._dynamics.prior
    posterior.signature.adopt(owner.signature)
    if isinstance(sampler.mesh, ProcessMesh):
        return shard_posterior(posterior, sampler.mesh)
    return posterior


def _prepared(
    sampler: Any, data: Any, asked: RunSettings, before: State | None
) -> tuple[Choice | None, StepSize | None, Engine, State]:
    """The choice of what was open, its step size, an engine, and the state that chains start at:
    downhill from the recipe's where they begin at random, or where those ``before`` ended."""
    plan = asked.plan
    choice: Choice | None = asked.choice
    check_memory(asked.specs, asked.where, sampler.device)
    if sampler._auto and not sampler._by_recipe:
        # A run to go on with keeps what it was started with.
        found = resumed_config(asked.checkpoint, sampler.mesh)
        choice = step_size_search.Choice.from_config(found, sampler.chains) or (
            sampler.choose_step_size(data, plan.steps, batch_size=asked.batch_size)
        )
    step_size = None if choice is None else choice.schedule_of(plan.burn_in)
    if choice is not None:
        sampler._settled = (choice.schedule_of(0), asked.batch_size)
    engine, state = sampler.prepare(
        data, steps=plan.steps, batch_size=asked.batch_size, step_size=step_size,
        burn_in=plan.burn_in,
    )  # fmt: skip
    if before is not None:
        # The noise goes on too: slow directions would be pushed the same way once more.
        assert isinstance(engine.dynamics, LangevinDynamics)
        noise, labels = engine.dynamics.noise, engine.dynamics.labels
        engine.dynamics = dataclasses.replace(
            engine.dynamics, noise=random.later(noise, asked.spent),
            labels=random.later(labels, asked.spent),
        )  # fmt: skip
        # As does the metric: that of a few batches alone throws chains away which fit their rows.
        engine.rates.remember(recipe.REMEMBERED)
        params, learned, metric = pytree.tree_map(
            torch.clone, (before.params, before.likelihood, before.metric)
        )
        state = sampler._dynamics.init(params)._replace(likelihood=learned, metric=metric)
    elif sampler._begin is not None:
        weights, learned = sampler._begin
        state = sampler._dynamics.init(weights)._replace(likelihood=learned)
    elif sampler._downhill:
        stream = engine.stream
        if not isinstance(stream, InMemory):
            x, y, _ = recipe.rows_of(data, sampler.num_data, sampler.signature.split)
            stream = InMemory(
                x, y, batch_size=min(asked.batch_size, len(x)), chain=sampler.chain_ids,
                seed=sampler.seed, device=sampler.device,
            )  # fmt: skip
        mode = choose_mode(sampler.compile)
        state = warm_up.descend(
            sampler._dynamics, state, stream, engine.num_data, mode=mode,
            pattern=sampler._downhill_pattern,
        )  # fmt: skip
    return choice, step_size, engine, state
