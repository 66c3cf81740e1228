"""Every integrator against the exact posterior of a linear regression: mean and full covariance.

With a metric that stands still, a step of any integrator is a linear map of (theta - mu, r) plus
Gaussian noise, z <- M z + n. The map is read off the dynamics themselves at T = 0, one unit vector
at a time; the noise covariance Q is built from the equations in its docstring. The stationary
covariance S = M S M^T + Q is then known exactly, step size bias included, and so is how far it is
from the posterior's. A row here is all that a new integrator adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gaussian_law import PARAMETERS, flat, make_problem, replace
from monte_carlo import assert_normal
from scipy.linalg import solve_discrete_lyapunov
from test_linear_regression import gaussian_prior
from torch import Tensor

from natural_langevin import dynamics
from natural_langevin.dynamics import (
    Adjusted,
    Microcanonical,
    NoseHoover,
    Overdamped,
    Underdamped,
)
from natural_langevin.preconditioners import DiagonalFisher, Euclidean, FullFisher

CHAINS, STEPS = 1024, 50


def kicked_noise(a: float) -> Callable[[Tensor], Tensor]:
    """Euler: the same normal moves r and theta."""
    return lambda c: torch.kron(torch.full((2, 2), 2 * a, dtype=c.dtype), c)


def ou_noise(a: float) -> Callable[[Tensor], Tensor]:
    """BAOAB: the noise of O reaches theta by half."""
    by = torch.tensor([0.5, 1.0], dtype=torch.float64)
    return lambda c: torch.kron((1 - (1 - a) ** 2) * torch.outer(by, by), c)


def free_noise(a: float) -> Callable[[Tensor], Tensor]:
    """UBU: that of two half steps, the first carried through the rest of the step. The kick in
    between is a matter of the map, which is why this needs it (see ``noise_of``)."""
    g = -math.log1p(-a)
    rho = math.exp(-g / 2)
    cov = (1 - rho) ** 2 / g
    half = [[1 / g - (1 - rho) * (3 - rho) / g**2, cov], [cov, 1 - rho**2]]
    return lambda c: torch.kron(torch.tensor(half, dtype=c.dtype), c)


#: Integrator, step size, and the noise of (theta, r) in units of (eta T / N).
CASES: dict[str, tuple[dynamics.Integrator, float, Callable[[Tensor], Tensor]]] = {
    "overdamped": (Overdamped(), 0.1, kicked_noise(1.0)),
    "euler": (Underdamped(friction=0.3), 0.02, kicked_noise(0.3)),
    "baoab": (Underdamped(friction=0.3, integrator="baoab"), 0.1, ou_noise(0.3)),
    "ubu": (Underdamped(friction=0.3, integrator="ubu"), 0.1, free_noise(0.3)),
}
#: Their steps are no linear maps: ``test_thermostat``, ``test_adjusted``, ``test_microcanonical``.
ELSEWHERE = {NoseHoover, Adjusted, Microcanonical}
METRICS = {"euclidean": Euclidean, "diagonal": DiagonalFisher, "full": FullFisher}


def at(state: dynamics.State, theta: Tensor, r: Tensor) -> dynamics.State:
    """``state`` at theta with momentum r, (chain, p) each."""
    moved = replace(state, theta)
    return moved._replace(own=type(state.own)(replace(state, r).params)) if state.own else moved


def position(state: dynamics.State) -> Tensor:
    """(theta, r): (chain, 2p); r = 0 where there is none."""
    theta = flat(state)
    r = flat(state._replace(params=state.own.momentum)) if state.own else torch.zeros_like(theta)
    return torch.cat([theta, r], dim=1)


def step_from(sampler, state, theta, r, problem, frozen_from):  # type: ignore[no-untyped-def]
    here = at(state, theta, r)._replace(step=torch.tensor(frozen_from))
    return position(sampler.step(here, (problem.x, problem.y), burn_in=1)[0])


def pairs() -> list[Any]:
    """Integrators know a metric by what it does to a vector: for most, the plainest and the one
    that couples all parameters."""
    between = [pytest.param(n, "diagonal", marks=pytest.mark.thorough) for n in CASES if n != "ubu"]
    return [*((n, m) for n in CASES for m in ("euclidean", "full")), ("ubu", "diagonal"), *between]


@pytest.mark.parametrize(("name", "metric"), pairs())
def test_every_integrator_samples_the_posterior(name: str, metric: str) -> None:
    integrator, eta, noise = CASES[name]
    if metric == "euclidean":
        eta = eta / 8  # the largest curvature of H is about 8
    problem = make_problem()
    mean, covariance = problem.posterior()
    p = PARAMETERS

    def sampler(chains: int, temperature: float):  # type: ignore[no-untyped-def]
        return problem._replace(temperature=torch.tensor(temperature).double()).sampler(
            METRICS[metric](), gaussian_prior(problem), chains, step_size=eta, dynamics=integrator
        )

    hot = sampler(CHAINS, 1.0)
    state, _ = hot.step(hot.init(), (problem.x, problem.y), burn_in=1)  # J learnt, then frozen

    # The map M, from unit vectors at T = 0, around the posterior's mode.
    cold = sampler(2 * p, 0.0)
    still = cold.init()._replace(metric=torch.utils._pytree.tree_map(
        lambda j: j[:1].expand(2 * p, *j.shape[1:]).clone(), state.metric))  # fmt: skip
    unit = torch.eye(2 * p, dtype=mean.dtype)
    M = (step_from(cold, still, mean + unit[:, :p], unit[:, p:], problem, 5)
         - torch.cat([mean, torch.zeros_like(mean)])).mT  # fmt: skip
    C = metric_of(hot, state)
    Q = noise(C) * eta / len(problem.x)
    if name == "ubu":  # M = U B U, so that the first half's noise passes through U B = M U^{-1}
        a = integrator.friction  # type: ignore[attr-defined]
        g, rho = -math.log1p(-a), math.sqrt(1 - a)
        eye = torch.eye(p, dtype=mean.dtype)
        U = torch.cat(
            [torch.cat([eye, (1 - rho) / g * eye], 1), torch.cat([0 * eye, rho * eye], 1)]
        )
        rest = M @ torch.linalg.inv(U)
        Q = Q + rest @ Q @ rest.mT
    if name == "overdamped":
        M, Q = M[:p, :p], Q[:p, :p]
    both = torch.from_numpy(solve_discrete_lyapunov(M.numpy(), Q.numpy()))
    S = both[:p, :p]

    # The step's own bias is known, and small.
    L = torch.linalg.cholesky(covariance)
    whitened = torch.linalg.solve(L, torch.linalg.solve(L, S).mT)
    bias = whitened - torch.eye(p, dtype=mean.dtype)
    print(f"{name}, {metric}: bias of the covariance {bias.abs().max():.4f}")
    assert float(bias.abs().max()) < 0.15

    # The chains, drawn from the exact law of (theta, r), stay in it.
    normals = torch.randn(CHAINS, len(both), generator=torch.Generator().manual_seed(1)).double()
    start = normals @ torch.linalg.cholesky(both).mT
    state = at(state, mean + start[:, :p], start[:, p:])
    for _ in range(STEPS):
        state, _ = hot.step(state, (problem.x, problem.y), burn_in=1)
    root = torch.linalg.cholesky(S)
    assert_normal(torch.linalg.solve_triangular(root, (flat(state) - mean).mT, upper=False).mT)


def metric_of(sampler, state) -> Tensor:  # type: ignore[no-untyped-def]
    """C (p, p) of the first chain."""
    factor = sampler.frame.factor(state.metric, state.params, sampler.num_data)
    columns = []
    for e in torch.eye(PARAMETERS, dtype=torch.float64):
        unit = replace(state, e.expand(len(state.diverged), -1)).params
        columns.append(flat(state._replace(params=factor.apply(unit)))[0])
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("metric", METRICS)
def test_friction_one_is_algorithm_1_bit_for_bit(metric: str) -> None:
    problem = make_problem()
    ends = []
    for integrator in (Overdamped(), Underdamped(friction=1.0)):
        sampler = problem.sampler(
            METRICS[metric](), gaussian_prior(problem), 3, step_size=0.01, dynamics=integrator
        )
        state = sampler.init()
        for _ in range(5):
            state, _ = sampler.step(state, (problem.x, problem.y))
        ends.append(state)
    for k, p in ends[0].params.items():
        assert torch.equal(p, ends[1].params[k])
        assert torch.equal(ends[0].mean[k], ends[1].mean[k])


def test_every_integrator_of_the_registry_has_a_row() -> None:
    linear = {type(case[0]) for case in CASES.values()}
    assert linear | ELSEWHERE == set(dynamics.REGISTRY.values())


@pytest.mark.parametrize(
    "options", [{"friction": 0.0}, {"friction": 1.5}, {"friction": 1.0, "integrator": "ubu"}]
)
def test_frictions_that_are_none_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="friction"):
        Underdamped(**options)
    with pytest.raises(ValueError, match="verlet"):
        Underdamped(integrator="verlet")  # type: ignore[arg-type]
