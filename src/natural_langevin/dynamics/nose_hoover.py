"""Langevin dynamics with a thermostat, in the metric (SGNHT of Ding et al. 2014, with a C).

The friction adapts: it grows while the momentum is hotter than T and falls while it is colder. With
the scaling of ``frame``, C = A A^T, and r = A s the momentum of ``underdamped`` (a displacement),
whose whitened form s ~ N(0, (eta T / N) Id) in equilibrium is the state. One step:

    s <- s - eta A^T v                                                      B, a full kick
    theta <- theta + A s / 2                                                A
    x <- x + (eta / 2) (N |s|^2 / (d eta T) - 1)                            D
    s <- e^{-x} s + sqrt(a (1 - e^{-2x}) / x  eta T / N) z                  O
    x <- x + (eta / 2) (N |s|^2 / (d eta T) - 1)                            D
    theta <- theta + A s / 2                                                A

x is the chain's friction per step, d the number of its parameters, a = ``friction`` the strength of
the injected noise, and where x starts; in equilibrium x ~ N(a, eta / d). Since |s|^2 =
r^T C^{-1} r, nothing has to be inverted. The order of the parts is Leimkuhler & Shang's (2016,
arXiv 1505.06889), symmetric and second order in eta, where the Euler step of Ding et al. is first
order. With T = 0 nothing is thermostatted: x stays at a.

All data are needed in every step. The method was designed to absorb minibatch noise too, which
works if that noise is independent from step to step, the same everywhere, and of covariance
proportional to C^{-1}. Minibatch noise is different: over an epoch its errors cancel in theta, but
not in the momentum of a single step, which x depends on; and its size varies with position and
direction, while x is a single number. Variances would be too small (lab/notes/samplers.md), so
minibatches are refused.
References: Ding et al., Bayesian sampling using stochastic gradient thermostats, NeurIPS 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, dot, per_chain
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Conditions, Integrator, LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.statistics import Evaluation


class Thermostat(NamedTuple):
    """s of every parameter, (chain, *shape), and every chain's friction x, (chain,)."""

    momentum: Params
    friction: Tensor


@dataclass(frozen=True)
class NoseHoover(Integrator):
    """Langevin dynamics whose friction adapts, chain by chain; ``friction`` is a.

    >>> NoseHoover()
    NoseHoover(friction=0.1)
    """

    friction: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.friction, bool) or not 0 < self.friction <= 1:
            raise ValueError(
                f"friction must be above 0 and at most 1, got {self.friction!r}: it is the share "
                "of the momentum that a step forgets where gradients have no noise"
            )

    def check(self, on: LangevinDynamics, run: Conditions) -> None:
        if run.batch_size < run.num_data and bool((on.temperature > 0).any()):
            raise ValueError(
                f"NoseHoover needs all {run.num_data:g} data in every step, got batches of "
                f"{run.batch_size}: its single friction removes more heat than minibatches add, "
                "which leaves variances a quarter too small. Use dynamics.Underdamped(0.1, "
                f'integrator="baoab"), or give batch_size={run.num_data:g}'
            )

    def init(self, params: Params) -> Thermostat:
        first = next(iter(params.values()))
        return Thermostat(
            {k: torch.zeros_like(p) for k, p in params.items()},
            first.new_full((len(first),), self.friction),
        )

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        theta, (s, x), eta = state.params, state.own, rates.step_size
        v = on.posterior_gradient(theta, evaluation.gradient, num_data)
        metric, C = on.metric(state, evaluation, rates, num_data)
        kick = C.transpose(v)
        s = {k: s[k] - per_chain(eta, s[k]) * kick[k] for k in s}
        r = C.forward(s)
        half = {k: theta[k] + r[k] / 2 for k in theta}
        x = self._thermostat(on, x, s, rates, num_data)
        z, scale = on.standard_normal(theta, state.step), self._scale(on, x, rates, num_data)
        kept = torch.exp(-x)
        s = {k: per_chain(kept, s[k]) * s[k] + per_chain(scale, z[k]) * z[k] for k in s}
        x = self._thermostat(on, x, s, rates, num_data)
        r = C.forward(s)
        moved = {k: half[k] + r[k] / 2 for k in theta}
        return on.arrived(state, moved, metric, evaluation, rates, own=Thermostat(s, x))

    def relocated(
        self,
        on: LangevinDynamics,
        state: State,
        change: Callable[[], Params],
        rates: Rates,
        num_data: float | Tensor,
    ) -> Thermostat:
        """s is also half a kick before the momentum that is independent of theta."""
        s, x = state.own
        kick = on.factor(state.metric, s, num_data).transpose(change())
        return Thermostat(
            {k: s[k] + per_chain(rates.step_size, y) * y / 2 for k, y in kick.items()}, x
        )

    def _thermostat(
        self, on: LangevinDynamics, x: Tensor, s: Params, rates: Rates, num_data: float | Tensor
    ) -> Tensor:
        """Half a step of x."""
        count = sum(p[0].numel() for p in s.values())
        tau = on.temperature_at(rates.kind)
        hot = tau > 0
        kinetic = dot(s, s) * on.weight(num_data) / (count * torch.where(hot, tau, 1.0))
        return x + torch.where(hot, kinetic - rates.step_size, 0.0) / 2

    def _scale(
        self, on: LangevinDynamics, x: Tensor, rates: Rates, num_data: float | Tensor
    ) -> Tensor:
        """sqrt(a (1 - e^{-2x}) / x  eta T / N), whose limit at x = 0 is sqrt(2 a eta T / N)."""
        small = x.abs() < 1e-4
        growth = torch.where(small, 1 - x, -torch.expm1(-2 * x) / torch.where(small, 1.0, 2 * x))
        return on.noise_scale(rates, num_data, self.friction) * growth.sqrt()
