"""Metrics that never stop adapting, with the default rate gamma_t = 1/sqrt(t).

``targets="model"``: for a Gaussian likelihood y~ - f(x) = sigma z whatever theta is, so the metric
depends on the label stream alone, never on the chain; given the metrics met, the law of
``gaussian_law`` is exact. This also says that labels and noise are independent streams.

``targets="data"``: C_t depends on the chain's past, the paper's dynamics leave out (T/N) div C, and
the posterior is reached up to a bias. It is largest when the metric follows theta at once (gamma =
1): with tau = T/N, stationarity of theta and of delta delta^T
(delta = theta - mu) gives, to first order in the fluctuations of C around its mean C_0,

    C_0 H dm = -E[C H delta]
    C_0 H dS + dS H C_0 = -(R + R^T),   R = E[C (H delta delta^T - tau)]

with expectations over the exact posterior, where both vanish if C is constant.
"""

import pytest
import torch
from gaussian_law import Law, Problem, make_problem, metric_matrix, replace, run, whiten
from monte_carlo import assert_normal
from scipy.linalg import solve_continuous_lyapunov
from torch import Tensor

from natural_langevin import priors
from natural_langevin.preconditioners import DiagonalFisher, FullFisher, QuasiDiagonalFisher

FISHER = {"diagonal": DiagonalFisher, "quasi-diagonal": QuasiDiagonalFisher, "full": FullFisher}
PRIOR = priors.Gaussian(variance=2.0, mean=0.5)
CHAINS = 768


@pytest.mark.parametrize("rate", ["default", "memoryless"])
@pytest.mark.parametrize("name", FISHER)
def test_model_targets_follow_the_exact_law(name: str, rate: str) -> None:
    """Memoryless (gamma = 1, four samples) makes the most of a label stream that knew the noise."""
    problem = make_problem()
    options = {} if rate == "default" else {"decay": 1.0, "damping": 1.0}
    preconditioner = FISHER[name](targets="model", **options)
    sampler = problem.sampler(preconditioner, PRIOR, CHAINS, step_size=0.05)
    batch_size, steps = (16, 40) if rate == "default" else (4, 20)
    theta, law = run(
        sampler, problem, steps=steps, batch_size=batch_size, frozen_from=5, adaptive=True
    )
    assert_normal(law.whiten(theta))


@pytest.mark.parametrize("name", FISHER)
def test_data_targets_reach_the_posterior(name: str) -> None:
    """The bias grows as parameters / data: 192 data keep it below a tenth."""
    problem, eta = make_problem(num_data=192), 0.05
    mean, covariance = problem.posterior()
    pairs = zip(step_bias(name, problem, eta), drift_bias(name, problem), strict=True)
    bias = [a.abs() + b.abs() for a, b in pairs]
    print("bias", [f"{b.abs().max():.3f}" for b in bias])
    assert max(float(b.abs().max()) for b in bias) < 0.1
    sampler = problem.sampler(FISHER[name](), PRIOR, CHAINS, step_size=eta)
    start = Law(mean.repeat(CHAINS, 1), covariance.repeat(CHAINS, 1, 1))
    theta, _ = run(sampler, problem, steps=100, frozen_from=0, start=start)
    assert_normal(whiten(theta, mean, covariance), *bias)


def instant_metrics(name: str, problem: Problem, chains: int) -> tuple[Tensor, Tensor]:
    """Exact posterior draws, and C at each of them (gamma = 1)."""
    mean, covariance = problem.posterior()
    z = torch.randn(chains, len(mean), generator=torch.Generator().manual_seed(3)).double()
    z = torch.cat([z, -z])  # antithetic
    sampler = problem.sampler(FISHER[name](decay=1.0), PRIOR, 2 * chains, step_size=0.0)
    theta = mean + z @ torch.linalg.cholesky(covariance).mT
    state, _ = sampler.step(replace(sampler.init(), theta), (problem.x, problem.y))
    return theta, metric_matrix(sampler, state)


def step_bias(name: str, problem: Problem, eta: float) -> tuple[Tensor, Tensor]:
    """Of a frozen metric: the stationary covariance is tau (H - eta H C H / 2)^{-1}."""
    mean, covariance = problem.posterior()
    H, _ = problem.moments(problem.x, problem.y)
    C = instant_metrics(name, problem, 64)[1].mean(0)
    biased = torch.linalg.inv(H - eta / 2 * H @ C @ H) / len(problem.x)
    return Law(mean[None], biased[None]).mixture(mean, covariance)


def drift_bias(name: str, problem: Problem) -> tuple[Tensor, Tensor]:
    """Of the missing div C, whitened by the posterior."""
    mean, covariance = problem.posterior()
    H, _ = problem.moments(problem.x, problem.y)
    theta, C = instant_metrics(name, problem, 2048)
    C_0, delta = C.mean(0), theta - mean
    force = torch.einsum("nij,nj->ni", C - C_0, delta @ H)
    R = force.mT @ delta / len(delta)  # the tau term of C - C_0 averages to zero
    dm = -torch.linalg.solve(C_0 @ H, force.mean(0))
    dS = torch.from_numpy(solve_continuous_lyapunov((C_0 @ H).numpy(), -(R + R.mT).numpy()))
    L = torch.linalg.cholesky(covariance)
    half = torch.linalg.solve_triangular(L, dS, upper=False)
    return (torch.linalg.solve_triangular(L, dm[:, None], upper=False)[:, 0],
            torch.linalg.solve_triangular(L, half.mT, upper=False))  # fmt: skip
