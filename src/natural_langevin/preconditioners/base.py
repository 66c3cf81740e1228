"""What a preconditioner is: a metric, and a factor A of C = A A^T.

The dynamics use C twice, for the drift C v and for the noise C^{1/2} z. Both come from the *same*
factor: apply(v) = A (A^T v), sample(z) = A z. Whatever damping or clamping one gets, the other
gets, so C^{1/2} can never disagree with C.

Every tensor has a leading chain axis; trees are dicts by parameter name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

from natural_langevin import schedules
from natural_langevin.statistics import Need, Params, Sharing, Statistics

#: A tree of tensors by parameter name; what is in it is each metric's own business.
Metric = dict[str, Any]
#: For every bias, the weights of its units.
Units = dict[str, tuple[str, ...]]
Targets = Literal["data", "model"]


class Factor(NamedTuple):
    """The factor A of C = A A^T, as two linear maps on trees of parameters."""

    forward: Callable[[Params], Params]
    transpose: Callable[[Params], Params]

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

    return Factor(multiply, multiply)


class Preconditioner:
    """Base of all metrics. Subclasses are final: ``init``, ``update``, ``factor``."""

    #: Which statistics ``update`` reads.
    need: Need = "gradient"
    #: Whose labels the statistics come from.
    targets: Targets = "data"
    #: Whether a sample's positions are summed before they are squared (see gradients.moments).
    sharing: Sharing = "exact"
    #: gamma_t of the moving average.
    decay: float | schedules.Schedule = schedules.inverse_sqrt()

    def init(self, params: Params, units: Units) -> Metric:
        """The metric before the first update: the identity."""
        raise NotImplementedError

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        """The metric after a batch; ``rate`` (chain,) is gamma_t. Likelihood gradients only."""
        raise NotImplementedError

    def factor(self, metric: Metric) -> Factor:
        """A with C = A A^T, for the metric as it stands."""
        raise NotImplementedError

    def apply(self, metric: Metric, v: Params) -> Params:
        """C v."""
        return self.factor(metric).apply(v)

    def sample(self, metric: Metric, z: Params) -> Params:
        """C^{1/2} z for standard normal z."""
        return self.factor(metric).sample(z)


def check_damping(damping: float) -> float:
    if not (math.isfinite(damping) and damping >= 0):
        raise ValueError(f"damping must be finite and at least 0, got {damping!r}")
    return float(damping)


#: Default damping of the Fisher metrics. Where J vanishes the step is Euclidean with rate
#: eta / damping. Gradients of the data keep their own second moments away from zero; the model's
#: Fisher matrix has no such floor, since a confident network almost never draws a surprising
#: label, so it needs a damping at which eta / damping is a step size that plain SGD would survive.
DAMPING = {"data": 1e-4, "model": 1e-2}


def check_targets(targets: str) -> Targets:
    if targets == "data":
        return "data"
    if targets == "model":
        return "model"
    raise ValueError(f'targets must be "data" or "model", got {targets!r}')


def check_sharing(sharing: str) -> Sharing:
    if sharing == "exact":
        return "exact"
    if sharing == "expand":
        return "expand"
    raise ValueError(f'sharing must be "exact" or "expand", got {sharing!r}')


class FisherPreconditioner(Preconditioner):
    """The settings that all Fisher metrics share. Abstract."""

    def __init__(
        self,
        *,
        targets: str = "data",
        damping: float | None = None,
        decay: float | schedules.Schedule = schedules.inverse_sqrt(),
        sharing: str = "exact",
    ) -> None:
        """``sharing``: how the positions of a sample (tokens, pixels, repeated calls of a layer)
        enter its squared gradient. "exact" adds them up first; "expand" is a cheaper approximation
        that takes each for a sample of its own."""
        self.targets, self.decay = check_targets(targets), decay
        self.sharing = check_sharing(sharing)
        self.damping = DAMPING[self.targets] if damping is None else check_damping(damping)

    def __repr__(self) -> str:
        settings = f"targets={self.targets!r}, damping={self.damping!r}, decay={self.decay!r}"
        if self.sharing != "exact":
            settings += f", sharing={self.sharing!r}"
        return f"{type(self).__name__}({settings})"
