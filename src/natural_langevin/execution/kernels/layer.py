"""A linear layer's part of the step, as one function that writes over the state.

With inputs a (B, I), output gradients delta (B, O) and those of the Fisher statistics delta~, the
update of a layer's weights needs nothing but

    G = delta^T a / B,    (delta~^2)^T a^2 / B,    (delta~^2)^T a / B,

the layer's own state and its noise. ``LayerTask`` holds what is fixed along a run,
``LayerState`` the buffers, and ``LayerInputs`` what one step brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from natural_langevin._internal.chains import Batch, Params, number_or_chains
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Kind as StepKind
from natural_langevin.execution.stepping import StepData
from natural_langevin.preconditioners import (
    DiagonalFisher,
    Euclidean,
    Preconditioner,
    QuasiDiagonalFisher,
    RMSProp,
)
from natural_langevin.priors import Flat, Gaussian, Prior
from natural_langevin.statistics import DeferredCall, Evaluation

Kind = Literal["euclidean", "rmsprop", "diagonal", "quasi-diagonal"]

KINDS: dict[type[Preconditioner], Kind] = {
    Euclidean: "euclidean",
    RMSProp: "rmsprop",
    DiagonalFisher: "diagonal",
    QuasiDiagonalFisher: "quasi-diagonal",
}
#: The kernels' own numbers for them.
KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS.values())}
#: From so many chains on a GPU's kernels have the tiles that were chosen for many.
MANY_FROM = 8


class Given(NamedTuple):
    """Gradient and statistics of a weight and its bias that somebody else has formed, contiguous;
    None where there is none."""

    gradient: Tensor | None = None
    second: Tensor | None = None
    cross: Tensor | None = None
    bias_gradient: Tensor | None = None
    bias_second: Tensor | None = None


class LayerCall(NamedTuple):
    """Of a linear layer, whose sums over the batch a backend forms: inputs and output gradients,
    (chain, B, features).

    Statistics are sums of products of ``scale`` delta (of ``scale`` fisher, where that is not
    None), the gradient is ``share`` times the sum of ``scale`` delta a^T, or the one ``given``."""

    a: Tensor
    delta: Tensor
    fisher: Tensor | None
    scale: float
    share: float
    given: Given = Given()


class LayerInputs(NamedTuple):
    """What changes from step to step, besides the layer's call."""

    numbers: Tensor  # (chain, 7): eta, sqrt(2 h eta T / N), gamma, mu, 1 / N, keep, kept momentum
    keys: Tensor  # (chain, 2) int32: the noise streams at this step
    adapts: bool  # whether gamma > 0: otherwise the metric is read alone
    fresh: bool  # whether the metric is applied as this batch has changed it


class LayerState(NamedTuple):
    """The buffers of one layer, (chain, O, I) and (chain, O); None where there is none. Of a layer
    whose gradient is given, I may be many axes or none."""

    weight: Tensor
    weight_mean: Tensor | None
    weight_second: Tensor | None
    cross: Tensor | None
    bias: Tensor | None
    bias_mean: Tensor | None
    bias_second: Tensor | None
    momentum: Tensor | None = None
    bias_momentum: Tensor | None = None


def parameter_names(layer: str) -> tuple[str, str]:
    """Full names of a layer's weight and bias; the network itself, as a layer, is ""."""
    prefix = f"{layer}." if layer else ""
    return prefix + "weight", prefix + "bias"


@dataclass(frozen=True)
class LayerTask:
    """One layer: its names, metric, prior and place in the noise stream."""

    name: str  # of the layer, or of the parameter whose gradient is given
    kind: Kind
    parameters: tuple[str, ...]  # the weight's name and, if it has one, the bias's
    damping: Tensor  # (chain, 2): epsilon of the weight, and of the bias
    weight_start: int
    bias_start: int
    prior: Tensor  # (chain, 4): the weight's 1 / (beta variance) and mean, the bias's
    scheme: int  # of the momentum: see ``dynamics.base.KernelUpdate``
    given: bool = False  # whether gradient and statistics are formed by others
    #: (chain, O, I): 1 / (beta variance) of every weight, where a Gaussian has one for each.
    each: Tensor | None = None
    #: Priors that are no Gaussian, by parameter: their pull is part of a gradient that is given.
    others: dict[str, Prior] = field(default_factory=dict)
    #: A backend's own.
    scratch: dict[Any, Any] = field(default_factory=dict, compare=False)

    @property
    def has_bias(self) -> bool:
        """Whether the weight's units have a bias."""
        return len(self.parameters) == 2

    def found(self, evaluation: Evaluation, params: Params, count: float | Tensor) -> Given:
        """What ``evaluation`` says of a layer whose gradient is given; ``count``: beta N."""
        weight, bias = self.parameters[0], self.parameters[-1] if self.has_bias else ""
        pulls = {
            n: one.gradient(params[n]) / number_or_chains(count, params[n])
            for n, one in self.others.items()
        }
        gradient = evaluation.gradient | {n: evaluation.gradient[n] - p for n, p in pulls.items()}
        second, cross = evaluation.statistics.second, evaluation.statistics.cross
        pieces = (
            gradient[weight], second.get(weight), cross.get(bias, {}).get(weight),
            gradient.get(bias), second.get(bias),
        )  # fmt: skip
        return Given(*(None if p is None else p.contiguous() for p in pieces))

    def state(self, state: State) -> LayerState:
        """This layer's buffers in ``state``."""
        weight, bias = self.parameters[0], self.parameters[-1] if self.has_bias else ""
        second = squares_in(state)
        row = state.metric.get("cross", {}).get(bias, {})
        momentum = getattr(state.own, "momentum", {})
        return LayerState(
            weight=state.params[weight],
            weight_mean=state.mean.get(weight),
            weight_second=second.get(weight),
            cross=row.get(weight),
            bias=state.params.get(bias),
            bias_mean=state.mean.get(bias),
            bias_second=second.get(bias),
            momentum=momentum.get(weight),
            bias_momentum=momentum.get(bias),
        )


def squares_in(state: State) -> Params:
    """J's diagonal, by parameter: none where the metric has none."""
    found: Params = state.metric.get("second", state.metric.get("square", {}))
    return found


#: A layer, its buffers, and its arranged call or what is ``Given``.
LayerWork = tuple[LayerTask, LayerState, Any]


def prior_numbers(prior: Prior, power: Tensor) -> Tensor | None:
    """(chain, 2): 1 / (beta variance) and mean, or None for a prior that is no Gaussian, or has a
    mean of its own for every weight. ``power``: beta, (chain,)."""
    chains, device = len(power), power.device
    if isinstance(prior, Flat):
        return torch.zeros(chains, 2, device=device)
    if not isinstance(prior, Gaussian) or torch.as_tensor(prior.mean).ndim > 1:
        return None
    precision = 1 / (power * chain_column(prior.variance, chains, device))
    return torch.stack([precision, chain_column(prior.mean, chains, device)], dim=1)


def chain_column(value: float | Tensor, chains: int, device: torch.device) -> Tensor:
    """A number, or one per chain, as float32 of every chain: (chain,)."""
    return torch.as_tensor(value, dtype=torch.float32, device=device).expand(chains)


class Begun(NamedTuple):
    """What a step needs: its minibatch with a chain axis, and what the layer kernels read."""

    batch: Batch
    numbers: Tensor
    keys: Tensor


class Books(Protocol):
    """What a step does beside its network, in few launches (see ``triton_step``)."""

    def begin(
        self, dynamics: LangevinDynamics, data: StepData, state: State, kind: StepKind
    ) -> Begun:
        """The batch, ``LayerInputs.numbers`` but for whether chains go on, and the keys."""

    def end(self, state: State, losses: Tensor) -> Info:
        """Sums the parts of losses, (chain, part), writes which chains go on, and counts."""

    @property
    def keep(self) -> Tensor:
        """Which chains go on: (chain,) bool, after ``end``."""


class BooksKind(Protocol):
    """The class of such books."""

    def __call__(self, dynamics: LangevinDynamics, data: StepData, state: State) -> Books:
        """The books of a run."""

    def serves(self, dynamics: LangevinDynamics, data: StepData, state: State) -> bool:
        """Whether data and rates lie as the kernels read them."""


#: A network's passes: state and batch -> losses (chain, part), and every layer's call.
Passes = Callable[[State, Batch], tuple[Tensor, dict[str, Any]]]


class Backend(NamedTuple):
    """Who forms the products and applies them."""

    name: str
    #: Writes the new states of these layers over the old ones.
    update_: Callable[[Sequence[LayerWork], LayerInputs], None]
    #: The layer's call as ``update_`` wants it, with or without what statistics need; part of the
    #: compiled function.
    arrange: Callable[[LayerTask, DeferredCall, bool], Any]
    #: Whether ``update_`` knows ``LayerTask.each``.
    takes_each: bool = False
    #: What a step does beside its network; None: by tensors.
    bookkeeping: BooksKind | None = None
    #: Compiles what a run needs, before it does; None: nothing is to be compiled.
    build: Callable[..., None] | None = None
    #: A network's passes in few launches (see ``triton_perceptron``), or None for this one; None:
    #: by torch's operations.
    network: (
        Callable[[LangevinDynamics, StepData, State, list[LayerTask]], Passes | None] | None
    ) = None
