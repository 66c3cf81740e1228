"""The recipe: how ``Langevin(model, likelihood).sample(data)`` chooses what is not given, with the
constants of ``settings`` (docs/defaults.md is the same for users).

Dynamics. Underdamped, BAOAB, friction 0.1, or less where steps are small (``slowness``).
Metric. Quasi-diagonal; with at most 40 weights the full Fisher matrix, of labels drawn from the
model where these are no classes, or its blocks by unit if all layers are linear. Averaged with
gamma_t = 4 / (t + 4), which weighs batch t by t^3, and frozen after burn-in. Until then it includes
the batch that it is applied to, which limits the step for unusual batches and biases burn-in only.
Batch. A fifth of the data, between 100 and 500 rows: a minibatch adds

    heat = eta N rho / (2 B a)

to the temperature of directions that the data determine (a the friction; rho the part
J / (J + epsilon) of the metric that comes from data, in the mean over weights that each count by
it). At the same heat chains move as far per row with small minibatches as with large ones.
Step size. A pilot of two chains, or of one for every scale of the prior, burns in; lambda is the
posterior's largest curvature in the metric there (``curvature``). Then

    eta = min(0.1 / lambda,  0.1 * 2 B a / (N rho)),

the first for the integrator (stable up to 4 / lambda, and lambda grows by 4 to 10 when chains move
on under a frozen metric), the second for a heat of at most a tenth. eta is constant.
Control variates. A model of few weights whose run minibatches of very many rows would make long
(10^6 rows) has an anchor every 500 steps (``step_size.with_anchors``).
Steps. 150 relaxation times 0.1 / eta of the directions that only the prior determines, a third of
it burn-in; at least 2,000, at most what a budget of operations allows (``cost``). Slow directions
of few weights get less friction and 60 of their relaxation times (``slowness``). About 200 draws
per chain are kept. A quarter of the steps is run first; the run ends there if its chains agree
(``run.until``). Otherwise that part becomes burn-in, three times as many steps follow, and so on.
Start. At the model if it is trained, otherwise at weights N(0, 1/fan_in), different for every chain
(``starts``); then a descent without noise (``run.descent``).
Prior, sharpness and spread. By held-out rows (``prior_trial``). The last two affect predictions
only, not the chains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from natural_langevin import preconditioners, priors, schedules
from natural_langevin.dynamics.underdamped import Underdamped
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.plan import Calibration
from natural_langevin.preconditioners.base import AveragedPreconditioner, FisherPreconditioner
from natural_langevin.recipe.settings import Batch, Metric, StepSize


def dynamics(friction: float = StepSize.friction) -> Underdamped:
    """The default dynamics."""
    return Underdamped(friction=friction, integrator="baoab")


def averaged(given: preconditioners.Preconditioner) -> preconditioners.Preconditioner:
    """A metric with the recipe's rate, where it is an average whose rate is open. RMSProp squares
    mean gradients, which vanish where the descent ends: the identity counts as a batch."""
    if isinstance(given, FisherPreconditioner):
        return given.with_rate(schedules.polynomial_average())
    if isinstance(given, AveragedPreconditioner):
        return given.with_rate(schedules.polynomial_average(before=1))
    return given


def metric(model: object, likelihood: object, rule: Metric) -> preconditioners.Preconditioner:
    """The default metric."""
    if not isinstance(model, nn.Module):
        return preconditioners.QuasiDiagonalFisher()  # what was given instead is refused by name
    trainable = [p for p in model.parameters() if p.requires_grad]
    if sum(p.numel() for p in trainable) > rule.few_weights:
        return preconditioners.QuasiDiagonalFisher(every=rule.every)
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    if all(isinstance(m, nn.Linear) for m in layers):
        return preconditioners.UnitFisher(every=rule.every)
    # The descent may end where every row is fitted: the gradients of the data vanish there, so that
    # their metric is far too wide, and chains are thrown to where it keeps them. Labels drawn from
    # the model have gradients everywhere; those of confident classes hardly (``MODEL_DAMPING``).
    drawn = isinstance(likelihood, Likelihood) and likelihood.can_draw and not likelihood.discrete
    return preconditioners.FullFisher(targets="model" if drawn else "data", every=rule.every)


def prior(scale: float | Tensor = 1.0) -> priors.FanIn:
    """N(0, 2 scale / fan_in) for weights, N(0, 2 scale) for biases."""
    return priors.FanIn((2 * scale) ** 0.5)


def batch_size(num_data: int, affordable: float, rule: Batch) -> int:
    """Rows of a minibatch; ``affordable``: those that a step has the operations for.

    >>> [batch_size(n, 500, Batch()) for n in (50, 300, 1000, 60_000)]
    [50, 100, 200, 500]
    >>> batch_size(60_000, 20, Batch())
    100
    """
    usual = int(min(num_data // rule.part, affordable, rule.most))
    return min(num_data, max(rule.fewest, usual))


@dataclass(frozen=True)
class HeldOutChoice:
    """A number chosen on held-out rows, and why."""

    value: float
    reason: str


@dataclass(frozen=True)
class HeldOutNoise(HeldOutChoice):
    """The spread of networks around their mean (see ``posterior.calibration``), the weights of the
    noise's widths that go with it, and the variance that the noise had there."""

    widths: list[float]
    variance: float


def of_calls(way: str) -> bool:
    """Whether steps that are run this way (``Engine.way``) are operator calls on a CPU: some
    milliseconds, whatever the network's size.

    >>> [of_calls(way) for way in ("eager", "native kernels", "native", "graph, triton kernels")]
    [True, True, False, False]
    """
    return way.startswith(("eager", "native kernels"))


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
    trial_chains: int = 0  # by which the last two were chosen
    friction: float = StepSize.friction
    #: The smallest curvature in the metric, of few weights whose curvatures are all positive; and
    #: in how many steps such a direction relaxes, where it is what the length follows.
    slowest: float | None = None
    relaxation: float | None = None
    #: Steps between two anchors of control variates, where the recipe takes them.
    control_variates: int | None = None

    @staticmethod
    def most_careful(choices: list[Choice]) -> Choice:
        """Of chains of one posterior: the smallest step size that was measured."""
        measured = [c for c in choices if c.curvature is not None]
        return min(measured or choices, key=lambda c: c.step_size)

    def calibration(self) -> Calibration | None:
        """What held-out rows have said of predictions."""
        if self.sharpness is None and self.spread is None:
            return None
        spread = self.spread
        return Calibration(
            sharpness=None if self.sharpness is None else self.sharpness.value,
            spread=None if spread is None else spread.value,
            widths=() if spread is None else tuple(spread.widths),
            variance=None if spread is None else spread.variance,
        )

    def reasons(self) -> dict[str, str]:
        """Why each is what it is."""
        parts = {"prior": self.prior_scale, "sharpness": self.sharpness, "spread": self.spread}
        usual = self.friction == StepSize.friction
        own = {
            "step_size": self.reason,
            "friction": "the usual one" if usual else "less than usual, as the step size is small",
        }
        return own | {k: v.reason for k, v in parts.items() if v is not None}

    def measured(self) -> dict[str, Any]:
        """What the pilot saw."""
        names = ("curvature", "heat", "way", "slowest", "relaxation")
        return {name: getattr(self, name) for name in names}
