"""The recipe: everything that ``Langevin(model, likelihood).sample(data)`` leaves open.

Dynamics. Underdamped, integrator BAOAB, friction 0.1, or less where steps are small (see
``slowness``): its bias is of second order in the step.
Metric. Quasi-diagonal; of at most ``FEW_WEIGHTS`` weights the full Fisher matrix, or its blocks of
a unit's weights where all layers are linear (the same for a linear model), since correlated inputs
slow a diagonal metric down; or the user's. A Fisher metric whose rate is open is averaged with
gamma_t = 4 / (t + 4), which weighs batch t by t^3: frozen after burn-in, it must stand for all of
the posterior, not for the last few batches, and not for the way there.
Batch. A fifth of the data, between 100 and 500: with N/B batches the noise of a minibatch adds

    heat = eta N rho / (2 B a)

to the temperature (a the friction; rho, the mean of J / (J + epsilon), the part of the metric that
comes from data).
Step size. A pilot of two chains, or of one for every scale of the prior, burns in; lambda is the
posterior's steepest curvature in the metric there (see ``curvature``). Then

    eta = min(0.1 / lambda,  0.1 * 2 B a / (N rho)),

the first for the integrator (it is stable up to 4 / lambda, and lambda grows when chains move on
under a frozen metric: by 4 to 10 in trials), the second for at most a tenth of heat. The first
fifth of burn-in goes up to four times eta, to travel, and rises to it while the metric has seen few
batches. After it eta is constant: longer is better.
Steps. 150 relaxation times 0.1 / eta of the directions that only the prior sees, a third of it
burn-in, by the root of a / 0.1 fewer with less friction a; at least 2,000, and at most what
a budget of operations allows (50 of them, and less work, where steps have no engine on a CPU: see
``cost``). Where the posterior of few weights has directions so slow that this is less than 60 of
their relaxation times, it is run with less friction, and for these 60 (see ``slowness``). About 200
draws of every chain are kept. A quarter of the steps, as a run of its own, is all where its loss
does not fall any more from its middle third to its last (``falls_by``), and its chains agree
(``disagreement``). Otherwise it was burn-in, and the rest of them, half as many again for more
draws, begins where it ended, with its metric at first; and as many as usual again if the loss falls
even then, twice at most, within the same operations, and not with more weights than rows, whose own
loss falls long after predictions have stopped to gain.
Start. At the model where it has learned something, otherwise at weights N(0, 1/fan_in), different
for every chain (see ``starts``); from there downhill without noise (see ``warm_up``).
Prior, sharpness and spread. The prior's scale, of classes how sharply the mixture is predicted, and
of numbers how far networks are from their mean, by held-out rows (see ``prior_scale``). The last
two are of predictions: chains know nothing of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import preconditioners, priors, schedules
from natural_langevin.data.loaders import SharedBatches, Split
from natural_langevin.data.streams import InMemory, Subsets, split_pair
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.dynamics.underdamped import Underdamped
from natural_langevin.execution.engine import Engine
from natural_langevin.preconditioners.base import AveragedPreconditioner, FisherPreconditioner
from natural_langevin.sampling import cost, slowness, time_limit, trials, warm_up
from natural_langevin.sampling.curvature import steepest

log = logging.getLogger("natural_langevin")

FRICTION = 0.1
#: Up to here a dense matrix costs no more than a diagonal one: operator calls are what is paid for.
FEW_WEIGHTS = 40
#: eta lambda, and the heat of minibatches.
STEEPNESS, HEAT = 0.1, 0.1
FIRST_STEP, LARGEST_STEP, FALLBACK_STEP = 1e-2, 0.3, 1e-3
PILOT_CHAINS, PILOT_STEPS = 2, (1, 50, 150, 500)
#: Rows on which curvature is measured.
ROWS, LOADER_ROWS = 1000, 2000
FEWEST_STEPS, MOST_STEPS = cost.USUAL.fewest, 50_000
#: The power of friction with which the length of a run falls.
SHORTER = 0.5
#: Where every step is a few milliseconds of operator calls, whatever the network's size.
MOST_EAGER_STEPS = 4_000
DRAWS = 200
#: For how many batches the metric of a run counts in the average of the one that follows it.
REMEMBERED = 25
#: How often a run that explodes begins anew, by which part of the step size each time.
ATTEMPTS, LESS = 2, 4.0
#: The part of a run of open length after which it ends if its loss no longer falls and its chains
#: agree, its fewest steps, and what their disagreement may cost (``disagreement``).
FIRST_PART, FIRST_STEPS, DISAGREEMENT = 4, 2_500, 7e-4
#: By which factor the rest is longer than what is left of the usual length: more draws alone.
LONGER = 1.5
#: A loss falls if it is by so many nats per sample, and so many errors, lower in a run's last third
#: than in the one before, each of so many looks; and how often another run then follows.
FALLING, ERRORS, FEWEST_LOOKS, MOST_REPEATS, LOOKS = 0.02, 3.0, 8, 2, 150


def dynamics() -> Underdamped:
    """How chains move where the user leaves it open."""
    return Underdamped(friction=FRICTION, integrator="baoab")


def averaged(given: preconditioners.Preconditioner) -> preconditioners.Preconditioner:
    """A metric with the recipe's rate, where it is an average whose rate is open. RMSProp squares
    mean gradients, which vanish where the way downhill ends: the identity counts as a batch."""
    if isinstance(given, FisherPreconditioner):
        return given.with_rate(schedules.polynomial_average())
    if isinstance(given, AveragedPreconditioner):
        return given.with_rate(schedules.polynomial_average(before=1))
    return given


def metric(model: object) -> preconditioners.Preconditioner:
    """The metric where the user leaves it open."""
    if not isinstance(model, nn.Module):
        return preconditioners.QuasiDiagonalFisher()  # what was given instead is refused by name
    trainable = [p for p in model.parameters() if p.requires_grad]
    if sum(p.numel() for p in trainable) > FEW_WEIGHTS:
        return preconditioners.QuasiDiagonalFisher()
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    if all(isinstance(m, nn.Linear) for m in layers):
        return preconditioners.UnitFisher()
    return preconditioners.FullFisher()


def prior(scale: float | Tensor = 1.0) -> priors.FanIn:
    """N(0, 2 scale / fan_in) for weights, N(0, 2 scale) for biases."""
    return priors.FanIn((2 * scale) ** 0.5)


def rows_of(
    data: Any, num_data: float | None, split: Split = split_pair
) -> tuple[Tensor, Tensor, float]:
    """Rows in memory to choose by, x and y, and N. A DataLoader lends the first of its batches,
    those of its first one's shape. ``split`` makes (x, y) of what it yields."""
    if isinstance(data, Subsets):
        return data.x, data.y, num_data or data.rows.shape[1]
    if isinstance(data, DataLoader | SharedBatches):
        pairs: list[tuple[Tensor, Tensor]] = []
        loader = data if isinstance(data, DataLoader) else data.loader
        for item in loader:
            pair = split(item)
            if pairs and pair[0].shape[1:] != pairs[0][0].shape[1:]:
                continue
            pairs.append(pair)
            if sum(len(x) for x, _ in pairs) >= LOADER_ROWS:
                break
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        try:
            known = len(loader.dataset)  # type: ignore[arg-type]
        except TypeError:
            known = len(x)
        return x, y, float(num_data or known)
    x, y = split(data.tensors if isinstance(data, TensorDataset) else data)
    return x, y, num_data or len(x)


def batch_size(num_data: int) -> int:
    """Rows of a minibatch.

    >>> [batch_size(n) for n in (50, 300, 1000, 60_000)]
    [50, 100, 200, 500]
    """
    return min(num_data, max(100, min(num_data // 5, 500)))


@dataclass(frozen=True)
class HeldOutChoice:
    """A number chosen on held-out rows, and why."""

    value: float
    reason: str


@dataclass(frozen=True)
class HeldOutNoise(HeldOutChoice):
    """The spread of networks around their mean (see ``posterior.spread``), the weights of the
    noise's widths that go with it, and the variance that the noise had there."""

    widths: list[float]
    variance: float


@dataclass(frozen=True)
class Choice:
    """The step size, and why; the prior's variance in units of the default's, and the sharpness of
    class probabilities or the spread of numbers, where they were chosen too."""

    step_size: float
    curvature: float | None
    heat: float
    reason: str
    way: str = "eager"  # how the pilot's steps were run
    prior_scale: HeldOutChoice | None = None
    sharpness: HeldOutChoice | None = None
    spread: HeldOutNoise | None = None
    friction: float = FRICTION
    #: The smallest curvature in the metric, of few weights whose curvatures are all positive; and
    #: in how many steps such a direction relaxes, where it is what the length follows.
    slowest: float | None = None
    relaxation: float | None = None

    @staticmethod
    def most_careful(choices: list[Choice]) -> Choice:
        """Of chains of one posterior: the smallest step size that was measured."""
        measured = [c for c in choices if c.curvature is not None]
        return min(measured or choices, key=lambda c: c.step_size)

    def gentler(self) -> Choice:
        """The same after a run that exploded: a quarter of the step size."""
        eta = float(f"{self.step_size / LESS:.2g}")
        why = f"{eta:.2g}, after chains had exploded with {self.reason}"
        return replace(self, step_size=eta, heat=self.heat / LESS, reason=why)

    def schedule_of(self, burn_in: int) -> schedules.Schedule:
        """eta_t of a run: larger at first, constant from a fifth of burn-in on. A quarter of that
        fifth it rises, while the metric has seen few batches."""
        warm = burn_in // 5
        return schedules.warm_start(self.step_size, factor=4.0, steps=warm, rise=warm // 4)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for ``posterior.config["recipe"]``."""
        return asdict(self)

    @staticmethod
    def from_config(config: dict[str, Any]) -> Choice | None:
        """The choice that a checkpoint's configuration tells of, if it does."""
        found = config.get("recipe")
        if not isinstance(found, dict):
            return None
        kinds = {"prior_scale": HeldOutChoice, "sharpness": HeldOutChoice, "spread": HeldOutNoise}
        chosen = {k: (found.get(k), kind) for k, kind in kinds.items()}
        return Choice(**found | {k: v and kind(**v) for k, (v, kind) in chosen.items()})


@dataclass(frozen=True)
class Length:
    """How long a run is, and what of it is kept; where its length was open, how often another may
    follow one whose loss still falls (None: it was given), and the most steps of all together."""

    steps: int
    burn_in: int
    thin: int
    repeats: int | None = None
    most: int = 0

    @staticmethod
    def usual(steps: int, burn_in: int | None = None, thin: int | None = None) -> Length:
        """A third of burn-in, and about ``DRAWS`` draws of every chain."""
        burn_in = steps // 3 if burn_in is None else burn_in
        return Length(steps, burn_in, max(1, (steps - burn_in) // DRAWS) if thin is None else thin)

    def runs(self) -> list[Length]:
        """One after the other, each of which is the last unless its loss still falls: a part of
        the steps (also the last only if its chains agree), the rest of them with more draws as far
        as ``most`` allows, and then as many as usual again for every one of ``repeats``."""
        if self.repeats is None:
            return [self]
        again = [Length.usual(self.steps)] * self.repeats
        first = max(FIRST_STEPS, self.steps // FIRST_PART)
        if self.steps < 2 * first:
            return [Length.usual(self.steps), *again]
        rest = self.steps - first
        room = min(MOST_STEPS, self.most - self.steps * self.repeats) - first
        longer = max(rest, min(int(LONGER * rest), room))
        return [Length.usual(first), Length.usual(longer, rest // 3), *again]


def length(
    choice: Choice,
    *,
    steps: int | None,
    burn_in: int | None,
    thin: int | None,
    work: float,
    budget: cost.Budget = cost.USUAL,
) -> Length:
    """What the user leaves open of a run's length; ``work``: operations of one step."""
    repeats, affordable = None, 0
    if steps is None:
        affordable = max(budget.fewest, int(budget.work / max(work, 1.0) / 100) * 100)
        wanted = _usual_steps(choice.step_size, choice.way, choice.friction, budget)
        if choice.relaxation is not None:
            wanted = math.ceil(slowness.RELAXATIONS * choice.relaxation / 100) * 100
            affordable = min(affordable, MOST_STEPS)
        steps = min(max(FEWEST_STEPS, wanted), affordable)
        # Where the slowest direction is known, the length follows from it.
        if choice.slowest is None and burn_in is None and thin is None:
            repeats = min(MOST_REPEATS, affordable // steps - 1)
        if choice.relaxation is not None and steps < wanted:
            log.warning(
                "the slowest direction relaxes in %.0f steps (curvatures in the metric from "
                "%.2g to %.2g): %d steps are %.0f such times, and %d would be needed. Inputs "
                "of mean 0 and size 1, or a denser metric (preconditioners.FullFisher()), are "
                "the remedy", choice.relaxation, choice.slowest, choice.curvature, steps,
                steps / choice.relaxation, wanted,
            )  # fmt: skip
        elif steps < wanted:
            log.log(
                trials.level() if budget.spares else logging.INFO,
                "%d steps, where %d would be usual: a step takes %.1g operations. Give steps= for "
                "more", steps, wanted, work,
            )  # fmt: skip
    return replace(Length.usual(steps, burn_in, thin), repeats=repeats, most=affordable)


def looks_apart(steps: int) -> int:
    """Steps between two looks at the losses of a run whose fall is to be measured: every look is
    a minibatch, and short runs would have few.

    >>> [looks_apart(steps) for steps in (1_500, 4_500, 20_000)]
    [10, 30, 50]
    """
    return max(10, min(50, steps // LOOKS))


def falls_by(trace: Tensor) -> float:
    """By how many nats per sample a run's loss is lower in its last third than in the one before,
    in the mean of its chains; 0 where that is not above ``FALLING`` and ``ERRORS`` standard errors
    of it. ``trace`` (look, 1 + chain): losses of minibatches at every look, the step first."""
    looks = len(trace) // 3
    if looks < FEWEST_LOOKS or not bool(torch.isfinite(trace).all()):
        return 0.0
    middle, last = trace[-2 * looks :, 1:].double().mean(1).split(looks)
    error = ((middle.var() + last.var()) / looks).sqrt()
    fall = middle.mean() - last.mean()
    return float(fall) if fall > max(FALLING, ERRORS * float(error)) else 0.0


def disagreement(density: Tensor, weights: Tensor | None = None) -> float:
    """What it costs that chains say different things, in nats per sample: with p_c the densities
    (chain, row, ...) of chain c, and p that of all C chains,

        (1 / 2C) mean over rows of var_c(p_c) / p^2,

    by which E[-ln p] is above that of as many runs pooled. 0 of one chain. ``weights`` (row, ...):
    of what may be observed, in place of what was. Classes are weighed by p: rows that networks have
    learned have a class of which they are all sure, where new rows would have another."""
    if len(density) < 2:
        return 0.0
    density = density.double()
    relative = density.var(0) / density.mean(0).square().clamp_min(1e-300)
    cost = relative if weights is None else (relative * weights).sum(-1)
    return float(cost.mean()) / (2 * len(density))


def _usual_steps(
    step_size: float, way: str, friction: float = FRICTION, budget: cost.Budget = cost.USUAL
) -> int:
    """By the directions that only the prior sees; fewer where less friction lets them relax sooner,
    but not as many times fewer: the metric and the steep directions gain nothing by it."""
    usual = budget.relaxations * FRICTION / step_size * (friction / FRICTION) ** SHORTER
    wanted = math.ceil(usual / 100) * 100
    most = MOST_EAGER_STEPS if way.startswith("eager") else MOST_STEPS
    return min(max(FEWEST_STEPS, wanted), most)


def choose(
    moves: LangevinDynamics,
    state: State,
    data: tuple[Tensor, Tensor],
    rates: Callable[[Tensor, int, int], RatesTable],
    *,
    num_data: float,
    batch: int,
    ids: Tensor,
    seed: int,
    mode: Any,
    downhill: bool = False,
    pattern: Tensor | None = None,
    shuffled: bool = True,
    work: float = 0.0,
) -> list[Choice]:
    """The step size of every chain of ``ids``, by a pilot from ``state`` on ``data`` in memory.

    ``rates`` gives the table of (step sizes, first step, last step), all of them adapting.
    ``downhill``: whether chains begin as in ``warm_up``, ``pattern``: by which of them;
    ``shuffled``: whether the run's minibatches are parts of shuffled epochs, as the pilot's are;
    ``work``: operations of a step where these are to be spared (see ``cost``)."""
    x, y = data
    stream = InMemory(
        x, y, batch_size=min(batch, len(x)), chain=ids, seed=seed, device=moves.temperature.device
    )
    rows = cost.ROWS if work * PILOT_STEPS[-1] > cost.PILOT_WORK else ROWS
    some = tuple(t[:rows].to(moves.temperature.device) for t in (stream.x, stream.y))
    lam, done = torch.full((len(ids),), math.nan, dtype=torch.float64), 0
    eta = torch.zeros_like(lam)  # the first batch is for the metric: no step is known to be safe
    moves.prepare(state.params, stream.example()[0])
    if downhill:
        state = warm_up.descend(moves, state, stream, num_data, mode=mode, pattern=pattern)
    began = time_limit.clock()
    for stop in PILOT_STEPS:
        as_long = (time_limit.clock() - began) * (stop - done) / max(done, 1)
        if done >= cost.FEWEST_PILOT_STEPS and not time_limit.allows(as_long):
            break
        if done >= cost.FEWEST_PILOT_STEPS and work * stop > cost.PILOT_WORK:
            break
        if work and stop > cost.MOST_PILOT_STEPS:
            break
        engine = Engine(moves, stream, rates(eta, 0, stop), num_data, mode=mode)
        state, _ = engine.run(state, done, stop - done)
        done = stop
        try:
            found = steepest(moves, state, (some[0], some[1]), num_data).double().cpu()
        except (RuntimeError, NotImplementedError) as error:  # an operation without derivatives
            log.info("the curvature could not be measured: %s", str(error).split("\n")[0])
            break
        known = torch.isfinite(found) & (state.diverged < 0).cpu()
        if not bool(known.any()):
            break
        lam = torch.where(known, found, lam)
        eta = (STEEPNESS / lam.clamp_min(1e-12)).clamp_max(LARGEST_STEP)
        eta = torch.where(torch.isfinite(eta), eta, FALLBACK_STEP)
    heat = _heat(moves, state, num_data, min(batch, len(x)))
    choices = [
        _choice(float(lam[c]), float(heat[c]), batch, num_data, engine.way) for c in range(len(ids))
    ]
    if not bool(torch.isfinite(lam).all()):
        return choices
    if sum(p[0].numel() for p in state.params.values()) > slowness.MOST_WEIGHTS:
        fisher = isinstance(moves.preconditioner, FisherPreconditioner)
        return [_less_friction(c) for c in choices] if fisher else choices
    found = slowness.spectrum(moves, state, (some[0], some[1]), num_data)
    if not bool((found > 0).all()):  # also of what is not finite
        return choices
    epochs = slowness.Epochs(num_data, batch, shuffled)
    return [_paced(c, k.tolist(), epochs) for c, k in zip(choices, found, strict=True)]


def _less_friction(usual: Choice) -> Choice:
    """The same choice of a network, whose curvatures are not known one by one."""
    pace = slowness.Pace(usual.step_size, usual.friction)
    a = float(f"{slowness.friction_of_network(pace, usual.heat):.2g}")
    if a >= usual.friction:
        return usual
    why = f"{usual.reason}; friction {a:.2g}, for the directions that are slow with such steps"
    return replace(usual, friction=a, heat=usual.heat * usual.friction / a, reason=why)


def _paced(usual: Choice, curvatures: list[float], epochs: slowness.Epochs) -> Choice:
    """The same choice, smaller where minibatches heat the steep directions of a metric that is no
    Fisher matrix; or where it has too few relaxation times of the slowest direction in it, the
    quickest. ``curvatures``: in ascending order."""
    slowest, steepest = curvatures[0], curvatures[-1]
    usual = _bearable(replace(usual, slowest=slowest), curvatures, epochs)
    pace = slowness.Pace(usual.step_size, FRICTION)
    steps = _usual_steps(usual.step_size, usual.way)
    if slowness.RELAXATIONS * pace.relaxation(slowest) <= steps:
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
    ``slowness.MOST_HEAT``."""
    if epochs.bearable(usual.step_size, curvatures, FRICTION):
        return usual
    eta = float(f"{epochs.largest_step(curvatures, FRICTION):.2g}")
    heat = sum(epochs.heat(eta * k, FRICTION) for k in curvatures) / len(curvatures)
    why = (
        f"{eta:.2g}: curvatures in the metric are up to {curvatures[-1]:.3g}, and minibatches of "
        f"{epochs.batch} of {epochs.num_data:.0f} allow no more there"
    )
    return replace(usual, step_size=eta, curvature=curvatures[-1], heat=heat, reason=why)


def _choice(lam: float, per_step: float, batch: int, num_data: float, way: str) -> Choice:
    """By the curvature lambda and the heat of a unit of eta."""
    eta, why = FALLBACK_STEP, "no curvature could be measured"
    if math.isfinite(lam):
        eta = min(LARGEST_STEP, STEEPNESS / max(lam, 1e-12))
        why = f"the steepest curvature in the metric is {lam:.3g}"
    if per_step * eta > HEAT:
        eta = HEAT / per_step
        why += f", and minibatches of {batch} of {num_data:.0f} allow no more"
    eta = float(f"{eta:.2g}")
    curvature = lam if math.isfinite(lam) else None
    return Choice(eta, curvature, per_step * eta, f"{eta:.2g}: {why}", way)


def _heat(moves: LangevinDynamics, state: State, num_data: float, batch: int) -> Tensor:
    """N rho / (2 B a) of every chain, what a unit of eta adds to the temperature; 0 for full
    batches."""
    rho = torch.ones(state.chains)
    if batch >= num_data:
        return torch.zeros_like(rho)
    second = state.metric.get("second")
    if isinstance(second, dict) and second:
        damping = moves.damping(second, num_data)
        parts = [(j / (j + _as_chain(damping[k], j))).flatten(1) for k, j in second.items()]
        rho = torch.cat(parts, 1).nanmean(1).cpu()
    return num_data * rho / (2 * batch * FRICTION) * (1 - batch / num_data)


def _as_chain(value: float | Tensor, like: Tensor) -> float | Tensor:
    if isinstance(value, Tensor) and value.ndim:
        return value.reshape(-1, *(1,) * (like.ndim - 1))
    return value
