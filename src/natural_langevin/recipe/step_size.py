"""The choice of the step size, by two methods.

**By curvature** (``by_curvature``), for the recipe's dynamics. A short run, the pilot, burns in;
the largest curvature of the posterior in the metric, and the minibatch noise there, limit the step
size (see ``rules``). The step size is constant in the run.

**By held-out rows** (``by_held_out_rows``), for all other dynamics, whose stability is not known
beforehand. A part of the training data is held out, and one chain per candidate step size runs on
the rest; all of them start at the same point and see the same noise and minibatches, so that they
differ by eta alone. Each is scored by -ln of its predictive density on the held-out part, averaged
over the iterates of the pilot's second half. Where data are few, folds are held out in turn. If the
best candidate is at the edge of the grid, the grid is extended; if it is still at the edge, this is
reported.

The best candidate eta* whose next larger neighbour did not diverge is chosen (so close to
divergence, a stable run of p steps does not guarantee 10 p stable steps). The run then uses

    eta_t = eta* (1 + t / p)^(-1/3),      p the pilot's steps:

eta* is what reaches good predictions within p steps, so the run burns in at that rate; afterwards
the bias of the discretisation, of order eta, and the sampling error, of order 1 / sum eta, are
balanced by the power 1/3 (Teh, Thiery & Vollmer 2016). Test data are never seen; the held-out part
is learned from again in the run itself.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils.data import DataLoader

from natural_langevin import random
from natural_langevin._internal.chains import Params, number_or_chains
from natural_langevin._internal.messages import first_line
from natural_langevin.data.streams import InMemory, Subsets
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine, choose_mode
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.recipe import cost, slowness
from natural_langevin.recipe.curvature import steepest
from natural_langevin.recipe.rules import Choice
from natural_langevin.recipe.run_length import usual_steps
from natural_langevin.recipe.settings import Search, Settings, StepSize
from natural_langevin.run import descent
from natural_langevin.run.collector import finite_chains
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.problem.motion import Motion
from natural_langevin.run.problem.problem import Problem
from natural_langevin.run.problem.step_size_checks import largest_step
from natural_langevin.run.time_limit import clock, in_pieces

log = logging.getLogger("natural_langevin")


def by_curvature(
    search: cost.Search,
    data: tuple[Tensor, Tensor],
    num_data: float,
    chains: int | None = None,
    *,
    pattern: Tensor | None = None,
    shuffled: bool = True,
) -> list[Choice]:
    """The step size of each of ``chains`` chains (None: the usual ones), by a pilot on ``data`` in
    memory, downhill at first or from where chains start. ``shuffled``: whether the run's
    minibatches are parts of shuffled epochs, as the pilot's are: those of a descent, small ones.
    ``pattern``: see ``descent``."""
    motion, downhill, batch_size, costs, limit = search
    problem, settings = motion.problem, costs.settings
    device, seed, pilot = problem.device, problem.chains.seed, settings.pilot
    ids = torch.arange(min(chains or pilot.chains, problem.chains.count), device=device)
    moves = motion.frame_of(ids)
    usual = min(batch_size, len(data[0]))
    rule = costs.descent(len(data[0]), usual, limit)
    stream = InMemory(
        *data, batch_size=rule.rows_of_batch(len(data[0]), usual), chain=ids,
        seed=seed, device=device,
    )  # fmt: skip
    rows = pilot.costly_rows if costs.costly_pilot(len(ids) * batch_size) else pilot.rows
    some = stream.x[:rows].to(device), stream.y[:rows].to(device)
    state = motion.init_of(moves, ids)
    moves.prepare(state.params, stream.example()[0])
    if downhill:
        state = descent.descend(
            moves, state, stream, num_data, rule, mode=choose_mode(motion.compile),
            pattern=pattern if costs.budget.spares else None, limit=limit,
        )  # fmt: skip
    stops = costs.pilot_steps(len(ids) * batch_size)
    lam, state, way = _pilot(search, moves, state, stream, num_data, some, stops)
    limits = settings.step_size
    heat = _heat(moves, state, num_data, usual, limits.friction)
    choices = [
        _choice(float(lam[c]), float(heat[c]), batch_size, num_data, way, limits)
        for c in range(len(ids))
    ]
    if bool(torch.isfinite(lam).all()):
        choices = _slow(search, choices, moves, state, some, num_data, shuffled=shuffled)
    return [replace(c, end=_end(state, n)) for n, c in enumerate(choices)]


def _end(state: State, chain: int) -> tuple[Params, Params] | None:
    """Where a chain of the pilot has come to; None where it was lost."""
    if int(state.diverged[chain]) >= 0:
        return None
    params, learned = (
        {k: v[chain : chain + 1] for k, v in tree.items()}
        for tree in (state.params, state.likelihood)
    )
    return params, learned


def ends(choices: list[Choice]) -> tuple[Params, Params] | None:
    """Where the chains of a pilot have come to, if none was lost."""
    each = [c.end for c in choices if c.end is not None]
    if len(each) < len(choices):
        return None
    weights, learned = (
        {k: torch.cat([tree[k] for tree in trees]) for k in trees[0]}
        for trees in zip(*each, strict=True)
    )
    return weights, learned


def _slow(
    search: cost.Search,
    choices: list[Choice],
    moves: LangevinDynamics,
    state: State,
    some: tuple[Tensor, Tensor],
    num_data: float,
    *,
    shuffled: bool,
) -> list[Choice]:
    """The same choices, with what the directions that are slow ask for."""
    settings = search.costs.settings
    limits, batch_size = settings.step_size, search.batch_size
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
    search: cost.Search,
    moves: LangevinDynamics,
    state: State,
    stream: InMemory,
    num_data: float,
    some: tuple[Tensor, Tensor],
    stops: tuple[int, ...],
) -> tuple[Tensor, State, str]:
    """The steepest curvature of every chain on ``some`` rows, NaN where none was found, where the
    pilot ended, and how its steps were run."""
    lam, done = torch.full((state.chains,), math.nan, dtype=torch.float64), 0
    eta = torch.zeros_like(lam)  # the first batch is for the metric: no step is known to be safe
    motion, limit, settings = search.motion, search.limit, search.costs.settings
    pilot, limits, measuring = settings.pilot, settings.step_size, 0.0
    for stop in stops:
        if done and not limit.allows(measuring):
            log.info("the pilot ends after %d steps: the time is for the run", done)
            break
        began = clock()
        rates = motion.rates(0, stop, eta, chains=state.chains)
        engine = Engine(moves, stream, rates, num_data, mode=choose_mode(motion.compile))
        state, _, at = in_pieces(engine, state, done, stop, limit, pilot.fewest)
        pace, done, stepped = (clock() - began) / (at - done), at, clock()
        # Products of a Hessian and a vector, each a step and a half of as many rows. With an engine
        # or a graph the first step may have built it, and says nothing of the others.
        products = 1.5 * pilot.iterations * pace * len(some[0]) / stream.batch_size
        if not search.costs.budget.engine and not limit.allows(products):
            some = some[0][: stream.batch_size], some[1][: stream.batch_size]
        try:
            found = steepest(moves, state, some, num_data, pilot.iterations, limit).double().cpu()
        except (RuntimeError, NotImplementedError) as error:  # an operation without derivatives
            log.info("the curvature could not be measured: %s", first_line(error))
            break
        measuring = clock() - stepped
        known = torch.isfinite(found) & (state.diverged < 0).cpu()
        if not bool(known.any()):
            break
        log.debug("curvature in the metric after %d steps: %s", stop, found.tolist())
        before, lam = lam, torch.where(known, found, lam)
        eta = (limits.steepness / lam.clamp_min(1e-12)).clamp_max(limits.largest)
        eta = torch.where(torch.isfinite(eta), eta, limits.fallback)
        agrees = bool(((lam / before - 1).abs() <= pilot.agree).all())
        if done < stop or (stop > pilot.fewest and agrees):
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


def with_anchors(
    choice: Choice, problem: Problem, num_data: float, batch: int, settings: Settings
) -> Choice:
    """The choice with control variates, where the noise of minibatches alone makes the run of a
    model of few weights long: steps of two gradients without an engine, but so many fewer that they
    take less time. Also where the user asks for them.

    Draws theta and an anchor are two of the posterior: of inputs like Gaussian ones the gradients'
    differences have 2 (d + 1) / N of the gradients' own variance, d the weights. Twice that is
    counted."""
    slowest, steepest, limits = choice.slowest, choice.curvature, settings.step_size
    if slowest is None or steepest is None or not problem.may_have_anchors:
        return choice
    left = min(1.0, 4 * (problem.weights + 1) / num_data)
    power = 1.0 if problem.power is None else float(problem.power.max())
    per_step = left * power * num_data / (2 * batch * limits.friction)
    usual = _choice(steepest, per_step, batch, num_data, "eager with control variates", limits)
    epochs = slowness.Epochs(num_data, batch, False, limits, left * power)
    found = _paced(usual, [slowest, steepest], epochs, settings)
    asked = problem.anchors is not None

    def steps(one: Choice) -> float:
        if one.relaxation is not None:
            return max(settings.length.fewest, limits.relaxations * one.relaxation)
        return usual_steps(one.step_size, one.way, settings, settings.cost.usual)

    slower = settings.length.most / settings.length.most_eager  # of a step without an engine
    if not asked and (batch >= num_data or steps(choice) <= slower * steps(found)):
        return choice
    every = problem.anchors or min(math.ceil(num_data / batch), settings.length.fewest // 4)
    why = f"{found.reason}, with the control variates of an anchor every {every} steps"
    kept = {k: getattr(choice, k) for k in ("prior_scale", "calibration", "why")}
    return replace(found, control_variates=every, reason=why, **kept)


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
        parts = [
            (j / (j + number_or_chains(damping[k], j))).reshape(len(j), -1)
            for k, j in second.items()
        ]
        share = torch.cat(parts, 1)
        rho = (share.square().nansum(1) / share.nansum(1).clamp_min(1e-12)).cpu()
    count = torch.as_tensor(moves.weight(num_data)).cpu()
    return count * rho / (2 * batch * friction) * (1 - batch / num_data)


@dataclass(frozen=True)
class SearchResult:
    """The result of the search. ``step_sizes``: one for all chains, or one each."""

    step_sizes: tuple[float, ...]
    steps: int
    held_out: int
    reason: str
    table: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for ``Plan.measured["pilot"]``."""
        return dataclasses.asdict(self) | {"step_sizes": list(self.step_sizes)}


def search_steps(steps: int, chains: int, candidates: int, rule: Search) -> int:
    """How long candidates run before a run of ``steps`` steps and ``chains`` chains is.

    >>> [search_steps(*run, 8, Search()) for run in ((10_000, 4), (10_000, 1), (100, 4))]
    [1000, 250, 50]
    """
    part = min(rule.part_of_steps, rule.part_of_work * chains / candidates)
    return min(max(int(part * steps), rule.fewest_steps), rule.most_steps)


def by_held_out_rows(motion: Motion, rule: Search, *, steps: int, batch_size: int) -> SearchResult:
    """The step size for a run of ``steps`` steps: a pure function of its arguments.

    Folds are held out in turn until ``enough_held_out`` rows have been. If the best candidate is at
    the edge of the grid, the grid is extended on that side, at most ``extensions`` times; if it is
    still there, this is reported. The data are in memory and checked."""
    problem, (x, y, total) = motion.problem, motion.problem.rows()
    like, seed, dynamics = problem.alike, problem.chains.seed, motion.frame_of(problem.chains.every)
    rows = sorted(set(like))
    held_out = len(split(len(x), seed, rule)[1])
    num_data = (1 - held_out / len(x)) * total
    splits = min(-(-rule.enough_held_out // held_out), int(1 / rule.held_out))
    etas = candidates(dynamics, num_data, rule)
    count = search_steps(steps, len(like), len(etas) * len(rows), rule)
    folds = [split(len(x), seed, rule, k) for k in range(splits)]
    inside, outside = (torch.stack(rows_of) for rows_of in zip(*folds, strict=True))

    def scored(etas: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss, and whether all folds' runs are stable: (row, candidate)."""
        engine, state = _engine(motion, (x, y), inside, rows, etas, num_data, count, batch_size)
        nll, running = _score(engine, state, (x, y), outside, count, batch_size, rule.draws)
        shape = (len(rows), len(etas), splits)
        return nll.mean(-1).unflatten(0, shape).mean(-1), running.unflatten(0, shape).all(-1)

    discrete = dynamics.gradients.likelihood.discrete
    limit = largest_step(
        dynamics.preconditioner, dynamics.prior, dynamics.weight(num_data), discrete=discrete
    )
    nll, running = scored(etas)
    for _ in range(rule.extensions):
        more = _beyond(etas, nll, running & nll.isfinite(), limit, rule)
        if not len(more):
            break
        extra = scored(more)
        order = torch.cat([etas, more]).argsort()
        etas = torch.cat([etas, more])[order]
        nll, running = (
            torch.cat(pair, dim=1)[:, order] for pair in zip((nll, running), extra, strict=True)
        )
    choice = _decide(etas, nll, running, rows, count, held_out=held_out * splits)
    if len(rows) > 1:
        sizes = tuple(choice.step_sizes[rows.index(first)] for first in like)
        choice = replace(choice, step_sizes=sizes)
    log.info("step_size=%s", choice.reason)
    return choice


def _beyond(etas: Tensor, nll: Tensor, stable: Tensor, limit: float, rule: Search) -> Tensor:
    """Candidates further out on the sides where a row's best one is the last that was tried."""
    if not bool(stable.any(1).all()):
        smaller = True  # nothing is stable yet
        larger = False
    else:
        best = [_best(etas, nll[row], stable[row])[0] for row in range(len(nll))]
        smaller, larger = 0 in best, len(etas) - 1 in best
    low, high = float(etas[0]), float(etas[-1])
    values = [low * rule.spacing**k for k in range(rule.extension, 0, -1)] if smaller else []
    up = [high * rule.spacing**-k for k in range(1, rule.extension + 1)] if larger else []
    values += [eta for eta in up if eta <= limit]
    return torch.tensor([_three_digits(v) for v in values], dtype=torch.float64)


def _engine(
    motion: Motion,
    data: tuple[Tensor, Tensor],
    inside: Tensor,
    rows: list[int],
    etas: Tensor,
    num_data: float,
    count: int,
    batch_size: int,
) -> tuple[Engine, State]:
    """One chain for every fold of every candidate of every row, on the data to learn from:
    ``inside`` (fold, n)."""
    device, seed, folds = motion.problem.device, motion.problem.chains.seed, len(inside)
    ids = torch.tensor(rows, device=device).repeat_interleave(len(etas) * folds)
    dynamics = motion.frame_of(ids)
    stream = InMemory(
        *data, batch_size=min(batch_size, inside.shape[1]), chain=ids, seed=seed,
        device=device, rows=inside.repeat(len(rows) * len(etas), 1),
    )  # fmt: skip
    state = motion.init_of(dynamics, ids)
    dynamics.gradients.prepare(state.params, stream.example()[0])
    # Candidates are scored by the second half of the pilot: the first is their burn-in.
    sizes = etas.repeat_interleave(folds).repeat(len(rows))
    rates = motion.rates(0, count, sizes, chains=len(sizes), burn_in=count // 2)
    mode = choose_mode(motion.compile and "auto")  # too short to repay compiling
    return Engine(dynamics, stream, rates, num_data, mode=mode), state


def candidates(dynamics: LangevinDynamics, num_data: float, rule: Search) -> Tensor:
    """Step sizes to try, smallest first: float64. None that the prior alone makes unstable."""
    metric = dynamics.preconditioner
    discrete = dynamics.gradients.likelihood.discrete
    limit = largest_step(metric, dynamics.prior, dynamics.weight(num_data), discrete=discrete)
    largest = min(metric.largest_tried, limit)
    # Three digits read well, and rounding down keeps below the limit.
    exponents = range(rule.candidates - 1, -1, -1)
    values = [_three_digits(largest * rule.spacing**k) for k in exponents]
    return torch.tensor(values, dtype=torch.float64)


def split(count: int, seed: int, rule: Search, part: int = 0) -> tuple[Tensor, Tensor]:
    """Indices to learn from and indices held out: a random fifth, at most 1000.

    ``part`` counts folds: the first five are disjoint, then the data are shuffled anew."""
    if count < rule.fewest_data:
        raise ValueError(
            f'step_size="auto" holds out a part of the data, and there are only {count} (at least '
            f"{rule.fewest_data} are needed): give a number, such as step_size=1e-3"
        )
    outside, folds = min(int(rule.held_out * count), rule.most_held_out), int(1 / rule.held_out)
    key = random.stream(random.origin(seed, random.HELD_OUT, torch.zeros(1)), part // folds)
    order = random.permutation(key, count)[0].roll(-outside * (part % folds))
    return order[outside:], order[:outside]


def refuse_loader(data: object) -> None:
    """Data of which no part can be held out."""
    if isinstance(data, DataLoader):
        raise ValueError(
            'step_size="auto" must hold a part of the data out, which is not possible with a '
            "DataLoader: give the tensors (x, y), or choose on a part of them that fits into "
            "memory and use posterior.plan.step_size"
        )
    if isinstance(data, Subsets):
        raise ValueError(
            'step_size="auto" holds out a part of the data by itself, but every chain here has '
            "its own rows: give one step size per chain, and compare them on the rows held out"
        )


def _score(
    engine: Engine,
    state: State,
    data: tuple[Tensor, Tensor],
    outside: Tensor,
    steps: int,
    batch_size: int,
    draws: int,
) -> tuple[Tensor, Tensor]:
    """-ln of the mean density of the second half's iterates, (chain, sample), and which run.

    ``outside`` (fold, m): the rows held out; chains are in the order of their folds."""
    device, (x, y) = engine.rates.values.device, data
    index = outside.repeat(len(state.diverged) // len(outside), 1)
    done, drawn = 0, 0
    total = torch.full(index.shape, -math.inf, dtype=torch.float64, device=device)
    for stop in sorted({steps - (steps // 2) * k // draws for k in range(draws)}):
        state, _ = engine.run(state, done, stop - done)
        done, drawn = stop, drawn + 1
        density = torch.cat(
            [
                _log_density(
                    engine.dynamics, state, *(t[i.to(t.device)].to(device) for t in (x, y))
                )
                for i in index.split(batch_size, dim=1)
            ],
            dim=1,
        )
        total = torch.logaddexp(total, density.double())
    return (math.log(drawn) - total).cpu(), finite_chains(state).cpu()


def _log_density(dynamics: LangevinDynamics, state: State, x: Tensor, y: Tensor) -> Tensor:
    """ln p(y_n | x_n) by every chain's network, of its own data (chain, n, ...): (chain, n)."""
    network, likelihood = dynamics.gradients.network, dynamics.gradients.likelihood

    def one(params: Params, learned: Params, x: Tensor, y: Tensor) -> Tensor:
        return -likelihood.log_loss(network.call(params, x), y, learned)

    with torch.no_grad():
        return vmap(one)(state.params, state.likelihood, x, y)


def _decide(
    etas: Tensor, nll: Tensor, running: Tensor, rows: list[int], steps: int, *, held_out: int
) -> SearchResult:
    """From every candidate's score and whether it still runs, (row, candidate) each."""
    stable = running & torch.isfinite(nll)
    chosen, reasons, table = [], [], []
    for row, chain in enumerate(rows):
        own = {"chain": chain} if len(rows) > 1 else {}
        for k, eta in enumerate(etas.tolist()):
            fine = bool(stable[row, k])
            value = float(nll[row, k]) if fine else None
            table.append(own | {"step_size": eta, "nll": value, "diverged": not fine})
        best, why = _best(etas, nll[row], stable[row])
        if "another may be better" in why:
            log.warning('step_size="auto" chose %.3g: %s', etas[best], why)
        chosen.append(float(etas[best]))
        reasons.append(f"{etas[best]:.3g}{f' for chain {chain}' if own else ''}: {why}")
    text = (
        f"{'; '.join(reasons)} (pilot of {steps} steps, {held_out} data held out), falling as "
        f"(1 + step / {steps})^(-1/3)"
    )
    return SearchResult(tuple(chosen), steps, held_out, text, table)


def _best(etas: Tensor, nll: Tensor, stable: Tensor) -> tuple[int, str]:
    """The candidate of lowest loss that is one step of the grid away from divergence, and why."""
    if not bool(stable.any()):
        raise DivergenceError(
            f'step_size="auto" found no stable step size between {etas[0]:.3g} and '
            f"{etas[-1]:.3g}: give the preconditioner more damping or the prior a smaller "
            "variance, or give step_size"
        )
    edge = int((~stable).nonzero().min()) if not bool(stable.all()) else len(etas)
    below = max(edge - 1, 1) if edge < len(etas) else edge
    fine = stable.clone()
    fine[below:] = False
    if not bool(fine.any()):
        fine = stable
    best = int(torch.where(fine, nll, math.inf).argmin())
    why = f"held-out NLL {nll[best]:.4g}, the lowest of {len(etas)} step sizes"
    if edge < len(etas):
        why += (
            f" from {etas[0]:.2g} that are one step of the grid below divergence, at "
            f"{etas[edge]:.2g}"
        )
    else:
        why += f" from {etas[0]:.2g} to {etas[-1]:.2g}, none of which diverged"
    if best == 0 or best == len(etas) - 1 == edge - 1:
        why += "; it is the last on that side, and another may be better"
    return best, why


def _three_digits(value: float) -> float:
    """Rounded down to three significant digits."""
    scale = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / scale + 1e-9) * scale:.3g}")
