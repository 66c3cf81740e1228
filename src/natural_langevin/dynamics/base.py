"""What dynamics are: a state, and a step that moves it.

``Dynamics`` is all that engine, experiments and diagnostics know of whatever they run. Its Langevin
samplers share one frame (``frame.LangevinDynamics``: gradients, metric, noise, chains that stop)
and differ in their ``Integrator``, of which there is one per file. An integrator is what a user
gives to ``Langevin(dynamics=...)``: options and equations, nothing of a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.dynamics.rates import Rates
from natural_langevin.statistics import Evaluation
from natural_langevin.types import Batch, Params

if TYPE_CHECKING:
    from natural_langevin.dynamics.frame import LangevinDynamics


class State(NamedTuple):
    """What the next step needs: a plain tree of tensors, parameters as (chain, *shape)."""

    step: Tensor  # () int64: updates done so far
    params: Params  # theta
    mean: Params  # running average of theta with rate mu_t; {} where none is kept
    metric: dict[str, Any]  # the preconditioner's J
    likelihood: dict[str, Tensor]  # what the likelihood learns, (chain,) each
    diverged: Tensor  # (chain,) int64: the update whose result had a non-finite loss, or -1
    own: Any = ()  # what the integrator itself carries on: a NamedTuple of its file
    anchor: Any = ()  # where gradients are compared with all data's (``control_variates.Anchor``)
    swaps: Any = ()  # how often chains have swapped (``sampling.exchange.Swaps``)

    @property
    def chains(self) -> int:
        """How many chains there are."""
        return len(self.diverged)


#: The fields with a chain axis: what a stopped chain keeps.
CHAINWISE = ("params", "mean", "metric", "likelihood", "own")


class Info(NamedTuple):
    """What a reader wants to know of a step."""

    loss: Tensor  # (chain,) mean log-loss of the minibatch, before the update
    diverged: Tensor  # (chain,) bool


class Conditions(NamedTuple):
    """What an integrator is told of a run."""

    step_size: Tensor  # (chain,) the largest eta after burn-in
    batch_size: int
    num_data: float
    adapts: bool  # whether the metric goes on adapting after burn-in


class KernelUpdate(NamedTuple):
    """An integrator's update, as kernels are told of it."""

    share: float = 1.0  # h of the noise sqrt(2 h eta T / N) C^{1/2} xi
    kept: float = 0.0  # the share of the momentum, ``own.momentum``, that a step keeps
    scheme: int = 0  # 0 has no momentum, 1 is Euler's scheme, 2 BAOAB (see ``underdamped``)


class Dynamics(Protocol):
    """Whatever moves a state by steps, as pure functions of their arguments."""

    def init(self, params: Params) -> State:
        """The state before the first update, from starting points (chain, *shape)."""

    def step(
        self,
        state: State,
        batch: Batch,
        rates: Rates,
        num_data: float | Tensor,
        *,
        chain_axis: bool = False,
    ) -> tuple[State, Info]:
        """One update of all chains. A batch is shared by them unless it has a ``chain_axis``."""

    def prepare(self, params: Params, x: Tensor) -> None:
        """Learns what must be known of a batch like ``x`` (no chain axis). Idempotent."""

    @property
    def kernels(self) -> frozenset[str]:
        """Which hand-written kernels compute exactly this update (see ``execution.kernels``)."""


class Integrator:
    """How a Langevin sampler moves, given gradients and metric. A subclass is one file.

    ``on`` is the frame, which knows prior, metric, temperature and noise."""

    def init(self, params: Params) -> Any:
        """What the integrator carries from step to step, beside theta; by default nothing."""
        return ()

    #: Whether the step size is tuned in the first ``burn_in`` steps, where ``rates.kind.tunes``.
    tunes: bool = False
    #: Whether it takes differences of energies, for which losses are averaged in float64.
    compares_energies: bool = False
    #: Whether it moves at temperatures above 0 alone: it has no exploration stages.
    needs_temperature: bool = False
    #: Whether a step size near that of the prior alone widens the law (see ``largest_step``).
    overshoots: bool = False

    def check(self, on: LangevinDynamics, run: Conditions) -> None:
        """Refuses, or warns of, a run that this integrator cannot do, before its first step."""

    def before(
        self, on: LangevinDynamics, state: State, rates: Rates, num_data: float | Tensor
    ) -> State:
        """The state at which the gradient is evaluated; by default where the last step ended."""
        return state

    def judged(self, state: State, loss: Tensor) -> Tensor:
        """The loss that must be finite for a chain to go on: (chain,)."""
        return loss

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        """The state after the step, from what a minibatch says at ``before``."""
        raise NotImplementedError

    def relocated(
        self,
        on: LangevinDynamics,
        state: State,
        change: Callable[[], Params],
        rates: Rates,
        num_data: float | Tensor,
    ) -> Any:
        """``state.own`` where somebody has put chains elsewhere between two steps, with ``change``
        in v: what is carried on must go with the new theta as it went with the old one."""
        return state.own

    def innovation(self, old: State, new: State) -> tuple[Params, float] | None:
        """What a step added: Delta = -eta C v + sqrt(2 h eta T / N) C^{1/2} xi, and the share h.

        For the diagnosis of the noise (``diagnostics.kinetic``); None where there is no such."""
        return None

    @property
    def cold_epochs(self) -> str:
        """What is wrong, and what to do, where minibatches are parts of one shuffled epoch and not
        independent; "" where nothing is."""
        return ""

    def report(self, state: State) -> dict[str, Tensor]:
        """What a reader of a finished run wants to know (``posterior.config``): (chain,) each."""
        return {}

    @property
    def kernel_update(self) -> KernelUpdate:
        """What the kernels "linear" and "mlp" on a GPU are told."""
        return KernelUpdate()

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the kernels that compute exactly ``update``. A subclass that says nothing has
        none, whatever the class above it says."""
        return frozenset()


def kernels_of(integrator: Integrator) -> frozenset[str]:
    """Those that an integrator's own class names: an inherited answer is about other equations."""
    return integrator.kernels if "kernels" in vars(type(integrator)) else frozenset()


def still_running(state: State, loss: Tensor) -> Tensor:
    """Chains that take this step: (chain,) bool. A chain whose loss is not finite stands still.

    Not finite as a float32, whatever the model's dtype: an exploding chain in float64 would go on
    to 1e154 and be called healthy on the way. The loss at theta is the one number that every
    parameter reaches, and it is known before the update, so that stopping a chain costs no second
    pass over the parameters."""
    return (state.diverged < 0) & (loss.float().abs() < math.inf)


def note_diverged(state: State, keep: Tensor) -> Tensor:
    """``state.diverged`` with the chains that stop at this step."""
    return torch.where((state.diverged < 0) & ~keep, state.step, state.diverged)


def select(keep: Tensor, new: State, old: State, diverged: Tensor) -> State:
    """``new`` where ``keep``, elsewhere ``old``, chain by chain; the step counts in any case."""
    if _at_hand(keep) and bool(keep.all()):
        return new._replace(diverged=diverged)

    def choose(after: Tensor, before: Tensor) -> Tensor:
        return torch.where(keep.reshape(-1, *(1,) * (after.ndim - 1)), after, before)

    kept = {
        name: pytree.tree_map(choose, getattr(new, name), getattr(old, name)) for name in CHAINWISE
    }
    return new._replace(diverged=diverged, **kept)


def _at_hand(value: Tensor) -> bool:
    """Whether looking at a value makes nobody wait and is part of no compiled code."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()
