"""The recipe's step size: a short run, the pilot, burns in, and the curvature and the noise of
minibatches there say how large steps may be (see ``recipe``).
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import torch
from torch import Tensor

from natural_langevin._internal.chains import number_or_chains
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.problem.motion import Motion
from natural_langevin.recipe import cost, slowness
from natural_langevin.recipe.curvature import steepest
from natural_langevin.recipe.rules import Choice
from natural_langevin.recipe.run_length import usual_steps
from natural_langevin.recipe.settings import Settings, StepSize
from natural_langevin.run import descent
from natural_langevin.run.time_limit import NO_LIMIT, TimeLimit

log = logging.getLogger("natural_langevin")


def choose(
    motion: Motion,
    data: tuple[Tensor, Tensor],
    num_data: float,
    batch_size: int,
    costs: cost.Costs,
    chains: int | None = None,
    *,
    downhill: bool,
    pattern: Tensor | None = None,
    shuffled: bool = True,
    limit: TimeLimit = NO_LIMIT,
) -> list[Choice]:
    """The step size of each of ``chains`` chains (None: the usual ones), by a pilot on ``data`` in
    memory, ``downhill`` at first or from where chains start. ``shuffled``: whether the run's
    minibatches are parts of shuffled epochs, as the pilot's are. ``pattern``: see ``descent``."""
    problem, settings = motion.problem, costs.settings
    device, seed, pilot = problem.device, problem.chains.seed, settings.pilot
    ids = torch.arange(min(chains or pilot.chains, problem.chains.count), device=device)
    moves = motion.frame_of(ids)
    stream = InMemory(
        *data, batch_size=min(batch_size, len(data[0])), chain=ids, seed=seed, device=device,
    )  # fmt: skip
    rows = pilot.costly_rows if costs.costly_pilot(len(ids) * batch_size) else pilot.rows
    some = stream.x[:rows].to(device), stream.y[:rows].to(device)
    state = motion.init_of(moves, ids)
    moves.prepare(state.params, stream.example()[0])
    if downhill:
        state = descent.descend(
            moves, state, stream, num_data, settings.descent, mode=choose_mode(motion.compile),
            pattern=pattern if costs.budget.spares else None, limit=limit,
        )  # fmt: skip
    stops = costs.pilot_steps(len(ids) * batch_size)
    lam, state, way = _pilot(motion, moves, state, stream, num_data, some, stops, settings)
    limits = settings.step_size
    heat = _heat(moves, state, num_data, stream.batch_size, limits.friction)
    choices = [
        _choice(float(lam[c]), float(heat[c]), batch_size, num_data, way, limits)
        for c in range(len(ids))
    ]
    if not bool(torch.isfinite(lam).all()):
        return choices
    few = sum(p[0].numel() for p in state.params.values()) <= limits.most_weights
    found = slowness.spectrum(moves, state, some, num_data) if few else None
    if found is None or not bool((found > 0).all()):  # also of what is not finite
        fisher = isinstance(moves.preconditioner, FisherPreconditioner)
        return [_less_friction(c, limits) for c in choices] if fisher else choices
    powers = torch.as_tensor(moves.weight(1.0)).expand(len(choices)).tolist()
    return [
        _paced(
            c, k.tolist(), slowness.Epochs(num_data, batch_size, shuffled, limits, beta), settings
        )
        for c, k, beta in zip(choices, found, powers, strict=True)
    ]


def _pilot(
    motion: Motion,
    moves: LangevinDynamics,
    state: State,
    stream: InMemory,
    num_data: float,
    some: tuple[Tensor, Tensor],
    stops: tuple[int, ...],
    settings: Settings,
) -> tuple[Tensor, State, str]:
    """The steepest curvature of every chain on ``some`` rows, NaN where none was found, where the
    pilot ended, and how its steps were run."""
    lam, done = torch.full((state.chains,), math.nan, dtype=torch.float64), 0
    eta = torch.zeros_like(lam)  # the first batch is for the metric: no step is known to be safe
    pilot, limits = settings.pilot, settings.step_size
    for stop in stops:
        rates = motion.rates(0, stop, eta, chains=state.chains)
        engine = Engine(moves, stream, rates, num_data, mode=choose_mode(motion.compile))
        state, _ = engine.run(state, done, stop - done)
        done = stop
        try:
            found = steepest(moves, state, some, num_data, pilot.iterations).double().cpu()
        except (RuntimeError, NotImplementedError) as error:  # an operation without derivatives
            log.info("the curvature could not be measured: %s", str(error).split("\n")[0])
            break
        known = torch.isfinite(found) & (state.diverged < 0).cpu()
        if not bool(known.any()):
            break
        log.debug("curvature in the metric after %d steps: %s", stop, found.tolist())
        before, lam = lam, torch.where(known, found, lam)
        eta = (limits.steepness / lam.clamp_min(1e-12)).clamp_max(limits.largest)
        eta = torch.where(torch.isfinite(eta), eta, limits.fallback)
        if stop > pilot.fewest and bool(((lam / before - 1).abs() <= pilot.agree).all()):
            break
    return lam, state, engine.way


def _less_friction(usual: Choice, limits: StepSize) -> Choice:
    """The same choice of a network, whose curvatures are not known one by one."""
    pace = slowness.Pace(usual.step_size, usual.friction)
    a = float(f"{slowness.friction_of_network(pace, usual.heat, limits):.2g}")
    if a >= usual.friction:
        return usual
    why = f"{usual.reason}; friction {a:.2g}, for the directions that are slow with such steps"
    return replace(usual, friction=a, heat=usual.heat * usual.friction / a, reason=why)


def _paced(
    usual: Choice, curvatures: list[float], epochs: slowness.Epochs, settings: Settings
) -> Choice:
    """The same choice, smaller where minibatches heat the steep directions of a metric that is no
    Fisher matrix; or where it has too few relaxation times of the slowest direction in it, the
    quickest. ``curvatures``: in ascending order."""
    slowest, steepest = curvatures[0], curvatures[-1]
    usual = _bearable(replace(usual, slowest=slowest), curvatures, epochs)
    limits = settings.step_size
    pace = slowness.Pace(usual.step_size, limits.friction)
    steps = usual_steps(usual.step_size, usual.way, settings, settings.cost.usual)
    if limits.relaxations * pace.relaxation(slowest) <= steps:
        return usual
    pace = slowness.quickest(pace, curvatures, epochs)
    eta, a = (float(f"{v:.2g}") for v in pace)
    tau = slowness.Pace(eta, a).relaxation(slowest)
    why = (
        f"{eta:.2g}, friction {a:.2g}: curvatures in the metric are between {slowest:.2g} and "
        f"{steepest:.3g}, and the slowest direction relaxes in {tau:.0f} steps"
    )
    heat = sum(epochs.heat(eta * k, a) for k in curvatures) / len(curvatures)
    return replace(
        usual, step_size=eta, curvature=steepest, friction=a, heat=heat, reason=why, relaxation=tau
    )


def _bearable(usual: Choice, curvatures: list[float], epochs: slowness.Epochs) -> Choice:
    """With the largest step up to the usual one at which minibatches heat no direction by more than
    ``most_heat``."""
    friction = epochs.limits.friction
    if epochs.bearable(usual.step_size, curvatures, friction):
        return usual
    eta = float(f"{epochs.largest_step(curvatures, friction):.2g}")
    heat = sum(epochs.heat(eta * k, friction) for k in curvatures) / len(curvatures)
    why = (
        f"{eta:.2g}: curvatures in the metric are up to {curvatures[-1]:.3g}, and minibatches of "
        f"{epochs.batch} of {epochs.num_data:.0f} allow no more there"
    )
    return replace(usual, step_size=eta, curvature=curvatures[-1], heat=heat, reason=why)


def _choice(
    lam: float, per_step: float, batch: int, num_data: float, way: str, limits: StepSize
) -> Choice:
    """By the curvature lambda and the heat of a unit of eta."""
    eta, why = limits.fallback, "no curvature could be measured"
    if math.isfinite(lam):
        eta = min(limits.largest, limits.steepness / max(lam, 1e-12))
        why = f"the steepest curvature in the metric is {lam:.3g}"
    if per_step * eta > limits.heat:
        eta = limits.heat / per_step
        why += f", and minibatches of {batch} of {num_data:.0f} allow no more"
    eta = float(f"{eta:.2g}")
    curvature = lam if math.isfinite(lam) else None
    return Choice(
        eta, curvature, per_step * eta, f"{eta:.2g}: {why}", way, friction=limits.friction
    )


def _heat(
    moves: LangevinDynamics, state: State, num_data: float, batch: int, friction: float
) -> Tensor:
    """beta N rho / (2 B a) of every chain, what a unit of eta adds to the temperature of what the
    data see; 0 for full batches."""
    rho = torch.ones(state.chains)
    if batch >= num_data:
        return torch.zeros_like(rho)
    second = state.metric.get("second")
    if isinstance(second, dict) and second:
        damping = moves.damping(second, num_data)
        parts = [(j / (j + number_or_chains(damping[k], j))).flatten(1) for k, j in second.items()]
        share = torch.cat(parts, 1)
        rho = (share.square().nansum(1) / share.nansum(1).clamp_min(1e-12)).cpu()
    count = torch.as_tensor(moves.weight(num_data)).cpu()
    return count * rho / (2 * batch * friction) * (1 - batch / num_data)
