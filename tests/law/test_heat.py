"""Minibatch heat at eta = B T / N: without a correction the posterior is half as wide again, with
``correct_heat`` it is not.

Minibatches are independent, of 10 of 200 data, and the metric is the full Fisher matrix of all
data, which then stands still. The reference is the exact stationary law of the *full-batch* chain
(see ``test_dynamics``): what is left of a corrected chain is its step size alone.
"""

from __future__ import annotations

import logging

import pytest
import torch
from gaussian_law import Problem, flat, make_problem, metric_matrix, replace, whiten
from monte_carlo import assert_normal
from scipy.linalg import solve_discrete_lyapunov
from test_linear_regression import gaussian_prior
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from natural_langevin import Langevin, preconditioners
from natural_langevin.data import SharedBatches
from natural_langevin.dynamics import Integrator, Overdamped, State, Underdamped
from natural_langevin.preconditioners import FullFisher, Preconditioner, QuasiDiagonalFisher

CHAINS, STEPS, SIZE, BATCH = 512, 80, 200, 10
ETA = BATCH / SIZE


def run(
    problem: Problem, integrator: Integrator, eta: float, metric: Preconditioner
) -> tuple[Langevin, State]:
    """Chains from the posterior, each with minibatches of its own, after the metric is learnt."""
    sampler = problem.sampler(
        metric, gaussian_prior(problem), CHAINS, step_size=eta, dynamics=integrator
    )
    g = torch.Generator().manual_seed(3)
    mean, covariance = problem.posterior()
    state = replace(sampler.init(), mean.expand(CHAINS, -1).clone())
    state, _ = sampler.step(state, (problem.x, problem.y), burn_in=1)
    z = torch.randn(CHAINS, len(mean), generator=g).double()
    state = replace(state, mean + z @ torch.linalg.cholesky(covariance).mT)
    for _ in range(STEPS):
        rows = torch.rand(CHAINS, SIZE, generator=g).topk(BATCH).indices
        state, _ = sampler.step(
            state, (problem.x[rows], problem.y[rows]), chain_axis=True, burn_in=1
        )
    return sampler, state


def full_batch_law(problem: Problem, metric: Tensor, eta: float, a: float) -> Tensor:
    """The stationary covariance of theta under r <- (1 - a) r - eta C v + noise with all data."""
    H, _ = problem.moments(problem.x, problem.y)
    eye = torch.eye(len(H), dtype=H.dtype)
    kick = torch.cat([-eta * metric @ H, (1 - a) * eye], 1)
    M = torch.cat([torch.cat([eye, 0 * eye], 1) + kick, kick])
    Q = torch.kron(torch.full((2, 2), 2 * a * eta / SIZE, dtype=H.dtype), metric)
    return torch.from_numpy(solve_discrete_lyapunov(M.numpy(), Q.numpy()))[: len(H), : len(H)]


@pytest.mark.parametrize("friction", [1.0, 0.5])
def test_the_corrected_chain_is_as_wide_as_with_all_data(friction: float) -> None:
    problem, eta = make_problem(num_data=SIZE), ETA * friction
    widths = {}
    for correct in (False, True):
        integrator = (
            Overdamped(correct_heat=correct)
            if friction == 1
            else Underdamped(friction, correct_heat=correct)
        )
        sampler, state = run(problem, integrator, eta, FullFisher())
        S = full_batch_law(problem, metric_matrix(sampler, state)[0], eta, friction)
        z = whiten(flat(state), problem.posterior()[0], S)
        widths[correct] = float(z.square().mean())
        if correct:
            assert_normal(z)
    # 1 + eta N / (2 a b) = 1.48, and its Monte-Carlo error sqrt(2 / (512 * 4)) is 0.03 of it.
    print(f"friction {friction}: mean squares {widths}")
    assert widths[False] > 1.3


def test_a_metric_that_leaves_out_correlations_corrects_the_mean_heat() -> None:
    """Quasi-diagonal: single directions are off by what it leaves out of J, all together not."""
    problem = make_problem(num_data=SIZE)
    squares = []
    for correct in (False, True):
        _, state = run(problem, Overdamped(correct_heat=correct), ETA, QuasiDiagonalFisher())
        squares.append(whiten(flat(state), *problem.posterior()).square().mean())
    assert squares[0] > 1.3
    # The step size's own share is below 1 / (1 - eta lambda / 2) - 1 with lambda(C H) < 2: 0.053.
    assert abs(squares[1] - 1) < 0.053 + 4 * (2 / (4 * CHAINS)) ** 0.5


def test_all_data_at_once_are_not_corrected() -> None:
    """All data at once: the same law; two normals in place of one, so only in distribution."""
    problem = make_problem(num_data=SIZE)
    sampler = problem.sampler(
        FullFisher(), gaussian_prior(problem), CHAINS, step_size=1e-9,
        dynamics=Overdamped(correct_heat=True),
    )  # fmt: skip
    start = sampler.init()
    state, _ = sampler.step(start, (problem.x, problem.y))
    moved = flat(state) - flat(start)
    C = metric_matrix(sampler, state)[0]
    assert_normal(whiten(moved, torch.zeros(()), C * 2e-9 / SIZE))


def test_the_range_is_warned_of_with_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    problem = make_problem(num_data=SIZE)
    for eta, said in ((0.09, False), (0.2, True)):
        sampler = problem.sampler(
            QuasiDiagonalFisher(), gaussian_prior(problem), 2, step_size=eta,
            dynamics=Overdamped(correct_heat=True),
        )  # fmt: skip
        with caplog.at_level(logging.WARNING, "natural_langevin"):
            sampler.prepare((problem.x, problem.y), steps=5, batch_size=BATCH)
        assert ("correct_heat: the step size 0.2 is above 2 B T / N = 0.105" in caplog.text) == said


def test_what_cannot_be_corrected_is_refused() -> None:
    problem = make_problem(num_data=SIZE)
    for metric in (preconditioners.Euclidean(), preconditioners.RMSProp()):
        sampler = problem.sampler(
            metric, gaussian_prior(problem), 2, step_size=0.01,
            dynamics=Overdamped(correct_heat=True),
        )  # fmt: skip
        with pytest.raises(ValueError, match="QuasiDiagonalFisher"):
            sampler.sample((problem.x, problem.y), 5, batch_size=BATCH, progress=False)
    with pytest.raises(ValueError, match="baoab"):
        Underdamped(integrator="baoab", correct_heat=True)
    with pytest.raises(TypeError, match="'yes'"):
        Overdamped(correct_heat="yes")  # type: ignore[arg-type]


def test_no_kernel_computes_the_corrected_step() -> None:
    for integrator in (Overdamped(correct_heat=True), Underdamped(correct_heat=True)):
        assert integrator.kernels == frozenset()


def test_shuffled_epochs_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    problem = make_problem(num_data=SIZE)
    loader = DataLoader(
        TensorDataset(problem.x, problem.y), batch_size=BATCH,
        sampler=RandomSampler(range(SIZE), replacement=True),
    )  # fmt: skip
    both = (problem.x, problem.y)
    cases = [(both, BATCH, True), (both, SIZE, False), (SharedBatches(loader), BATCH, False)]
    for source, batch, said in cases:
        sampler = problem.sampler(
            QuasiDiagonalFisher(), gaussian_prior(problem), 2, step_size=0.01,
            dynamics=Overdamped(correct_heat=True),
        )  # fmt: skip
        caplog.clear()
        with caplog.at_level(logging.WARNING, "natural_langevin"):
            sampler.prepare(source, steps=5, batch_size=batch)
        assert ("parts of one shuffled epoch" in caplog.text) == said
