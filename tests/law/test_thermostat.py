"""The thermostat against the exact posterior of a linear regression, mean and full covariance.

Its step is no linear map, so there is no exact law of the chain; it is second order in eta, and at
eta = 0.05 what the step adds is far below the Monte-Carlo error.
"""

from __future__ import annotations

import pytest
import torch
from gaussian_law import flat, make_problem, replace, whiten
from monte_carlo import assert_normal, assert_within
from test_linear_regression import gaussian_prior
from torch import Tensor

from natural_langevin.dynamics import Integrator, NoseHoover, State
from natural_langevin.preconditioners import DiagonalFisher, Euclidean, FullFisher, Preconditioner

CHAINS, STEPS, SIZE = 512, 150, 200


def run(
    integrator: Integrator, metric: Preconditioner, eta: float, batch_size: int, steps: int = STEPS
) -> tuple[Tensor, State]:
    """Chains from the posterior with independent minibatches: whitened by it, and their state."""
    problem = make_problem(num_data=SIZE)
    sampler = problem.sampler(
        metric, gaussian_prior(problem), CHAINS, step_size=eta, dynamics=integrator
    )
    g = torch.Generator().manual_seed(5)
    mean, covariance = problem.posterior()
    state = replace(sampler.init(), mean.expand(CHAINS, -1).clone())
    state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    z = torch.randn(CHAINS, len(mean), generator=g).double()
    state = replace(state, mean + z @ torch.linalg.cholesky(covariance).mT)
    for _ in range(steps):
        batch, own = (problem.x, problem.y), batch_size < SIZE
        if own:
            rows = torch.rand(CHAINS, SIZE, generator=g).topk(batch_size).indices
            batch = problem.x[rows], problem.y[rows]
        state, _ = sampler.step(state, batch, chain_axis=own, burn_in=1)
    return whiten(flat(state), mean, covariance), state


@pytest.mark.parametrize(
    ("metric", "eta"),
    [(Euclidean(), 0.05 / 8), (DiagonalFisher(), 0.05), (FullFisher(), 0.05)],
    ids=["euclidean", "diagonal", "full"],
)
def test_the_posterior_and_the_friction_with_all_data(metric: Preconditioner, eta: float) -> None:
    z, state = run(NoseHoover(0.3), metric, eta, SIZE)
    assert_normal(z)
    # x ~ N(a, eta / d) in equilibrium, independent of theta and r.
    x = state.own.friction
    assert_within(x.mean() - 0.3, (eta / 4 / CHAINS) ** 0.5 * torch.ones(()))
    assert_within(x.var() / (eta / 4) - 1, (2 / CHAINS) ** 0.5 * torch.ones(()))


def test_minibatches_are_refused_with_the_reason() -> None:
    """At temperature 0 nothing is thermostatted, and they may be."""
    with pytest.raises(
        ValueError, match=r"all 200 data in every step, got batches of 10: its single"
    ):
        run(NoseHoover(0.1), FullFisher(), 0.01, 10)
    problem = make_problem(temperature=0.0)
    sampler = problem.sampler(FullFisher(), gaussian_prior(problem), 2, dynamics=NoseHoover(0.5))
    sampler.step(sampler.init(), (problem.x[:5], problem.y[:5]))


def test_frictions_that_are_none_are_refused() -> None:
    for friction in (0.0, 1.5, True):
        with pytest.raises(ValueError, match="friction must be above 0 and at most 1"):
            NoseHoover(friction=friction)


def test_without_temperature_it_is_descent_with_friction() -> None:
    problem = make_problem(temperature=0.0)
    sampler = problem.sampler(
        FullFisher(), gaussian_prior(problem), 2, step_size=0.1, dynamics=NoseHoover(0.5)
    )
    state = sampler.init()
    for _ in range(100):
        state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    assert torch.equal(state.own.friction, torch.full((2,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(flat(state), problem.posterior()[0].expand(2, -1))
