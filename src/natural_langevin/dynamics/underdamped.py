"""Underdamped natural Langevin: momentum r in the metric (SGHMC of Chen et al. 2014, with a C).

With the scaling of ``frame`` and a = friction in (0, 1]; r is a displacement, the velocity times
the time step sqrt(eta), and in equilibrium r ~ N(0, (eta T / N) C). One step, by integrator:

"euler"  r <- (1 - a) r - eta C v + sqrt(2 a eta T / N) C^{1/2} xi,   theta <- theta + r

    a = 1 *is* Algorithm 1, bit for bit. First order in eta: the variance of a Gaussian target of
    curvature k in the metric comes out too large by a share eta k / (2 (2 - a)).

"baoab"  r <- r - eta C v                                                            B, a full kick
         theta <- theta + r / 2                                                      A
         r <- (1 - a) r + sqrt((1 - (1 - a)^2) eta T / N) C^{1/2} xi                 O
         theta <- theta + r / 2                                                      A

    The positions of BAOAB (Leimkuhler & Matthews 2013): its two half kicks between two positions
    are one full kick. Second order in eta, and exact for Gaussian targets.

"ubu"    U(1/2), kick r <- r - eta C v at the point reached, U(1/2), where U(1/2) solves free motion
         with friction exactly over half a step: with g = -ln(1 - a) and rho = exp(-g / 2),

             theta <- theta + (1 - rho)/g r + n_2,    r <- rho r + n_1,
             Var n_1 = (1 - rho^2),  Cov(n_1, n_2) = (1 - rho)^2 / g,
             Var n_2 = 1/g - (1 - rho)(3 - rho) / g^2        in units of (eta T / N) C.

    Second order in the time step sqrt(eta) with one gradient (Paulin et al. 2024, arXiv
    2410.19780): that variance is too small by a share of about eta k / 6; a < 1. The half step
    before the gradient applies the metric of the previous batches, whatever ``fresh`` is.

The effective overdamped step is eta / a: a smaller friction travels further per gradient.
``correct_heat=True`` ("euler" only) subtracts the minibatch's own noise from the injected noise
(see ``heat``), for eta up to 2 a B T / N.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, per_chain
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Conditions, Integrator, KernelUpdate, LangevinDynamics
from natural_langevin.dynamics.heat import COLD_EPOCHS, refuse_metric, warn_beyond_range
from natural_langevin.dynamics.overdamped import check_flag, increment, noise
from natural_langevin.dynamics.rates import Rates
from natural_langevin.preconditioners import Factor
from natural_langevin.statistics import Evaluation

Scheme = Literal["euler", "baoab", "ubu"]


class Momentum(NamedTuple):
    """r of every parameter: (chain, *shape). Chains start at rest."""

    momentum: Params


@dataclass(frozen=True)
class Underdamped(Integrator):
    """Langevin dynamics with momentum; ``friction`` is a, the share of it that a step forgets.

    >>> Underdamped(friction=0.1)
    Underdamped(friction=0.1, integrator='euler', correct_heat=False)
    """

    friction: float = 0.1
    integrator: Scheme = "euler"
    correct_heat: bool = False

    def __post_init__(self) -> None:
        check_flag(self.correct_heat)
        if self.integrator not in ("euler", "baoab", "ubu"):
            raise ValueError(
                f'integrator must be "euler", "baoab" or "ubu", got {self.integrator!r}'
            )
        if self.correct_heat and self.integrator != "euler":
            raise ValueError(
                f'correct_heat=True goes with integrator="euler", got {self.integrator!r}: the '
                "others do not inject their noise where the minibatch's enters"
            )
        most = "below 1" if self.integrator == "ubu" else "at most 1"
        if not 0 < self.friction <= 1 or (self.integrator == "ubu" and self.friction == 1):
            raise ValueError(
                f"friction must be above 0 and {most} for {self.integrator!r}, got "
                f"{self.friction!r}: it is the share of the momentum that a step forgets, and "
                "dynamics.Overdamped() is the case without any"
            )

    def check(self, on: LangevinDynamics, run: Conditions) -> None:
        if self.correct_heat:
            refuse_metric(on.preconditioner)
            warn_beyond_range(run, on, self.friction)

    def init(self, params: Params) -> Momentum:
        return Momentum({k: torch.zeros_like(p) for k, p in params.items()})

    def before(
        self, on: LangevinDynamics, state: State, rates: Rates, num_data: float | Tensor
    ) -> State:
        """The first half of UBU; the others evaluate the gradient where the last step ended."""
        if self.integrator != "ubu":
            return state
        C = on.factor(state.metric, state.params, num_data)
        return self._free_motion(on, state, C, rates, num_data, draw=0)

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        theta, eta, r, a = state.params, rates.step_size, state.own.momentum, self.friction
        v = on.posterior_gradient(theta, evaluation.gradient, num_data)
        metric, C = on.metric(state, evaluation, rates, num_data)
        drift = C.apply(v)
        if self.integrator == "euler":
            xi, scale = noise(
                on, C, state, evaluation, rates, num_data, share=a, correct=self.correct_heat
            )
            change = {k: increment(drift[k], xi[k], eta, scale) for k in theta}
            r = {k: (1 - a) * r[k] + change[k] for k in theta}
            moved = {k: theta[k] + r[k] for k in theta}
        else:
            r = {k: r[k] - per_chain(eta, drift[k]) * drift[k] for k in theta}
            if self.integrator == "baoab":
                share = _refreshed_share(1 - a)
                xi, scale = noise(on, C, state, evaluation, rates, num_data, share=share)
                half = {k: theta[k] + r[k] / 2 for k in theta}
                r = {k: (1 - a) * r[k] + per_chain(scale, xi[k]) * xi[k] for k in theta}
                moved = {k: half[k] + r[k] / 2 for k in theta}
            else:
                kicked = state._replace(own=Momentum(r))
                ended = self._free_motion(on, kicked, C, rates, num_data, draw=2)
                moved, r = ended.params, ended.own.momentum
        return on.arrived(state, moved, metric, evaluation, rates, own=Momentum(r))

    def relocated(
        self,
        on: LangevinDynamics,
        state: State,
        change: Callable[[], Params],
        rates: Rates,
        num_data: float | Tensor,
    ) -> Momentum:
        """ "ubu" carries the momentum of theta's own time on, which is independent of theta; the
        others half a kick before it, r = p + eta C v / 2 with such a p."""
        r = state.own.momentum
        if self.integrator == "ubu":
            return Momentum(r)
        kick = on.factor(state.metric, r, num_data).apply(change())
        return Momentum({k: r[k] + per_chain(rates.step_size, x) * x / 2 for k, x in kick.items()})

    def innovation(self, old: State, new: State) -> tuple[Params, float] | None:
        """r_new - (1 - a) r_old of "euler". "baoab" kicks before it forgets, so that the increment
        is the same divided by 1 - a; "ubu" mixes noise and motion."""
        keep = 1 - self.friction
        if self.integrator == "ubu" or self.correct_heat or not keep:
            return None
        before, after = old.own.momentum, new.own.momentum
        added = {k: after[k] - keep * r for k, r in before.items()}
        if self.integrator == "euler":
            return added, self.friction
        return {k: d / keep for k, d in added.items()}, (1 - keep**2) / (2 * keep**2)

    @property
    def cold_epochs(self) -> str:
        return COLD_EPOCHS if self.correct_heat else ""

    @property
    def kernels(self) -> frozenset[str]:
        if self.integrator == "ubu" or self.correct_heat:
            return frozenset()
        return frozenset({"mlp", "linear"})

    @property
    def kernel_update(self) -> KernelUpdate:
        kept = 1 - self.friction
        if self.integrator == "euler":
            return KernelUpdate(self.friction, kept, 1)
        return KernelUpdate(_refreshed_share(kept), kept, 2)

    def _free_motion(
        self,
        on: LangevinDynamics,
        state: State,
        metric: Factor,
        rates: Rates,
        num_data: float | Tensor,
        *,
        draw: int,
    ) -> State:
        """U(1/2), from the step's normals number ``draw`` and ``draw`` + 1."""
        theta, r, (rho, travel, n_1, n_21, n_22) = state.params, state.own.momentum, self._half_step
        scale = on.noise_scale(rates, num_data, 0.5)  # sqrt(eta T / N)
        one, two = (
            metric.sample(on.standard_normal(theta, state.step, draw + d)) for d in range(2)
        )
        one, two = ({k: per_chain(scale, x) * x for k, x in xi.items()} for xi in (one, two))
        moved = {k: theta[k] + travel * r[k] + (n_21 * one[k] + n_22 * two[k]) for k in theta}
        momentum = Momentum({k: rho * r[k] + n_1 * one[k] for k in theta})
        return state._replace(params=moved, own=momentum)

    @property
    def _half_step(self) -> tuple[float, float, float, float, float]:
        """rho, (1 - rho)/g, and the Cholesky factor of the noise of (r, theta)."""
        g = -math.log1p(-self.friction)
        lost = -math.expm1(-g / 2)  # 1 - rho
        n_1 = math.sqrt(lost * (2 - lost))
        n_21 = lost * lost / g / n_1
        variance = g / 12 if g < 1e-3 else 1 / g - lost * (2 + lost) / g**2
        return 1 - lost, lost / g, n_1, n_21, math.sqrt(max(0.0, variance - n_21**2))


def _refreshed_share(kept: float) -> float:
    """h of BAOAB's noise: (1 - kept^2) eta T / N is its variance in the metric."""
    return (1 - kept**2) / 2
