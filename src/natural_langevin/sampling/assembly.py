"""A sampler's parts, put together and exchanged: dynamics, prior, rates, and what its pilot needs.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from natural_langevin import priors, random
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.sampling import recipe
from natural_langevin.sampling.step_size_checks import StepSize, known_step_size
from natural_langevin.sampling.step_size_search import Setup
from natural_langevin.statistics import Gradients, Network


def dynamics(
    sampler: Any,
    network: Network,
    *,
    microbatch: int | None,
    clip: float | None,
    control_variates: int | None,
) -> LangevinDynamics:
    """The chains here: their gradients, metric, prior, temperature and streams of noise."""
    metric, chain = sampler.preconditioner, sampler.chain_ids
    return LangevinDynamics(
        sampler.dynamics,
        gradients=Gradients(
            network, sampler.likelihood,
            requests=metric.requests, targets=metric.targets, sharing=metric.sharing,
            microbatch=microbatch, clip=clip, data_parallel=sampler.mesh.data,
        ),
        preconditioner=metric,
        prior=priors.of_chains(sampler._prior, chain),
        temperature=sampler._temperature[chain],
        power=None if sampler._power is None else sampler._power[chain],
        noise=random.origin(sampler.seed, random.NOISE, chain),
        labels=random.origin(sampler.seed, random.LABELS, chain),
        keep_mean=sampler.mean_rate is not None,
        control_variates=control_variates,
    )  # fmt: skip


def all_chains(sampler: Any) -> LangevinDynamics:
    """The dynamics of all its chains, those of other processes too: what is chosen by short runs of
    them is then the same everywhere."""
    found: LangevinDynamics = dataclasses.replace(
        sampler._dynamics, prior=sampler._prior, temperature=sampler._temperature,
        power=sampler._power,
    )  # fmt: skip
    return found


def set_prior(sampler: Any, prior: priors.PriorLike) -> None:
    """Gives the sampler another prior, in place of the one it was made with."""
    trainable = sampler._dynamics.gradients.network.trainable()
    sampler._prior = priors.resolve(prior, trainable, sampler.chains, device=sampler.device)
    own = priors.of_chains(sampler._prior, sampler.chain_ids)
    sampler._dynamics = dataclasses.replace(sampler._dynamics, prior=own)


def set_friction(sampler: Any, friction: float) -> None:
    """Gives the sampler the recipe's dynamics with this friction."""
    sampler.dynamics = dataclasses.replace(recipe.dynamics(), friction=friction)
    sampler._dynamics = dataclasses.replace(sampler._dynamics, integrator=sampler.dynamics)


def rates_table(
    sampler: Any,
    start: int,
    stop: int,
    step_size: StepSize | None = None,
    *,
    chains: int | None = None,
    burn_in: int = 0,
) -> RatesTable:
    """eta of all chains, gamma and mu of the steps ``start`` to ``stop``; the step size is the
    sampler's own unless one is given. ``burn_in=0``: there is no burn-in to adapt in, and a metric
    that never saw a batch would be none: it goes on adapting."""
    trainable = next(p for p in sampler.model.parameters() if p.requires_grad)
    return RatesTable.build(
        known_step_size(sampler.step_size) if step_size is None else step_size,
        sampler.preconditioner.ema_schedule(burn_in or math.inf),
        sampler.mean_rate,
        start=start,
        stop=stop,
        chains=chains or sampler.chains,
        tuned=burn_in if sampler.dynamics.tunes else 0,
        refresh_steps=sampler.preconditioner.refresh_steps,
        dtype=trainable.dtype,
        device=sampler.device,
    )


def pilot_setup(sampler: Any) -> Setup:
    """What the step-size search takes from a sampler."""
    return Setup(
        all_chains(sampler),
        start=sampler._start_of,
        # Candidates are scored by the second half of the pilot: the first is their burn-in.
        rates=lambda etas, count: rates_table(
            sampler, 0, count, etas, chains=len(etas), burn_in=count // 2
        ),
        num_data=sampler.num_data,
        seed=sampler.seed,
        compile=sampler.compile,
    )
