"""A run in words: its settings, its identity for checkpoints, and its measurements."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from natural_langevin._internal.fingerprints import exact_settings, fingerprint, stable_repr
from natural_langevin._internal.provenance import provenance
from natural_langevin.diagnostics.energy import energy_gradient
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.execution.engine import Engine
from natural_langevin.posterior.draws import pooled_chains
from natural_langevin.posterior.plan import Plan
from natural_langevin.run import temperature_probe
from natural_langevin.run.kept_draws import Phase
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.step_size_checks import StepSize
from natural_langevin.run.until import EssTarget


def settings(motion: Motion) -> dict[str, Any]:
    """The sampler's own settings in words (``Langevin.describe``)."""
    problem, moves = motion.problem, motion.integrator
    autocast = problem.network.autocast
    training = {
        "microbatch": problem.microbatch, "autocast": autocast and str(autocast),
        "clip": problem.clip, "control_variates": problem.anchors,
    }  # fmt: skip
    return {
        "preconditioner": stable_repr(motion.preconditioner),
        **({} if moves == Overdamped() else {"dynamics": stable_repr(moves)}),
        "prior": {name: stable_repr(p) for name, p in problem.prior.items()},
        "likelihood": stable_repr(problem.likelihood),
        "step_size": stable_repr("auto" if motion.step_size is None else motion.step_size),
        "mean_rate": stable_repr(motion.mean_rate),
        "temperature": problem.temperature.tolist(),
        **({} if problem.power is None else {"likelihood_power": problem.power.tolist()}),
        "alike": problem.alike,
        "chains": problem.chains.count,
        "init": motion.start,
        "seed": problem.chains.seed,
    } | {name: value for name, value in training.items() if value is not None}


def described(
    motion: Motion,
    plan: Plan,
    phase: Phase,
    where: str | Path,
    dtype: torch.dtype,
    engine: Engine,
) -> dict[str, Any]:
    """The sampler, the run and what was chosen for it in words."""
    problem, stream = motion.problem, engine.stream
    found: dict[str, Any] = settings(motion) | {
        "steps": phase.steps,
        "batch_size": plan.batch_size,
        "burn_in": phase.burn_in,
        "thin": phase.thin,
        "store": "folder" if isinstance(where, Path) else where,
        "sample_dtype": str(dtype),
        "num_data": engine.num_data,
        "data": problem.fingerprint(stream),
        "shared_batches": not stream.chain_axis,
        "adapting": engine.rates.kind(phase.steps - 1).adapts,
    }
    if problem.user.signature.several:
        found["inputs"] = problem.user.signature.several
    if stream.num_data not in (None, engine.num_data):
        found["rows"] = stream.num_data
    if plan.until is not None:
        found["until"] = plan.until
    if (schedule := plan.schedule()) is not None:
        found["step_size"] = stable_repr(schedule)
    if plan.calibration is not None and plan.calibration.sharpness is not None:
        found["sharpness"] = plan.calibration.sharpness
    found["plan"] = plan.as_dict()
    return found


def identity(
    motion: Motion, phase: Phase, engine: Engine, step_size: StepSize, config: dict[str, Any]
) -> dict[str, Any]:
    """What a run must have in common with the one that a folder or another process holds: its
    description and its exact settings. Data and network are the user's own, also where the layers
    in front are computed beforehand."""
    table = motion.rates(0, phase.steps, step_size, burn_in=phase.burn_in)
    mode = "compiled" if engine.mode == "compiled" else "eager"
    problem = motion.problem
    found = config | exact_settings(problem.user.template, table.values, problem.prior, mode)
    start = motion.start_weights
    return found if start is None else found | {"init_values": fingerprint(start)}


def made_by(motion: Motion) -> dict[str, Any]:
    """Versions, and digests of the user's own classes in the run (see ``provenance``)."""
    problem = motion.problem
    return provenance(
        problem.user.template,
        likelihood=problem.likelihood, preconditioner=motion.preconditioner,
        **{f"prior of {name}": p for name, p in problem.prior.items()},
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
    plan: Plan, phase: Phase, target: EssTarget, state: State, interrupted: bool
) -> dict[str, Any]:
    """How far the run went, and what ended it; the log says so too, unless it was interrupted."""
    done = int(state.step)
    by_clock = plan.seconds is not None and plan.until is None
    limit = "interrupt" if interrupted else "seconds" if by_clock else target.reached
    found: dict[str, Any] = {"limit": limit, "steps": done}
    if not interrupted:
        target.say(done, phase.steps, plan.seconds)
    if phase.spent:
        found["steps_before"] = phase.spent
    return found | ({"ess": target.ess} if plan.until is not None else {})


def measured(motion: Motion, engine: Engine, state: State, *, probe: bool) -> dict[str, Any]:
    """What was measured: how steps were run, acceptance, rounding, temperature."""
    done, mesh = int(state.step), motion.problem.chains.processes
    found: dict[str, Any] = {"execution": engine.way}
    for name, values in motion.integrator.report(state).items():
        found[name] = mesh.all_rows(values).tolist()  # of all chains
    if (shift := autocast_shift(engine, state)) is not None:
        found["autocast_shift"] = shift
    heat = temperature_probe.after_run(engine, state, done, mesh) if probe else None
    return found | {"effective_temperature": heat}


log = logging.getLogger("natural_langevin")

#: Shifts beyond this many standard deviations are worth a word.
NOTICEABLE = 0.1


def autocast_shift(engine: Engine, state: State) -> float | None:
    """How far autocast's rounding moves the gradient at ``state``, on one batch, in posterior
    standard deviations; None without autocast or a Fisher metric. A gradient that is wrong by d
    moves the chain's target by C d, where C/N is about the posterior's covariance: averaged over
    the P parameters, sqrt(N d^T C d / P)."""
    dynamics = engine.dynamics
    network, preconditioner = dynamics.gradients.network, dynamics.preconditioner
    if network.autocast is None or not preconditioner.requests:
        return None
    likelihood, prior = dynamics.gradients.likelihood, dynamics.prior
    count = dynamics.weight(engine.num_data)

    def gradient() -> dict[str, torch.Tensor]:
        return energy_gradient(
            network.call, likelihood, prior, count, state.params, state.likelihood,
            engine.stream.example(), chain_axis=False,
        )  # fmt: skip

    low, kind = gradient(), network.autocast
    try:
        network.autocast = None
        full = gradient()
    finally:
        network.autocast = kind
    factor = preconditioner.factor(state.metric, dynamics.damping(list(low), engine.num_data))
    parts = factor.transpose({k: low[k] - full[k] for k in low}).values()
    square = torch.stack([p.double().square().reshape(len(p), -1).sum(1) for p in parts]).sum(0)
    weights = sum(p[0].numel() for p in state.params.values())
    shift = float((count * square / weights)[state.diverged < 0].mean().sqrt())
    if shift > NOTICEABLE:
        log.warning(
            "autocast=%s moves the gradient by %.2g posterior standard deviations: the draws are "
            "that much off, and too wide. Sample without autocast", kind, shift,
        )  # fmt: skip
    return shift
