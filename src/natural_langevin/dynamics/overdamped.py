"""Algorithm 1: stochastic gradient Langevin dynamics with a preconditioner C.

With the scaling of ``frame`` (N data, mean loss gradient g, prior alpha, step size eta, T):

    v     = g - (1/N) d ln alpha(theta)
    theta = theta - eta C v + sqrt(2 eta T / N) C^{1/2} xi,      xi ~ N(0, Id)

``correct_heat=True`` subtracts the minibatch's own noise from the injected noise (see ``heat``),
for eta up to 2 B T / N.

Reference: Marceau-Caron & Ollivier 2017, Eq. (3) and Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, per_chain
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Conditions, Integrator, LangevinDynamics
from natural_langevin.dynamics.heat import (
    COLD_EPOCHS,
    corrected_noise,
    refuse_metric,
    warn_beyond_range,
)
from natural_langevin.dynamics.rates import Rates
from natural_langevin.preconditioners import Factor
from natural_langevin.statistics import Evaluation


@dataclass(frozen=True)
class Overdamped(Integrator):
    """Algorithm 1, the default of ``recipe="paper"``.

    ``correct_heat``: subtract from the noise what the minibatch contributes.

    >>> Overdamped()
    Overdamped(correct_heat=False)
    """

    correct_heat: bool = False

    overshoots = True

    def __post_init__(self) -> None:
        check_flag(self.correct_heat)

    def check(self, on: LangevinDynamics, run: Conditions) -> None:
        if self.correct_heat:
            refuse_metric(on.preconditioner)
            warn_beyond_range(run, on)

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        """One pass of Algorithm 1's loop after g is known. Comments quote the paper."""
        theta, eta, g = state.params, rates.step_size, evaluation.gradient
        # "incorporate gradient of prior: g <- g + (1/N) Sigma_0^{-1} (theta - theta_0)"
        v = on.posterior_gradient(theta, g, num_data)
        # "update preconditioner C using current sample and gradient"  (g without the prior)
        metric, C = on.metric(state, evaluation, rates, num_data)
        # "apply preconditioner: g <- C g"
        drift = C.apply(v)
        # "sample preconditioned noise: xi ~ N(0, C) = C^{1/2} N(0, Id)"
        xi, scale = noise(on, C, state, evaluation, rates, num_data, correct=self.correct_heat)
        # "update parameters: theta <- theta - eta_t g + sqrt(2 eta_t / N) xi"
        moved = {k: theta[k] + increment(drift[k], xi[k], eta, scale) for k in theta}
        return on.arrived(state, moved, metric, evaluation, rates)

    def innovation(self, old: State, new: State) -> tuple[Params, float] | None:
        if self.correct_heat:  # the noise is meant to be less than the drift asks for
            return None
        return {k: new.params[k] - p for k, p in old.params.items()}, 1.0

    @property
    def cold_epochs(self) -> str:
        return COLD_EPOCHS if self.correct_heat else ""

    @property
    def kernels(self) -> frozenset[str]:
        return frozenset() if self.correct_heat else frozenset({"linear", "mlp"})


def noise(
    on: LangevinDynamics,
    metric: Factor,
    state: State,
    evaluation: Evaluation,
    rates: Rates,
    num_data: float | Tensor,
    *,
    share: float = 1.0,
    correct: bool = False,
) -> tuple[Params, Tensor]:
    """C^{1/2} xi and sqrt(2 share eta T / N); or, corrected, their product and 1."""
    if correct:
        xi = corrected_noise(
            on, metric, state, rates, num_data, batch_size=evaluation.size, share=share
        )
        return xi, torch.ones_like(rates.step_size)
    xi = metric.sample(on.standard_normal(state.params, state.step))
    return xi, on.noise_scale(rates, num_data, share)


def check_flag(correct_heat: bool) -> None:
    """Checks the option ``correct_heat``."""
    if not isinstance(correct_heat, bool):
        raise TypeError(f"correct_heat must be True or False, got {correct_heat!r}")


def increment(drift: Tensor, xi: Tensor, eta: Tensor, scale: Tensor) -> Tensor:
    """-eta C v + scale C^{1/2} z of one tensor."""
    return torch.addcmul(per_chain(scale, xi) * xi, per_chain(eta, drift), drift, value=-1)
