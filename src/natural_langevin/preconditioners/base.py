"""``Preconditioner``: a metric, and a factor A of C = A A^T.

The dynamics use C twice, for the drift C v and for the noise C^{1/2} z. Both come from the *same*
factor: apply(v) = A (A^T v), sample(z) = A z. Damping and clamping therefore affect both in the
same way, and C^{1/2} always agrees with C.

Every tensor has a leading chain axis; trees are dicts by parameter name.

Damping: epsilon in C = (J + epsilon)^{-1}, from the prior.

J is the data's curvature per datum. The posterior's is J plus the prior's share,

    epsilon = precision / N,        precision = 1 / variance of a Gaussian prior,

so with this epsilon, the default ``damping="prior"``, C has the scale of the posterior: a direction
without data moves as under the prior alone, at the rate eta for any N and variance (the paper's
1e-4 fits N = 60,000 and variance 0.1). It is a number per parameter tensor, or one per chain if the
prior's variance is. Drift and noise use the same epsilon.

Limits: every prior has a ``precision``, its typical curvature per weight, which for other priors
than the Gaussian is a constant in place of a curvature that depends on theta. Damping need not be
exact: it changes how fast a direction is sampled, never the target. A flat prior has no curvature,
and C would be infinite for directions without data: ``FLAT_DAMPING`` is used instead. RMSProp,
whose C^{-1} is (D + epsilon)^{1/2}, takes the square, so that C has the same limit.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from natural_langevin import schedules
from natural_langevin._internal.chains import Params, Units, average, number_or_chains
from natural_langevin.priors import Prior
from natural_langevin.statistics import Basis, Requests, Sharing, Statistics

#: A tree of tensors by parameter name; what is in it is each metric's own business.
Metric = dict[str, Any]
Targets = Literal["data", "model"]
Fresh = bool | Literal["burn-in"]
Rate = float | schedules.Schedule
#: epsilon of every parameter tensor: a number, or one value per chain (see ``damping``).
Damping = Mapping[str, float | Tensor]


class Factor(NamedTuple):
    """The factor A of C = A A^T, as linear maps on trees of parameters. ``inverse`` is that of
    ``forward``, where it costs no more."""

    forward: Callable[[Params], Params]
    transpose: Callable[[Params], Params]
    inverse: Callable[[Params], Params] | None = None

    def apply(self, v: Params) -> Params:
        """C v."""
        return self.forward(self.transpose(v))

    def sample(self, z: Params) -> Params:
        """A z, which has covariance C when z is standard normal."""
        return self.forward(z)


def diagonal_factor(scale: Params) -> Factor:
    """A diagonal factor is its own transpose."""

    def multiply(v: Params) -> Params:
        return {name: scale[name] * v[name] for name in v}

    def divide(v: Params) -> Params:
        return {name: v[name] / scale[name] for name in v}

    return Factor(multiply, multiply, divide)


def averages(old: Mapping[str, Any], new: Mapping[str, Any], rate: Tensor) -> dict[str, Any]:
    """``average`` of every tensor of a tree."""
    return {
        k: averages(j, new[k], rate) if isinstance(j, dict) else average(j, new[k], rate)
        for k, j in old.items()
    }


def damped(value: Tensor, damping: float | Tensor) -> Tensor:
    """J + epsilon for a (chain, ...) tensor of diagonal entries."""
    return value + number_or_chains(damping, value)


class Preconditioner:
    """Base of all metrics. Subclasses are final: ``init``, ``update``, ``factor``."""

    #: Which statistics ``update`` reads (see statistics.requests); the gradient is always there.
    requests: Requests = frozenset()
    #: Which parameters C couples: of a unit, all, or none.
    couples: Literal["none", "units", "all"] = "none"
    #: Whose labels the statistics come from.
    targets: Targets = "data"
    #: Whether a sample's positions are summed before they are squared (see statistics.moments).
    sharing: Sharing = "exact"
    #: epsilon: a number, one for each chain, or "prior" (see ``damping.resolve_damping``).
    damping: float | Tensor | Literal["prior"] = 0.0
    #: gamma_t of the moving average.
    decay: Rate | None = schedules.inverse_sqrt()
    #: Whether a step applies the metric that its own batch has just changed: never, always, or
    #: while it is averaged in a burn-in after which it stands still.
    fresh: Fresh = False
    #: Until when the metric follows the batches.
    adapt: Literal["burn-in", "always"] = "burn-in"
    #: Statistics are taken at every so many steps.
    every: int = 1
    #: The largest step size that a search tries.
    largest_tried: ClassVar[float] = 0.3

    @property
    def refresh_steps(self) -> int:
        """Steps from one call of ``refreshed`` to the next; 0: there is none."""
        return 0

    def init(self, params: Params, units: Units) -> Metric:
        """The metric before the first update: the identity."""
        raise NotImplementedError

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        """The metric after a batch; ``rate`` (chain,) is gamma_t. Likelihood gradients only."""
        raise NotImplementedError

    def refreshed(self, metric: Metric, *, first: bool) -> Metric:
        """The metric after the periodic refresh at every ``refresh_steps``-th step, after
        ``update``; ``first``: whether it is the first."""
        return metric

    def basis(self, metric: Metric) -> Basis:
        """The basis in which the statistics "rotated" of the next batch are computed."""
        return {}

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        """A with C = A A^T, for the current metric and epsilon by parameter name."""
        raise NotImplementedError

    def apply(self, metric: Metric, v: Params, damping: Damping) -> Params:
        """C v."""
        return self.factor(metric, damping).apply(v)

    def sample(self, metric: Metric, z: Params, damping: Damping) -> Params:
        """C^{1/2} z for standard normal z."""
        return self.factor(metric, damping).sample(z)

    def counts_own_batch(self, *, settles: bool) -> bool:
        """Whether a step applies the metric updated with its own batch; ``settles``: whether the
        metric is frozen after burn-in."""
        return settles if self.fresh == "burn-in" else bool(self.fresh)

    def damping_from(self, curvature: float | Tensor, *, discrete: bool) -> float | Tensor:
        """epsilon of ``damping="prior"``, for a prior of this curvature per datum, 1/(N variance):
        the curvature itself where C^{-1} is J + epsilon."""
        return curvature

    def inverse_from(self, damping: Tensor) -> Tensor:
        """The smallest value of C^{-1} with this epsilon: that of a direction without data."""
        return damping

    def ema_schedule(self, burn_in: float = math.inf, apart: int = 1) -> schedules.Schedule:
        """gamma_t of every step: decay(t // every) where statistics are taken, else 0.

        Statistics are computed at every ``every``-th step, or trajectory of ``apart`` steps; with
        ``adapt="burn-in"`` only in the first ``burn_in`` steps, after which the metric is frozen.

        >>> from natural_langevin.preconditioners import DiagonalFisher
        >>> gamma = DiagonalFisher(every=2).ema_schedule(burn_in=3)
        >>> [round(gamma(t), 3) for t in range(5)]
        [1.0, 0.0, 0.707, 0.0, 0.0]
        """
        assert self.decay is not None
        rate = schedules.as_schedule(self.decay)
        last = burn_in if self.adapt == "burn-in" else math.inf

        return _Gamma(rate, self.every * apart, last)


@dataclass(frozen=True)
class _Gamma:
    """``rate`` at every ``every``-th step before the ``last``, else 0."""

    rate: schedules.Schedule
    every: int
    last: float

    def __call__(self, step: int) -> schedules.Value:
        return 0.0 if step % self.every or step >= self.last else self.rate(step // self.every)

    def table(self, start: int, stop: int) -> Tensor:
        """The same for steps ``start`` to ``stop - 1``: (step, 1). Later steps cost nothing."""
        found = torch.zeros(stop - start, 1, dtype=torch.float64)
        first, end = -(-start // self.every), -(-math.ceil(min(stop, self.last)) // self.every)
        if end > first:
            at = slice(first * self.every - start, end * self.every - start, self.every)
            rate = schedules.tabulate(self.rate, first, end, name="decay", chains=1, high=1.0)
            found[at] = rate
        return found


@dataclass(kw_only=True, eq=False, repr=False)
class AveragedPreconditioner(Preconditioner):
    """The settings of every metric that averages over batches. Abstract.

    ``damping``: epsilon, which bounds C where the data give no information. "prior" is the prior's
    share of the posterior's curvature, 1 / (N variance), by parameter and chain (see ``damping``);
    a number, or a tensor with one per chain, is used as given. ``decay``, also called ``ema_rate``:
    gamma_t, the weight of the *newest* batch, a number or a schedule; 1/sqrt(t) with t = 1, 2, ...
    by default. ``adapt``: "burn-in" freezes the metric after burn-in, so that all kept draws have
    one metric; "always" keeps adapting. ``fresh``: whether a step applies the metric updated with
    its own batch, as in the paper. That couples C with the gradient it multiplies and biases the
    chain, so by default C comes from the previous batches; "burn-in" does so only in a burn-in
    after which the metric is frozen. ``every``: statistics are computed at every so many steps, and
    gamma_t counts these updates.
    """

    damping: float | Tensor | Literal["prior"] = "prior"
    decay: Rate | None = None
    ema_rate: Rate | None = None
    fresh: Fresh = False
    adapt: Literal["burn-in", "always"] = "burn-in"
    every: int = 1

    def __post_init__(self) -> None:
        if self.decay is not None and self.ema_rate is not None:
            raise ValueError(
                f"decay and ema_rate are two names of one rate, got both ({self.decay!r} and "
                f"{self.ema_rate!r}): give only ema_rate"
            )
        rate = self.ema_rate if self.decay is None else self.decay
        self.rate_is_open = rate is None
        self.decay = self.ema_rate = schedules.inverse_sqrt() if rate is None else rate
        self.damping = check_damping(self.damping)
        _one_of("adapt", self.adapt, "burn-in", "always")
        if not isinstance(self.fresh, bool) and self.fresh != "burn-in":
            raise TypeError(f'fresh must be True, False or "burn-in", got {self.fresh!r}')
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be a whole number of steps from 1 on, got {self.every!r}")

    def with_rate(self, rate: Rate) -> Self:
        """The same metric with this averaging rate, if the user gave none. In a burn-in after which
        it is frozen it includes the batch that it is applied to: this limits the step where a batch
        differs from the previous ones, and the bias affects burn-in only."""
        if not self.rate_is_open:
            return self
        other = copy.copy(self)
        other.decay = other.ema_rate = rate
        other.fresh = self.fresh or "burn-in"
        return other

    def __repr__(self) -> str:
        """Shows the first settings always, the others if they differ from the default."""
        shown = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in sorted(dataclasses.fields(self), key=lambda f: f.name != "targets")
            if f.name in ("targets", "damping", "decay")
            or (f.name != "ema_rate" and getattr(self, f.name) != f.default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(kw_only=True, eq=False, repr=False)
class FisherPreconditioner(AveragedPreconditioner):
    """The settings that all Fisher metrics share. Abstract.

    ``targets``: "data" uses the gradients of the labels in the data (the outer-product variant,
    OP), "model" those of labels drawn from the model (the Fisher matrix itself). ``sharing``: how
    the positions of a sample (tokens, pixels, repeated calls of a layer) enter its squared
    gradient. "exact" sums them first; "expand" is a cheaper approximation that treats each as a
    sample.
    """

    #: What ``sharing`` may be.
    sharings: ClassVar[tuple[Sharing, ...]] = ("exact", "expand")
    targets: Targets = "data"
    sharing: Sharing = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("targets", self.targets, "data", "model")
        _one_of("sharing", self.sharing, *self.sharings)

    def damping_from(self, curvature: float | Tensor, *, discrete: bool) -> float | Tensor:
        """The curvature itself; with ``targets="model"`` and discrete targets at least
        ``MODEL_DAMPING``."""
        if self.targets == "data" or not discrete:
            return curvature
        if isinstance(curvature, Tensor):
            return curvature.clamp_min(MODEL_DAMPING)
        return max(curvature, MODEL_DAMPING)


#: Least damping of ``damping="prior"`` with classes or counts drawn from the model. Where J
#: vanishes the step is Euclidean with rate eta / damping. Gradients of the data keep their own
#: second moments away from zero; the model's Fisher matrix has no such floor, since a confident
#: network almost never draws a surprising label, so it needs a damping at which eta / damping is a
#: step size that plain SGD would survive. Of real targets it has, in units of its own: with a floor
#: of 1e-2, targets of size 847 moved 10^4 times too slowly.
MODEL_DAMPING = 1e-2


def check_damping(damping: float | Tensor | str) -> float | Tensor | Literal["prior"]:
    """A number, one for each chain, or the word "prior"."""
    if isinstance(damping, Tensor) and damping.ndim == 1:
        if not bool((damping.isfinite() & (damping >= 0)).all()):
            raise ValueError(f"damping must be finite and at least 0, got {damping.tolist()!r}")
        return damping
    if damping == "prior":
        return "prior"
    if isinstance(damping, (str, bool)) or not (math.isfinite(damping) and damping >= 0):
        raise ValueError(f'damping must be "prior", or finite and at least 0, got {damping!r}')
    return float(damping)


def _one_of(name: str, value: str, *allowed: str) -> None:
    if value not in allowed:
        choices = " or ".join(f'"{a}"' for a in allowed)
        raise ValueError(f"{name} must be {choices}, got {value!r}")


#: Curvature per datum that stands in for that of a flat prior: the paper's epsilon.
FLAT_DAMPING = 1e-4


def resolve_damping(
    preconditioner: Preconditioner, priors: Mapping[str, Prior], num_data: float | Tensor,
    *, discrete: bool,
) -> dict[str, float | Tensor]:  # fmt: skip
    """epsilon of every parameter: a number, or (chain,) where the prior's variance is.
    ``discrete``: whether targets are.

    >>> from natural_langevin.preconditioners import DiagonalFisher
    >>> from natural_langevin.priors import Flat, Gaussian
    >>> resolve_damping(DiagonalFisher(), {"w": Gaussian(0.1), "b": Flat()}, 50, discrete=False)
    {'w': 0.2, 'b': 0.0001}
    >>> resolve_damping(DiagonalFisher(damping=0.3), {"w": Gaussian(0.1)}, 50, discrete=False)
    {'w': 0.3}
    """
    given = preconditioner.damping
    if not isinstance(given, str):
        return dict.fromkeys(priors, given)
    return {
        k: preconditioner.damping_from(_curvature(p, num_data), discrete=discrete)
        for k, p in priors.items()
    }


def _curvature(prior: Prior, num_data: float | Tensor) -> float | Tensor:
    """precision / N, away from zero."""
    precision = prior.precision
    if isinstance(precision, Tensor) and precision.ndim:
        return torch.where(precision > 0, precision / num_data, FLAT_DAMPING)
    return float(precision) / num_data if precision > 0 else FLAT_DAMPING
