"""A momentum of fixed length: its equation against a slow solution, and laws that it samples."""

from __future__ import annotations

import pytest
import torch
from gaussian_law import flat, make_problem, metric_matrix, replace, whiten
from monte_carlo import assert_normal, assert_within
from numpy.random import Generator, default_rng
from test_linear_regression import gaussian_prior
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, priors, schedules
from natural_langevin.dynamics import Microcanonical, State, Underdamped
from natural_langevin.preconditioners import DiagonalFisher, Euclidean, FullFisher, Preconditioner

CHAINS = 512


def started(metric: Preconditioner, eta: float, friction: float = 0.3, chains: int = CHAINS):  # type: ignore[no-untyped-def]
    """A regression's sampler, and chains drawn from the posterior with any direction."""
    problem = make_problem()
    sampler = problem.sampler(
        metric, gaussian_prior(problem), chains, step_size=eta, dynamics=Microcanonical(friction)
    )
    mean, covariance = problem.posterior()
    state = replace(sampler.init(), mean.expand(chains, -1).clone())
    state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    g = torch.Generator().manual_seed(5)
    theta, u = torch.randn(2, chains, len(mean), generator=g).double()
    u /= u.norm(dim=1, keepdim=True)
    state = replace(state, mean + theta @ torch.linalg.cholesky(covariance).mT)
    return problem, sampler, state._replace(own=type(state.own)(replace(state, u).params))


def direction(state: State) -> Tensor:
    return flat(state._replace(params=state.own.direction))


@pytest.mark.parametrize(
    ("metric", "eta"),
    [(Euclidean(), 0.05 / 8), (DiagonalFisher(), 0.05), (FullFisher(), 0.05)],
    ids=["euclidean", "diagonal", "full"],
)
def test_the_posterior_with_all_data(metric: Preconditioner, eta: float) -> None:
    problem, sampler, state = started(metric, eta)
    for _ in range(60):
        state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    assert_normal(whiten(flat(state), *problem.posterior()))
    u = direction(state)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(CHAINS).double())
    assert_within(u.mean(0), torch.full((4,), (1 / 4 / CHAINS) ** 0.5))  # uniform on the sphere


def test_one_step_is_the_equation_solved_in_small_pieces() -> None:
    """B by Euler's steps of du/dt; A and O by hand, from the same normals; T = 2, C full."""
    problem = make_problem(temperature=2.0)
    sampler = problem.sampler(
        FullFisher(), gaussian_prior(problem), 3, step_size=0.3, dynamics=Microcanonical(0.4)
    )
    state = sampler.init()
    for _ in range(3):
        state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    n, d, root = len(problem.x), 4, torch.linalg.cholesky(metric_matrix(sampler, state))
    factor = sampler.frame.factor(state.metric, state.params, n)
    H, b = problem.moments(problem.x, problem.y)
    v = replace(state, flat(state) @ H.mT - b).params
    force = flat(state._replace(params=factor.transpose(v)))
    radius = (d * 0.3 * 2.0 / n) ** 0.5
    torch.testing.assert_close(  # A^T v has the length that any root of C gives it
        force.norm(dim=1),
        torch.einsum("cji,cj->ci", root, flat(state._replace(params=v))).norm(dim=1),
    )
    u, pieces = direction(state), 2_000
    for _ in range(pieces):
        pull = -force * n / (2.0 * (d - 1)) * radius / pieces
        u = u + pull - (u * pull).sum(1, keepdim=True) * u
    kicked = u / u.norm(dim=1, keepdim=True)
    z = flat(state._replace(params=sampler.frame.standard_normal(state.params, state.step)))
    w = 0.6 * kicked + ((1 - 0.36) / d) ** 0.5 * z
    fresh = w / w.norm(dim=1, keepdim=True)
    way = factor.forward(replace(state, (kicked + fresh) * radius / 2).params)
    expected = flat(state) + flat(state._replace(params=way))
    after, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    torch.testing.assert_close(flat(after), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(direction(after), fresh, rtol=1e-3, atol=1e-3)


class Point(nn.Module):
    """A network without inputs: what it returns is minus the log density at its weights."""

    def __init__(self, energy, size: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.theta, self.energy = nn.Parameter(torch.zeros(size, dtype=torch.float64)), energy

    def forward(self, x: Tensor) -> Tensor:
        return self.energy(self.theta) + 0 * x[:, 0]


def quartic(theta: Tensor) -> Tensor:
    return theta.pow(4).sum() / 4


def banana(theta: Tensor) -> Tensor:
    """theta_0 ~ N(0, 1), theta_1 ~ N(theta_0^2 / 2, 1/4), and three that are N(0, 1)."""
    return (
        theta[0].square() / 2
        + 2 * (theta[1] - theta[0].square() / 2).square()
        + (theta[2:].square().sum() / 2)
    )


def quartic_draws(g: Generator) -> Tensor:
    gamma = torch.from_numpy(g.gamma(0.25, size=(CHAINS, 5)))  # theta^4 / 4
    return (4 * gamma).pow(0.25) * torch.from_numpy(g.choice([-1.0, 1.0], (CHAINS, 5)))


def banana_draws(g: Generator) -> Tensor:
    z = torch.from_numpy(g.standard_normal((CHAINS, 5)))
    return torch.cat([z[:, :1], z[:, :1].square() / 2 + z[:, 1:2] / 2, z[:, 2:]], 1)


@pytest.mark.parametrize(
    ("energy", "draws", "read", "exact"),
    [
        (quartic, quartic_draws, lambda t: t.square(), 0.6759782),  # 2 Gamma(3/4) / Gamma(1/4)
        (banana, banana_draws, lambda t: torch.stack([t[:, 0].square(), t[:, 1]], 1), (1.0, 0.5)),
    ],
    ids=["quartic", "banana"],
)
def test_laws_that_are_not_normal(energy, draws, read, exact) -> None:  # type: ignore[no-untyped-def]
    """Chains drawn from them stay in them; a relaxation time is about a / eta = 5 steps."""
    found = Langevin(
        Point(energy, 5), likelihoods.LogLoss(lambda outputs, y: outputs), num_data=1,
        prior=priors.Flat(), preconditioner=Euclidean(), chains=CHAINS, step_size=0.02,
        dynamics=Microcanonical(0.1),
    )  # fmt: skip
    state = found.init()._replace(params={"theta": draws(default_rng(3))})
    seen = []
    for step in range(120):
        state, _ = found.step(state, (torch.zeros(1, 1).double(), torch.zeros(1)), burn_in=1)
        if step % 20 == 19:
            seen.append(read(state.params["theta"]))
    by_chain = torch.stack(seen[2:]).mean(0)
    error = by_chain.std(0) / CHAINS**0.5
    print(by_chain.mean(0), error)
    assert_within(by_chain.mean(0) - torch.tensor(exact), error)


def test_many_weights_move_as_with_a_momentum_of_their_own() -> None:
    """|s| of BAOAB is R up to a share of 1 / sqrt(2 d): at the same eta, both forget a quadratic
    well's start at the same pace."""
    ends = []
    for moves in (Microcanonical(0.2), Underdamped(0.2, "baoab")):
        found = Langevin(
            Point(lambda t: t.square().sum() / 2, 1000),
            likelihoods.LogLoss(lambda outputs, y: outputs), num_data=1, prior=priors.Flat(),
            preconditioner=Euclidean(), chains=8, step_size=0.05, dynamics=moves,
        )  # fmt: skip
        state = found.init()
        state = state._replace(params={"theta": state.params["theta"] + 1.0})
        for _ in range(8):
            state, _ = found.step(state, (torch.zeros(1, 1).double(), torch.zeros(1)))
        ends.append(state.params["theta"].mean(1))
    one, other = ends
    assert_within((one - other).mean()[None], ((one.var() + other.var()) / 8).sqrt()[None], 0.05)
    assert 0.05 < float(other.mean()) < 0.9  # it has moved, and has not arrived


def test_a_huge_gradient_and_none_at_all_leave_a_direction() -> None:
    for slope in (0.0, 1e-30, 1e30):
        found = Langevin(
            Point(lambda t, s=slope: s * t.sum(), 4),
            likelihoods.LogLoss(lambda outputs, y: outputs), num_data=1, prior=priors.Flat(),
            preconditioner=Euclidean(), chains=2, step_size=0.1, dynamics=Microcanonical(),
        )  # fmt: skip
        state = found.init()
        for _ in range(3):
            state, _ = found.step(state, (torch.zeros(1, 1).double(), torch.zeros(1)))
        u = state.own.direction["theta"]
        torch.testing.assert_close(u.norm(dim=1), torch.ones(2).double())
        if slope > 1:  # straight down, up to what O forgets
            assert (u.sum(1) < -1.5).all()


def test_what_it_cannot_do_is_refused() -> None:
    for friction in (0.0, 1.5, True):
        with pytest.raises(ValueError, match="friction must be above 0 and at most 1"):
            Microcanonical(friction=friction)
    problem = make_problem(temperature=0.0)
    cold = problem.sampler(FullFisher(), gaussian_prior(problem), 2, dynamics=Microcanonical())
    with pytest.raises(ValueError, match=r"needs a temperature above 0, got \[0.0, 0.0\]"):
        cold.step(cold.init(), (problem.x, problem.y))
    with pytest.raises(ValueError, match="two weights or more, got 1"):
        Langevin(
            nn.Linear(1, 1, bias=False), likelihoods.Gaussian(1.0), dynamics=Microcanonical(),
            step_size=0.1, preconditioner=Euclidean(),
        )  # fmt: skip
    staged = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(1.0), dynamics=Microcanonical(),
        step_size=schedules.cyclical(0.1, 4, exploration=0.5),
    )  # fmt: skip
    with pytest.raises(ValueError, match="exploration=0"):
        staged.sample((torch.ones(4, 2), torch.ones(4, 1)), 8, progress=False)


def test_shuffled_epochs_are_said_to_leave_it_cold(caplog: pytest.LogCaptureFixture) -> None:
    found = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(1.0), dynamics=Microcanonical(), step_size=0.01,
        chains=2,
    )  # fmt: skip
    rows = torch.ones(8, 2), torch.ones(8, 1)
    found.sample(rows, 2, batch_size=8, progress=False)
    assert "too cold" not in caplog.text
    found.sample(rows, 2, batch_size=4, progress=False)
    assert "Microcanonical: minibatches that are parts of one shuffled epoch" in caplog.text


def test_noise_of_independent_minibatches_hardly_heats_it_in_their_own_metric() -> None:
    """Gradients of covariance C^{-1}, heat N eta / (2 B a) = 1: BAOAB doubles variances."""
    d, a, eta, count = 6, 0.2, 0.05, 8.0
    noisy = Langevin(
        Tilted(d), likelihoods.LogLoss(lambda outputs, y: outputs), num_data=count,
        prior=priors.Flat(), preconditioner=Euclidean(), chains=CHAINS, step_size=eta,
        dynamics=Microcanonical(a),
    )  # fmt: skip
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(CHAINS, d, generator=g).double() / count**0.5
    state, seen = noisy.init()._replace(params={"theta": theta}), []
    for step in range(100):
        e = torch.randn(CHAINS, 1, d, generator=g).double()  # of a batch of one: N eta / (2 a) = 1
        state, _ = noisy.step(state, (e, torch.zeros(CHAINS, 1)), chain_axis=True, burn_in=1)
        if step % 20 == 19:
            seen.append(state.params["theta"].square().mean(1) * count - 1)
    by_chain = torch.stack(seen[2:]).mean(0)
    print(by_chain.mean(), by_chain.std() / CHAINS**0.5)
    assert -0.1 < float(by_chain.mean()) < 0.15


class Tilted(nn.Module):
    """theta^2 / 2 + e . theta of a row e."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, e: Tensor) -> Tensor:
        return self.theta.square().sum() / 2 + e @ self.theta
