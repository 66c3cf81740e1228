"""The recipe: how ``Langevin(model, likelihood).sample(data)`` chooses what is not given. Every
constant stands in ``settings``, with its reason; docs/defaults.md is the same for users.

Dynamics: underdamped, BAOAB. Metric: quasi-diagonal, on a CPU of labels drawn from the model where
these are real numbers; of few weights the full Fisher matrix, likewise, or its blocks by unit if
all layers are linear. It is averaged over burn-in and then frozen; until then it includes the batch
that it is applied to, which limits the step for unusual batches and biases burn-in only.

A minibatch of B of the N data adds

    heat = eta N rho / (2 B a)

to the temperature of directions that the data determine (a the friction; rho the part
J / (J + epsilon) of the metric that comes from data, in the mean over weights that each count by
it). At the same heat chains move as far per row with small minibatches as with large ones. With
lambda, the posterior's largest curvature in the metric at the end of a pilot (``curvature``),

    eta = min(steepness / lambda,  heat 2 B a / (N rho)),

the first for the integrator; it is constant. Directions that only the prior determines relax in
a / eta steps, of which a run has many (``run_length``); slow ones of few weights have less friction
(``slowness``), or control variates (``step_size.with_anchors``). Chains start at the model if it is
trained (``starts``), otherwise at random weights, and then descend without noise (``run.descent``).
The prior's scale, sharpness and spread are chosen on held-out rows (``prior_trial``); the last two
affect predictions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from natural_langevin import preconditioners, priors, schedules
from natural_langevin._internal.chains import Params
from natural_langevin.dynamics.underdamped import Underdamped
from natural_langevin.execution.kernels.native import settings
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior.plan import Calibration
from natural_langevin.preconditioners.base import (
    AveragedPreconditioner,
    FisherPreconditioner,
    Targets,
)
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


def metric(
    model: object, likelihood: object, rule: Metric, device: object = None
) -> preconditioners.Preconditioner:
    """The default metric on this device (None: the model's)."""
    if not isinstance(model, nn.Module):
        return preconditioners.QuasiDiagonalFisher()  # what was given instead is refused by name
    # Where rows are fitted more closely than their noise is wide, the gradients of the data vanish,
    # so that their metric is too wide, and chains are thrown to where it keeps them. Labels drawn
    # from the model have gradients everywhere; those of confident classes hardly
    # (``MODEL_DAMPING``).
    drawn = isinstance(likelihood, Likelihood) and likelihood.can_draw and not likelihood.discrete
    trainable = [p for p in model.parameters() if p.requires_grad]
    if sum(p.numel() for p in trainable) > rule.few_weights:
        # Where an engine has them: the whole steps of a GPU are for the data's labels.
        there = trainable[0].device if device is None else device
        engine = isinstance(likelihood, Likelihood) and settings.draws(likelihood)
        engine = engine and str(there).startswith("cpu")
        targets: Targets = "model" if drawn and engine else "data"
        return preconditioners.QuasiDiagonalFisher(targets=targets, every=rule.every)
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    if all(isinstance(m, nn.Linear) for m in layers):
        return preconditioners.UnitFisher(every=rule.every)
    return preconditioners.FullFisher(targets="model" if drawn else "data", every=rule.every)


def prior(scale: float | Tensor = 1.0) -> priors.FanIn:
    """N(0, 2 scale / fan_in) for weights, N(0, 2 scale) for biases."""
    return priors.FanIn((2 * scale) ** 0.5)


def batch_size(num_data: int, affordable: float, rule: Batch) -> int:
    """Rows of a minibatch; ``affordable``: those that a step has the operations for.

    >>> [batch_size(n, 500, Batch()) for n in (50, 150, 300, 1000, 60_000)]
    [50, 150, 100, 200, 500]
    >>> batch_size(60_000, 20, Batch())
    100
    """
    usual = max(rule.fewest, int(min(num_data // rule.part, affordable, rule.most)))
    return usual if num_data >= 2 * usual else num_data


def of_calls(way: str) -> bool:
    """Whether steps that are run this way (``Engine.way``) are operator calls on a CPU: some
    milliseconds, whatever the network's size.

    >>> [of_calls(way) for way in ("eager", "native kernels", "native", "graph, triton kernels")]
    [True, True, False, False]
    """
    return way.startswith(("eager", "native kernels"))


@dataclass(frozen=True)
class Choice:
    """The step size, and why; the prior's variance in units of the default's, and what held-out
    rows have said of predictions, where these were chosen too (``why``)."""

    step_size: float
    curvature: float | None
    heat: float
    reason: str
    way: str = "eager"  # how the pilot's steps were run
    prior_scale: float | None = None
    calibration: Calibration | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    trial_chains: int = 0  # by which predictions were calibrated
    friction: float = StepSize.friction
    #: The smallest curvature in the metric, of few weights whose curvatures are all positive; and
    #: in how many steps such a direction relaxes, where it is what the length follows.
    slowest: float | None = None
    relaxation: float | None = None
    #: Steps between two anchors of control variates, where the recipe takes them.
    control_variates: int | None = None
    #: Where chains of the search have come to by it: weights, and what likelihoods have learned.
    end: tuple[Params, Params] | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def most_careful(choices: list[Choice]) -> Choice:
        """Of chains of one posterior: the smallest step size that was measured."""
        measured = [c for c in choices if c.curvature is not None]
        return min(measured or choices, key=lambda c: c.step_size)

    def reasons(self) -> dict[str, str]:
        """Why each is what it is."""
        usual = self.friction == StepSize.friction
        own = {
            "step_size": self.reason,
            "friction": "the usual one" if usual else "less than usual, as the step size is small",
        }
        return own | dict(self.why)

    def measured(self) -> dict[str, Any]:
        """What the pilot saw."""
        names = ("curvature", "heat", "way", "slowest", "relaxation")
        return {name: getattr(self, name) for name in names}
