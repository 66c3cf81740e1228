"""Metropolis-adjusted natural Langevin, and its form with several leapfrog steps (HMC).

With the scaling of ``frame``, all N data in every batch, C = A A^T frozen, and the energy

    U(theta) = (N loss(theta) - ln alpha(theta)) / T,        pi ~ exp(-U)

a trajectory draws p ~ N(0, Id) and takes ``steps`` leapfrog steps

    p <- p - sqrt(eta N / (2 T)) A^T v,  theta <- theta + sqrt(2 eta T / N) A p,  p <- (as before)

It ends in the point reached with probability min(1, exp(-change of U + |p|^2 / 2)), and otherwise
at its starting point: step size and metric cause no bias. ``steps=1`` proposes exactly Algorithm
1's step (MALA, Roberts & Tweedie 1996; preconditioned: Girolami & Calderhead 2011); more are HMC
(Neal 2011), whose step size varies by a factor of up to e^(+-0.2) from trajectory to trajectory, so
that none is periodic. Where C is the posterior's own scale, a trajectory is an arc of about steps
sqrt(2 eta) on a circle: a quarter of it is best, half of it only mirrors.

A step of the sampler is one leapfrog step, hence one gradient: ``state.params`` is the chain, which
moves when a trajectory ends, at every ``steps``-th step; ``state.own`` holds the trajectory. Before
its end that is plain leapfrog steps in one metric, which whoever has a quick way for them may take
(``Adjusted.free``, ``Adjusted.caught``): with r = sqrt(2 eta T / N) A p

    r <- r - 2 eta C v,    theta <- theta + r.

In the first ``burn_in`` steps of a run eta is tuned, every chain its own: by a factor f on the
given step size, after trajectory k

    ln f <- ln f + k^{-0.6} (acceptance probability - target_acceptance)  (Robbins & Monro 1951)

and in the first half of these steps the metric adapts to the points that the chain moves to. Both
are frozen afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin import random, schedules
from natural_langevin._internal.chains import Params, average, dot, per_chain
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Conditions, Integrator, LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.dynamics.underdamped import Momentum, Scheme, Underdamped
from natural_langevin.preconditioners import Factor, Preconditioner
from natural_langevin.statistics import Evaluation

#: The best rates of MALA and HMC in many dimensions (Roberts & Rosenthal 1998, Beskos et al. 2013).
BEST_OF_ONE, BEST_OF_SEVERAL = 0.574, 0.651
#: The gain of the tuning falls with this power of the number of trajectories.
POWER = 0.6
#: The part of burn-in in which the metric adapts.
ADAPTS = 0.5
#: ln of the largest change of a trajectory's step size.
JITTER = 0.2


class Trajectory(NamedTuple):
    """The current trajectory, and loss and gradient at the chain's point: (chain, ...) each."""

    proposal: Params  # the point reached, where the next gradient is taken
    momentum: Params  # p, half a kick ahead of it
    gradient: Params  # v at the chain's own point
    energy: Tensor  # U there
    loss: Tensor  # and the mean log-loss
    hamiltonian: Tensor  # U + |p|^2 / 2 at the trajectory's beginning
    step_size: Tensor  # eta of this trajectory
    factor: Tensor  # f
    accepted: Tensor  # sum of acceptance probabilities since the tuning ended
    trajectories: Tensor  # and of how many


@dataclass(frozen=True)
class Adjusted(Integrator):
    """Metropolis-adjusted natural Langevin; ``steps`` leapfrog steps make a trajectory.

    ``target_acceptance``: the acceptance rate that the step size is tuned for; None: 0.574 for one
    step, 0.651 for several.

    >>> Adjusted(steps=10).target
    0.651
    """

    steps: int = 1
    target_acceptance: float | None = None

    tunes = True
    compares_energies = True
    needs_temperature = True

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(
                f"steps must be a whole number from 1 on, got {self.steps!r}: it counts the "
                "leapfrog steps of a trajectory"
            )
        target = self.target_acceptance
        if target is not None and (isinstance(target, bool) or not 0 < target < 1):
            raise ValueError(
                f"target_acceptance must be between 0 and 1, got {target!r}: None is the best rate "
                "in many dimensions"
            )

    @property
    def trajectory(self) -> int:
        return self.steps

    def adaptation(self, metric: Preconditioner, burn_in: float) -> schedules.Schedule:
        """At the ends of trajectories, in the first half of burn-in: a step size that is tuned
        while the metric follows the chain is too large for one that stands still."""
        return metric.ema_schedule(ADAPTS * burn_in, self.steps)

    @property
    def target(self) -> float:
        """The acceptance probability that eta is tuned for."""
        if self.target_acceptance is not None:
            return self.target_acceptance
        return BEST_OF_ONE if self.steps == 1 else BEST_OF_SEVERAL

    def check(self, on: LangevinDynamics, run: Conditions) -> None:
        name = type(self).__name__
        if run.batch_size != run.num_data:
            raise ValueError(
                f"{name} compares energies of all data: every batch must hold all "
                f"{run.num_data:g} of them, got {run.batch_size}. Give "
                f"batch_size={run.num_data:g}, or use an unadjusted sampler, such as "
                "dynamics.Underdamped()"
            )
        if run.adapts:
            raise ValueError(
                f"{name} needs a frozen metric: give burn_in, "
                f'and adapt="burn-in" (got {on.preconditioner!r})'
            )
        if not bool((on.temperature > 0).all()):
            raise ValueError(
                f"{name} needs a temperature above 0, got {on.temperature.tolist()}: there is "
                "nothing to accept at 0, where dynamics.Overdamped() is gradient descent"
            )
        on.gradients.likelihood.refuse_learning(name)

    def init(self, params: Params) -> Trajectory:
        first = next(iter(params.values()))
        zero = first.new_zeros(len(first))
        energy, hamiltonian = zero.double(), zero.double()  # see ``LangevinDynamics.energy``
        return Trajectory(
            proposal={k: p.clone() for k, p in params.items()},
            momentum={k: torch.zeros_like(p) for k, p in params.items()},
            gradient={k: torch.zeros_like(p) for k, p in params.items()},
            energy=energy,
            loss=zero.clone(),
            hamiltonian=hamiltonian,
            step_size=zero,
            factor=zero + 1,
            accepted=zero.clone(),
            trajectories=zero.clone(),
        )

    def before(
        self, on: LangevinDynamics, state: State, rates: Rates, num_data: float | Tensor
    ) -> State:
        """The state at the proposal; ``update`` restores the chain's point."""
        own = state.own._replace(proposal=state.params)
        return state._replace(params=state.own.proposal, own=own)

    def judged(self, state: State, loss: Tensor) -> Tensor:
        """The loss at the start: a proposal without a finite loss is rejected, so only the start
        needs one."""
        return torch.where(state.step == 0, loss, torch.zeros_like(loss))

    def reported(self, state: State, loss: Tensor) -> Tensor:
        """Where the chain stands: a proposal may be thrown anywhere, and is rejected."""
        found: Tensor = state.own.loss
        return found

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        here, own, tau = state.params, state.own, on.temperature
        count = on.weight(num_data)
        v = on.posterior_gradient(here, evaluation.gradient, num_data)
        energy = on.energy(here, evaluation.loss, num_data) / tau
        C = on.factor(state.metric, here, num_data)

        # The second half of the kick, and the decision where this ends a trajectory.
        p = _kicked(own.momentum, C.transpose(v), (own.step_size * count / (2 * tau)).sqrt())
        first, ends = state.step == 0, state.step % self.steps == 0
        gain = own.hamiltonian - energy - _kinetic(p)
        key = random.stream(on.noise, state.step)
        uniform = torch.special.ndtr(random.normal(key, 2, start=on.stream_length)).to(gain.dtype)
        accept = ends & (first | (uniform[:, 0].log() < gain))  # false where it is not a number
        theta = _choose(accept, here, own.proposal)
        gradient = _choose(accept, v, own.gradient)
        known = torch.where(accept, energy, own.energy)
        metric, after = state.metric, C
        if rates.kind.adapts:
            seen, _ = on.metric(state, evaluation, rates, num_data)
            metric = pytree.tree_map(lambda a, b: _where(accept, a, b), seen, metric)
            after = on.factor(metric, here, num_data)

        # Half a kick, of a new trajectory or of this one, and the way to the next point.
        done = ends & ~first
        own = self._counted(own, gain, done, state.step, tunes=rates.kind.tunes)
        eta = rates.step_size * own.factor
        if self.steps > 1:
            eta = eta * torch.exp(JITTER * (2 * uniform[:, 1] - 1)).to(eta.dtype)
        eta = torch.where(ends, eta, own.step_size)
        z = on.standard_normal(here, state.step)
        ends = ends.expand_as(accept)
        start = torch.where(ends, known + _kinetic(z), own.hamiltonian)
        p = _kicked(
            _choose(ends, z, p),
            after.transpose(_choose(ends, gradient, v)),
            (eta * count / (2 * tau)).sqrt(),
        )
        way, scale = after.forward(p), (2 * eta * tau / count).sqrt()
        there = {k: x + per_chain(scale, x) * way[k] for k, x in _choose(ends, theta, here).items()}
        return state._replace(
            step=state.step + 1,
            params=theta,
            mean={k: average(state.mean[k], theta[k], rates.mean) for k in state.mean},
            metric=metric,
            own=own._replace(
                proposal=there, momentum=p, gradient=gradient, energy=known,
                loss=torch.where(accept, evaluation.loss.to(own.loss), own.loss),
                hamiltonian=start, step_size=eta,
            ),
        )  # fmt: skip

    def _counted(
        self, own: Trajectory, gain: Tensor, done: Tensor, step: Tensor, *, tunes: bool
    ) -> Trajectory:
        """The trajectory's acceptance probability changes f during tuning, and is counted
        afterwards."""
        probability = torch.where(gain.isnan(), 0.0, gain.clamp(max=0).exp())
        probability = probability.to(own.factor.dtype)
        if tunes:
            rate = (step // self.steps).clamp_min(1).to(probability.dtype) ** -POWER
            moved = own.factor * torch.exp(rate * (probability - self.target))
            return own._replace(factor=torch.where(done, moved, own.factor))
        return own._replace(
            accepted=own.accepted + done * probability,
            trajectories=own.trajectories + done,
        )

    def inside(self, step: int) -> int:
        """How many steps from this one on lie between the ends of a trajectory.

        >>> [Adjusted(steps=3).inside(step) for step in range(4)]
        [0, 2, 1, 0]
        """
        return -step % self.steps

    def free(self, on: LangevinDynamics, state: State, metric: Factor, num_data: float) -> State:
        """The trajectory alone, as ``Leapfrog`` moves it."""
        own = state.own
        way, scale = metric.forward(own.momentum), self._scale(on, own, num_data)
        r = {k: per_chain(scale, x) * x for k, x in way.items()}
        return state._replace(params=own.proposal, mean={}, own=Momentum(r))

    def caught(
        self,
        on: LangevinDynamics,
        state: State,
        moved: State,
        metric: Factor,
        num_data: float,
        mean: Tensor,
    ) -> State:
        """``state`` after the steps that ``moved`` has taken; ``mean``: by how much the running
        mean has come nearer in them to where the chain stands."""
        own, scale = state.own, self._scale(on, state.own, num_data)
        assert metric.inverse is not None
        p = metric.inverse({k: r / per_chain(scale, r) for k, r in moved.own.momentum.items()})
        return state._replace(
            step=moved.step.clone(),
            mean={k: average(m, state.params[k], mean) for k, m in state.mean.items()},
            own=own._replace(proposal={k: v.clone() for k, v in moved.params.items()}, momentum=p),
        )

    def _scale(self, on: LangevinDynamics, own: Trajectory, num_data: float) -> Tensor:
        return (2 * own.step_size * on.temperature / on.weight(num_data)).sqrt()

    def report(self, state: State) -> dict[str, Tensor]:
        """The acceptance rate after tuning and the tuned eta, of every chain."""
        own = state.own
        return {
            "acceptance": (own.accepted / own.trajectories.clamp_min(1)),
            "step_size_factor": own.factor,
        }


@dataclass(frozen=True)
class Leapfrog(Underdamped):
    """A trajectory between its ends, which is BAOAB without friction and so without noise."""

    friction: float = 0.0
    integrator: Scheme = "baoab"

    def __post_init__(self) -> None:
        """Without friction, which nobody else may be."""

    @property
    def kernels(self) -> frozenset[str]:
        return frozenset({"mlp"})


def _kinetic(p: Params) -> Tensor:
    """|p|^2 / 2 of every chain, in float64."""
    wide = {k: x.double() for k, x in p.items()}
    return dot(wide, wide) / 2


def _kicked(p: Params, force: Params, scale: Tensor) -> Params:
    """p - scale A^T v."""
    return {k: x - per_chain(scale, x) * force[k] for k, x in p.items()}


def _where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(mask.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)


def _choose(mask: Tensor, yes: Params, no: Params) -> Params:
    """By chain."""
    return {k: _where(mask, x, no[k]) for k, x in yes.items()}
