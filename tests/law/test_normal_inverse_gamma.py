"""The normal-inverse-gamma prior: its marginal is a Student-t with 2 alpha degrees of freedom.

Model nn.Linear(3, 1): the weight is a tensor of d = 3 components that share one unknown variance,
the bias a tensor of d = 1. All data are placed such that both posteriors depend on r = |theta - m|
(weight) or on theta (bias) alone, so the discrete-time law of a chain is that of a Markov chain in
one dimension, whose transition density is elementary. It is advanced on a grid: no step-size bias
is left in the comparison, and the bias against the Student-t is its distance from that law.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from monte_carlo import assert_same_distribution
from scipy import stats
from scipy.integrate import cumulative_trapezoid
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors

ALPHA, BETA, MEAN = 3.0, 2.0, 0.7  # alpha = 3: six degrees of freedom, four finite moments
CHAINS, STEPS, ETA = 4096, 50, 0.05
PRIOR = priors.NormalInverseGamma(alpha=ALPHA, beta=BETA, mean=MEAN)
SCALE = (BETA / ALPHA) ** 0.5
Array = np.ndarray


class Target(NamedTuple):
    """One tensor's potential, with n data: n |theta - centre|^2 / (2 sigma^2) - ln prior."""

    d: int  # 3: radial about MEAN (centre = MEAN); 1: the line
    step: float  # eta times the preconditioner's C
    centre: float = MEAN
    data: int = 0
    sigma: float = 1.0

    @property
    def grid(self) -> Array:
        """r, or theta - MEAN. Mass beyond 25 is below 1e-7; 0.025 is a tenth of the noise."""
        return np.arange(0.0 if self.d == 3 else -25.0, 25.0, 0.025)

    def density(self) -> Array:
        """The continuous posterior, by quadrature."""
        r = self.grid
        log_p = -(ALPHA + self.d / 2) * np.log(BETA + r**2 / 2)
        log_p -= self.data / (2 * self.sigma**2) * (r + MEAN - self.centre) ** 2
        return self.normalise(np.exp(log_p) * (r**2 if self.d == 3 else 1.0))

    def normalise(self, p: Array) -> Array:
        return p / np.trapezoid(p, self.grid)

    def transition(self, start: Array) -> Array:
        """Density at the grid after one step from each of ``start``: (grid, start)."""
        n = max(self.data, 1)
        v = (ALPHA + self.d / 2) / n * start / (BETA + start**2 / 2)
        if self.data:
            v = v + (start + MEAN - self.centre) / self.sigma**2
        mu, s = start - self.step * v, np.sqrt(2 * self.step / n)
        if self.d == 1:
            return stats.norm.pdf(self.grid[:, None], mu, s)
        mu, r = np.maximum(np.abs(mu), 1e-9), self.grid[:, None]  # norm of N(mu e_1, s^2 Id_3)
        return r / mu * stats.norm.pdf(r, mu, s) * -np.expm1(-2 * r * mu / s**2)

    def cdf(self, density: Array):  # type: ignore[no-untyped-def]
        total = cumulative_trapezoid(density, self.grid, initial=0)
        return lambda q: np.interp(q, self.grid, total)


@cache
def law(target: Target, start: float | None) -> Array:
    """Density after STEPS updates from a point, or from the posterior (None)."""
    if start is None:
        p, steps = target.density(), STEPS
    else:
        p, steps = target.transition(np.array([start]))[:, 0], STEPS - 1
    kernel = target.transition(target.grid) * 0.025
    for _ in range(steps):
        p = kernel @ p
    return target.normalise(p)


def run(sampler: Langevin, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """theta - MEAN after STEPS updates: weight (chain, 3) and bias (chain,)."""
    state = sampler.init()
    for _ in range(STEPS):
        state, _ = sampler.step(state, data)
    return state.params["weight"][:, 0] - MEAN, state.params["bias"][:, 0] - MEAN


def model() -> nn.Module:
    linear = nn.Linear(3, 1).double()
    for p in linear.parameters():
        nn.init.constant_(p, MEAN)
    return linear


def assert_law(sample: Tensor, target: Target, start: float | None, exact) -> None:  # type: ignore[no-untyped-def]
    """Against the discrete-time law, and against the continuous target ``exact``."""
    discrete = target.cdf(law(target, start))
    assert_same_distribution(sample, discrete)
    bias = float(np.abs(discrete(target.grid) - exact(target.grid)).max())
    print(f"d={target.d}: bias {bias:.4f}")
    assert bias < 0.03
    assert_same_distribution(sample, exact, bias)


def student(q: Array) -> Array:
    return stats.t.cdf(q, 2 * ALPHA, scale=SCALE)


def radial(r: Array) -> Array:
    return stats.f.cdf(r**2 / (3 * SCALE**2), 3, 2 * ALPHA)


def nothing(outputs: Tensor, y: Tensor) -> Tensor:
    """The log-loss of no data at all."""
    return 0.0 * outputs.sum(1)


@pytest.mark.parametrize("start", ["prior", "model"])
@pytest.mark.parametrize(
    ("preconditioner", "c"),
    [
        (preconditioners.Euclidean(), 1.0),
        # No data, no Fisher: C = 1/damping. Prior gradients in the metric would change it.
        (preconditioners.QuasiDiagonalFisher(damping=0.5), 2.0),
    ],
    ids=["euclidean", "quasi-diagonal"],
)
def test_without_data(preconditioner, c: float, start: str) -> None:  # type: ignore[no-untyped-def]
    """The chain samples the prior itself: Student-t, three components sharing one variance."""
    sampler = Langevin(
        model(), likelihoods.LogLoss(nothing), prior=PRIOR, preconditioner=preconditioner,
        step_size=ETA / c, chains=CHAINS, num_data=1, init=start,
    )  # fmt: skip
    weight, bias = run(sampler, (torch.ones(1, 3).double(), torch.ones(1, 1).double()))
    origin = None if start == "prior" else 0.0
    assert_law(bias, Target(d=1, step=ETA), origin, student)
    r = weight.norm(dim=1)
    target = Target(d=3, step=ETA)
    assert_law(r, target, origin, radial)
    # A direction uniform on the sphere has uniform coordinates (Archimedes).
    for component in (weight / r[:, None]).mT:
        assert_same_distribution(component, stats.uniform(-1, 2).cdf)
    # P(component <= q) = E[P(r u <= q)], u uniform: the step-size bias of one component.
    density, q = law(target, origin), np.linspace(-5, 5, 201)
    given_r = np.clip((q[:, None] / np.maximum(target.grid, 1e-9) + 1) / 2, 0, 1)
    discrete = np.trapezoid(given_r * density, target.grid, axis=1)
    for component in weight.mT:
        assert_same_distribution(component, student, float(np.abs(discrete - student(q)).max()))


def test_prior_draws() -> None:
    """init="prior": exact draws, before any step."""
    sampler = Langevin(
        model(), likelihoods.LogLoss(nothing), prior=PRIOR, chains=CHAINS, init="prior", seed=2
    )
    start = sampler.init().params
    weight = start["weight"][:, 0] - MEAN
    assert_same_distribution(start["bias"][:, 0] - MEAN, student)
    assert_same_distribution(weight.norm(dim=1), radial)
    for component in weight.mT:
        assert_same_distribution(component, student)


def test_with_a_gaussian_likelihood() -> None:
    """Orthogonal inputs: the weight's likelihood is centred on its prior, the bias's is not."""
    x = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]).double()
    sigma, centre, eta = 1.5, MEAN + 1.5, 0.1
    y = x.sum(1, keepdim=True) * MEAN + centre
    sampler = Langevin(
        model(), likelihoods.Gaussian(sigma=sigma), prior=PRIOR, chains=CHAINS, num_data=4,
        preconditioner=preconditioners.Euclidean(), step_size=eta,
    )  # fmt: skip
    weight, bias = run(sampler, (x, y))
    for sample, target in [
        (bias, Target(d=1, step=eta, centre=centre, data=4, sigma=sigma)),
        (weight.norm(dim=1), Target(d=3, step=eta, data=4, sigma=sigma)),
    ]:
        assert_law(sample, target, 0.0, target.cdf(target.density()))
