"""A run in words: what it was asked for, what makes it the same run, and what was measured of it.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from natural_langevin._internal.fingerprints import exact_settings, fingerprint, stable_repr
from natural_langevin._internal.provenance import provenance
from natural_langevin.distributed.run_settings import RunSettings
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.execution.engine import Engine
from natural_langevin.posterior.pooling import pooled_chains
from natural_langevin.posterior.weighting import draw_weights
from natural_langevin.sampling import (
    assembly,
    recipe,
    rounding,
    step_size_search,
    temperature_probe,
)
from natural_langevin.sampling.step_size_checks import StepSize
from natural_langevin.sampling.until import EssTarget

Choice = recipe.Choice | step_size_search.Choice


def settings(sampler: Any) -> dict[str, Any]:
    """The sampler's own settings in words (``Langevin.describe``)."""
    moves = sampler.dynamics
    found: dict[str, Any] = {
        "preconditioner": stable_repr(sampler.preconditioner),
        **({} if moves == Overdamped() else {"dynamics": stable_repr(moves)}),
        "prior": {name: stable_repr(p) for name, p in sampler._prior.items()},
        "likelihood": stable_repr(sampler.likelihood),
        "step_size": stable_repr(sampler.step_size),
        "mean_rate": stable_repr(sampler.mean_rate),
        "temperature": sampler._temperature.tolist(),
        **({} if sampler._power is None else {"likelihood_power": sampler._power.tolist()}),
        "alike": step_size_search.like_chains(sampler._temperature, sampler._power, sampler._prior),
        "chains": sampler.chains,
        "init": sampler._start,
        "seed": sampler.seed,
    } | sampler._training
    return found


def described(
    sampler: Any,
    asked: RunSettings,
    engine: Engine,
    choice: Choice | None,
    step_size: StepSize | None,
) -> dict[str, Any]:
    """The sampler, the run and what was chosen for it in words."""
    plan, stream = asked.plan, engine.stream
    found: dict[str, Any] = sampler.describe() | {
        "steps": plan.steps,
        "batch_size": asked.batch_size,
        "burn_in": plan.burn_in,
        "thin": plan.thin,
        "store": "folder" if isinstance(asked.where, Path) else asked.where,
        "sample_dtype": str(asked.dtype),
        "num_data": engine.num_data,
        "data": sampler._fingerprint or stream.fingerprint(),
        "shared_batches": not stream.chain_axis,
        "adapting": engine.rates.kind(plan.steps - 1).adapts,
    }
    if sampler._owner.signature.several:
        found["inputs"] = sampler._owner.signature.several
    if asked.until is not None:
        found["until"] = asked.until
    if choice is not None:
        key = "recipe" if isinstance(choice, recipe.Choice) else "pilot"
        found |= {"step_size": stable_repr(step_size), key: choice.as_dict()}
        if isinstance(choice, recipe.Choice) and choice.sharpness is not None:
            found["sharpness"] = choice.sharpness.value
    return found


def identity(
    sampler: Any,
    asked: RunSettings,
    engine: Engine,
    step_size: StepSize | None,
    config: dict[str, Any],
) -> dict[str, Any]:
    """What a run must have in common with the one that a folder or another process holds: its
    description, and where there may be such a one, its exact settings. Data and network are the
    user's own, also where the layers in front are computed beforehand."""
    if asked.checkpoint is None and not isinstance(asked.where, Path) and sampler.mesh.world == 1:
        return config
    table = assembly.rates_table(
        sampler, 0, asked.plan.steps, step_size, burn_in=asked.plan.burn_in
    )
    mode = "compiled" if engine.mode == "compiled" else "eager"
    found = config | exact_settings(sampler._owner._template, table.values, sampler._prior, mode)
    given = sampler._given
    return found if given is None else found | {"init_values": fingerprint(given)}


def made_by(sampler: Any) -> dict[str, Any]:
    """Versions, and digests of the user's own classes in the run (see ``provenance``)."""
    return provenance(
        sampler._owner._template,
        likelihood=sampler.likelihood, preconditioner=sampler.preconditioner,
        **{f"prior of {name}": p for name, p in sampler._prior.items()},
    )  # fmt: skip


def refuse_different(until: str | None, config: dict[str, Any], chains: int) -> None:
    """Refuses ``until`` for chains of different posteriors, which have no common effective sample
    size."""
    if until is None:
        return
    pooled = pooled_chains(config, range(chains))
    if len({config["alike"][c] for c in pooled}) > 1:
        raise ValueError(
            f"until={until!r} needs chains of one posterior, and these differ in "
            "temperature or prior: give steps="
        )


def length_reached(
    asked: RunSettings, target: EssTarget, state: State, interrupted: bool
) -> dict[str, Any]:
    """How far the run went, and what ended it; the log says so too, unless it was interrupted."""
    done = int(state.step)
    by_clock = asked.seconds is not None and asked.wanted is None
    limit = "interrupt" if interrupted else "seconds" if by_clock else target.reached
    found: dict[str, Any] = {"limit": limit, "steps": done}
    if not interrupted:
        target.say(done, asked.plan.steps, asked.seconds)
    if asked.spent:
        found["steps_before"] = asked.spent
    return found | ({"ess": target.ess} if asked.wanted is not None else {})


def measured(
    sampler: Any, asked: RunSettings, engine: Engine, state: State, step_size: StepSize | None
) -> dict[str, Any]:
    """What was measured: how steps were run, draws' weights, acceptance, rounding, temperature."""
    done, burn_in = int(state.step), asked.plan.burn_in
    found: dict[str, Any] = {"execution": engine.way}
    table = engine.rates  # of the chains that are here
    if sampler.mesh.world > 1:
        table = assembly.rates_table(sampler, 0, done, step_size, burn_in=burn_in)
    sizes = table.step_size[:done]
    weights = draw_weights(sizes, burn_in, asked.plan.thin, asked.plan.explores)
    if weights is not None:
        found["draw_weights"] = weights
    for name, values in sampler.dynamics.report(state).items():
        found[name] = sampler.mesh.all_rows(values).tolist()  # of all chains
    if (shift := rounding.autocast_shift(engine, state)) is not None:
        found["autocast_shift"] = shift
    heat = temperature_probe.after_run(engine, state, done, sampler.mesh)
    return found | {"effective_temperature": heat}
