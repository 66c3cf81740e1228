"""``LangevinDynamics``, the common part of all samplers, and ``Integrator``, the part that differs.

Samplers share this frame (gradients, metric, noise, divergence checks) and differ in their
``Integrator``, one per file. An integrator is the value of ``Langevin(dynamics=...)``: options and
equations, independent of the network.

Target: pi(theta) ~ [alpha(theta) prod_n p_theta(y_n | x_n)^beta]^(1/T). With N data, the minibatch
*mean* loss gradient g, prior density alpha, step size eta and temperature T, dynamics are made of

    v = g - (1/N) d ln alpha(theta),     drift -eta C v,     noise sqrt(2 eta T / N) C^{1/2} xi

at beta = 1. A power beta of the likelihood makes N data count as beta N: beta N replaces N in both,
in the damping and in the energy.

eta is on SGD's scale. T = 1 is the Bayesian posterior; T = 0 is preconditioned gradient descent.
The metric is updated from likelihood gradients only: it never contains the prior or the noise,

    J_{t+1} = (1 - gamma_t) J_t + gamma_t (statistics of the batch),

and where gamma_t = 0 no statistics are computed. By default (``fresh=False``) a step applies J_t,
which is independent of its batch; the very first has none and applies J_1. ``fresh=True`` applies
J_{t+1}, the paper's order, in which C and g share a batch and E[C g] is not E[C] E[g].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin import random, schedules
from natural_langevin._internal.chains import Batch, Params, average, number_or_chains
from natural_langevin.dynamics.base import (
    Info,
    State,
    note_diverged,
    select,
    still_running,
)
from natural_langevin.dynamics.control_variates import Anchor, corrected
from natural_langevin.dynamics.rates import Kind, Rates
from natural_langevin.preconditioners import (
    Damping,
    Factor,
    Metric,
    Preconditioner,
    resolve_damping,
)
from natural_langevin.priors import Prior
from natural_langevin.statistics import Evaluation, Gradients, Recordings

EVERY_BATCH = Kind()
#: Normals that are made ahead, at most.
AHEAD = 1 << 16


class Conditions(NamedTuple):
    """The conditions of a run that an integrator checks."""

    step_size: Tensor  # (chain,) the largest eta after burn-in
    batch_size: int
    num_data: float
    adapts: bool  # whether the metric goes on adapting after burn-in


class KernelUpdate(NamedTuple):
    """Description of an integrator's update for kernels."""

    share: float = 1.0  # h of the noise sqrt(2 h eta T / N) C^{1/2} xi
    kept: float = 0.0  # the share of the momentum, ``own.momentum``, that a step keeps
    scheme: int = 0  # 0 has no momentum, 1 is Euler's scheme, 2 BAOAB (see ``underdamped``)


class Integrator:
    """How a Langevin sampler moves, given gradients and metric. A subclass is one file.

    ``on`` is the frame, which holds prior, metric, temperature and noise."""

    def init(self, params: Params) -> Any:
        """The integrator's own state beside theta; by default none."""
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

    @property
    def trajectory(self) -> int:
        """Steps of a trajectory: others look at a chain where these end."""
        return 1

    def adaptation(self, metric: Preconditioner, burn_in: float) -> schedules.Schedule:
        """gamma of every step."""
        return metric.ema_schedule(burn_in)

    def before(
        self, on: LangevinDynamics, state: State, rates: Rates, num_data: float | Tensor
    ) -> State:
        """The state at which the gradient is evaluated; by default where the last step ended."""
        return state

    def judged(self, state: State, loss: Tensor) -> Tensor:
        """The loss that must be finite for a chain to continue: (chain,)."""
        return loss

    def reported(self, state: State, loss: Tensor) -> Tensor:
        """The loss that others are told of a step, which led to ``state``: (chain,)."""
        return loss

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        """The state after the step, from the minibatch evaluation at ``before``."""
        raise NotImplementedError

    def relocated(
        self,
        on: LangevinDynamics,
        state: State,
        change: Callable[[], Params],
        rates: Rates,
        num_data: float | Tensor,
    ) -> Any:
        """``state.own`` after chains were moved between two steps (such as a swap), with ``change``
        in v: the carried state must be consistent with the new theta."""
        return state.own

    def innovation(self, old: State, new: State) -> tuple[Params, float] | None:
        """The increment of a step: Delta = -eta C v + sqrt(2 h eta T / N) C^{1/2} xi, and the share
        h.

        For the diagnosis of the noise (``diagnostics.kinetic``); None if it is not defined."""
        return None

    @property
    def cold_epochs(self) -> str:
        """A warning with a remedy for minibatches that are parts of one shuffled epoch, not
        independent; "" if there is no problem."""
        return ""

    def report(self, state: State) -> dict[str, Tensor]:
        """Results of a finished run for ``posterior.config``: (chain,) each."""
        return {}

    @property
    def kernel_update(self) -> KernelUpdate:
        """The description of the update for the GPU kernels "linear" and "mlp"."""
        return KernelUpdate()

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the kernels that compute exactly ``update``. A subclass that does not define it
        has none."""
        return frozenset()


def kernels_of(integrator: Integrator) -> frozenset[str]:
    """The kernels that the integrator's own class names; inherited ones belong to other
    equations."""
    return integrator.kernels if "kernels" in vars(type(integrator)) else frozenset()


@dataclass(frozen=True, eq=False)
class LangevinDynamics:
    """An integrator with the network, metric, prior and randomness that it moves by."""

    integrator: Integrator
    gradients: Gradients
    preconditioner: Preconditioner
    prior: dict[str, Prior]
    temperature: Tensor  # (chain,)
    noise: Tensor  # (chain,) int64: origin of the chains' noise streams
    labels: Tensor  # (chain,) int64: origin of the streams that draw labels from the model
    keep_mean: bool = True  # whether a running mean of theta is kept
    #: Steps between two anchors of the gradients (``control_variates``); None: plain gradients.
    control_variates: int | None = None
    #: beta, the power of the likelihood: (chain,). None: 1.
    power: Tensor | None = None
    #: Where graphs of one chain's passes are kept, for chains taken in turn; None: not recorded.
    recordings: Recordings | None = None

    #: Where in a chain's noise stream every parameter's draws begin, and where all of them end.
    starts: dict[str, int] = field(init=False)
    stream_length: int = field(init=False)
    #: Where no labels are drawn.
    _no_key: Tensor = field(init=False, repr=False)
    #: ``normals`` of somebody else (see ``execution.traced``).
    given: Callable[[Tensor, int], Tensor] | None = None
    #: By draw: the number of a block of steps, and its normals (see ``normals``).
    _made: dict[int, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {name: p.numel() for name, p in self.gradients.network.trainable().items()}
        *starts, end = random.aligned_starts([*sizes.values(), 0])
        object.__setattr__(self, "starts", dict(zip(sizes, starts, strict=True)))
        object.__setattr__(self, "stream_length", end)
        no_key = torch.zeros(len(self.labels), 2, dtype=torch.int32, device=self.labels.device)
        object.__setattr__(self, "_no_key", no_key)

    def init(self, params: Params) -> State:
        """The state before the first update, from starting points (chain, *shape)."""
        first = next(iter(params.values()))
        chains = first.shape[0]
        still = [{k: torch.zeros_like(p) for k, p in params.items()} for _ in range(2)]
        return State(
            step=torch.zeros((), dtype=torch.int64, device=first.device),
            params=params,
            mean={name: p.clone() for name, p in params.items()} if self.keep_mean else {},
            metric=self.preconditioner.init(params, self.gradients.network.units()),
            likelihood=self.gradients.likelihood.init(
                chains, dtype=first.dtype, device=first.device
            ),
            diverged=torch.full((chains,), -1, dtype=torch.int64, device=first.device),
            own=self.integrator.init(params),
            anchor=Anchor(*still) if self.control_variates else (),
        )

    def step(
        self,
        state: State,
        batch: Batch,
        rates: Rates,
        num_data: float | Tensor,
        *,
        chain_axis: bool = False,
    ) -> tuple[State, Info]:
        """One update of all chains."""
        new, loss = self.moved(state, batch, rates, num_data, chain_axis=chain_axis)
        return self.settled(state, new, loss)

    def moved(
        self,
        state: State,
        batch: Batch,
        rates: Rates,
        num_data: float | Tensor,
        *,
        chain_axis: bool = False,
    ) -> tuple[State, Tensor]:
        """The new state of every chain, and the loss before the step: (chain,)."""
        here = self.integrator.before(self, state, rates, num_data)
        # "forward x through the network, compute loss; backpropagate: g <- average of gradients"
        evaluation = self.evaluate(here, batch, rates.kind, chain_axis=chain_axis)
        new = self.integrator.update(self, here, evaluation, rates, num_data)
        return new, evaluation.loss

    def settled(self, state: State, new: State, loss: Tensor) -> tuple[State, Info]:
        """``new`` for the chains that continue, ``state`` for those that have diverged."""
        keep = still_running(state, self.integrator.judged(state, loss))
        diverged = note_diverged(state, keep)
        told = self.integrator.reported(new, loss)
        return select(keep, new, state, diverged), Info(told, diverged >= 0)

    def evaluate(
        self,
        state: State,
        batch: Batch,
        kind: Kind = EVERY_BATCH,
        *,
        chain_axis: bool,
        deferred: tuple[str, ...] = (),
    ) -> Evaluation:
        """Loss and gradients at theta, and statistics if the metric needs them; for the layers
        ``deferred``, their raw calls."""
        draws = kind.adapts and self.gradients.targets == "model"
        found = self.gradients(
            state.params,
            state.likelihood,
            batch,
            chain_axis=chain_axis,
            key=random.stream(self.labels, state.step) if draws else self._no_key,
            step=state.step,
            deferred=deferred,
            statistics=kind.adapts,
            basis=self.preconditioner.basis(state.metric) if kind.adapts else {},
            loss_dtype=torch.float64 if self.integrator.compares_energies else None,
            recordings=self.recordings,
        )
        found.size = batch[0].shape[1 if chain_axis else 0]
        if not state.anchor:
            return found
        there = self.gradient(state, state.anchor.params, batch, chain_axis=chain_axis)
        return corrected(found, there, state.anchor)

    def gradient(self, state: State, params: Params, batch: Batch, *, chain_axis: bool) -> Params:
        """The batch's mean loss gradient at ``params``, and nothing else."""
        return self.gradients(
            params, state.likelihood, batch,
            chain_axis=chain_axis, key=self._no_key, step=state.step, statistics=False,
            recordings=self.recordings,
        ).gradient  # fmt: skip

    def prepare(self, params: Params, x: Tensor) -> None:
        """Traces the network on a batch like ``x``. Idempotent."""
        self.gradients.prepare(params, x)

    @property
    def kernels(self) -> frozenset[str]:
        """The integrator's kernels. A subclass of this frame has none, and no kernel computes two
        gradients."""
        plain = type(self) is LangevinDynamics and not self.control_variates
        return kernels_of(self.integrator) if plain else frozenset()

    # What integrators are made of -----------------------------------------------------------------

    def weight(self, num_data: float | Tensor) -> float | Tensor:
        """beta N, the effective number of data: (chain,) if the likelihood has a power."""
        return num_data if self.power is None else num_data * self.power

    def posterior_gradient(self, theta: Params, g: Params, num_data: float | Tensor) -> Params:
        """v = g - 1 / (beta N) d ln alpha(theta)."""
        count = self.weight(num_data)
        return {
            k: g[k] - self.prior[k].gradient(p) / number_or_chains(count, p)
            for k, p in theta.items()
        }

    def log_prior(self, theta: Params) -> Tensor:
        """ln alpha(theta): (chain,), float64."""
        return torch.stack([self.prior[k].log_density(p.double()) for k, p in theta.items()]).sum(0)

    def energy(self, theta: Params, loss: Tensor, num_data: float | Tensor) -> Tensor:
        """E = beta N loss - ln alpha(theta), which the chain samples as exp(-E / T): (chain,),
        float64.

        Comparing two of them needs their difference, of order 1, while E grows with N and the
        number of weights: the precision of float32 is 1e-5 for 100 nats and .01 for 100,000."""
        return self.weight(num_data) * loss.double() - self.log_prior(theta)

    def metric(
        self, state: State, evaluation: Evaluation, rates: Rates, num_data: float | Tensor
    ) -> tuple[Metric, Factor]:
        """J_{t+1}, and the factor of the C that this step applies."""
        new = state.metric
        if rates.kind.adapts:
            g = evaluation.minibatch_gradient or evaluation.gradient
            new = self.preconditioner.update(state.metric, g, evaluation.statistics, rates.decay)
        if rates.kind.refreshes:
            new = self.preconditioner.refreshed(new, first=rates.kind.first)
        used = new if self.fresh(rates.kind) else state.metric
        return new, self.factor(used, state.params, num_data)

    def fresh(self, kind: Kind) -> bool:
        """Whether such a step applies the metric that already includes its own batch."""
        return kind.first or self.preconditioner.counts_own_batch(settles=kind.settles)

    def factor(self, metric: Metric, names: Iterable[str], num_data: float | Tensor) -> Factor:
        """A with C = A A^T for these parameters, damped."""
        return self.preconditioner.factor(metric, self.damping(names, num_data))

    def damping(self, names: Iterable[str], num_data: float | Tensor) -> Damping:
        """epsilon of these parameters, for drift and noise alike."""
        own = {k: self.prior[k] for k in names}
        discrete = self.gradients.likelihood.discrete
        return resolve_damping(self.preconditioner, own, self.weight(num_data), discrete=discrete)

    def noise_scale(self, rates: Rates, num_data: float | Tensor, share: float = 1.0) -> Tensor:
        """sqrt(2 eta T / (beta N)), with ``share`` under the root: (chain,)."""
        tau = self.temperature_at(rates.kind)
        return torch.sqrt(2 * share * rates.step_size * tau / self.weight(num_data))

    def temperature_at(self, kind: Kind) -> Tensor:
        """T of every chain at such a step: 0 where it explores (``schedules.cyclical``)."""
        return torch.zeros_like(self.temperature) if kind.explores else self.temperature

    def arrived(
        self,
        state: State,
        params: Params,
        metric: Metric,
        evaluation: Evaluation,
        rates: Rates,
        *,
        own: Any = (),
    ) -> State:
        """The state after a step to ``params``; ``own``: the integrator's own state."""
        return state._replace(
            step=state.step + 1,
            params=params,
            # "update posterior mean: theta_mean <- (1 - mu_t) theta_mean + mu_t theta"
            mean={k: average(state.mean[k], params[k], rates.mean) for k in state.mean},
            metric=metric,
            likelihood=evaluation.likelihood,
            own=own,
        )

    def standard_normal(self, like: Params, step: Tensor, draw: int = 0) -> Params:
        """z ~ N(0, Id), addressed by (seed, chain, step, draw, tensor, element).

        One call for all tensors: eager steps cost by the number of operations."""
        if not like:  # kernels make those of their layers themselves
            return {}
        z = self.normals(step, draw)
        found = {}
        for k, p in like.items():
            start, size = self.starts[k], p[0].numel()
            found[k] = z[:, start : start + size].to(p.dtype).reshape(p.shape)
        return found

    def normals(self, step: Tensor, draw: int) -> Tensor:
        """The step's draws for all tensors: (chain, ``stream_length``).

        On the CPU the draws of several steps are made at once, which is faster for small networks;
        they are functions of their address, so the values are the same."""
        if self.given is not None:
            return self.given(step, draw)
        length, first = self.stream_length, draw * self.stream_length
        random.check_addresses(first + length)
        ahead = AHEAD // (len(self.noise) * length)
        if ahead < 2 or step.device.type != "cpu" or torch.compiler.is_compiling():
            return random.normal(random.stream(self.noise, step), length, start=first)
        block, place = divmod(int(step), ahead)
        made = self._made.get(draw)
        if made is None or made[0] != block:
            steps = torch.arange(block * ahead, (block + 1) * ahead)
            keys = random.stream(self.noise[:, None], steps)
            made = self._made[draw] = (block, random.normal(keys, length, start=first))
        return made[1][:, place]
