"""Priors: gradient = derivative of log_density, densities against scipy, patterns, chains."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors, random
from natural_langevin.priors.constrained import Constrained

ALL = [
    priors.Gaussian(0.3),
    priors.Gaussian(variance=2.0, mean=-1.5),
    priors.Gaussian(variance=torch.tensor([0.1, 1.0, 10.0]), mean=torch.tensor([0.0, 1.0, 2.0])),
    priors.NormalInverseGamma(),
    priors.NormalInverseGamma(alpha=2.0, beta=0.3, mean=0.7),
    priors.NormalInverseGamma(alpha=2.0, beta=0.3, mean=torch.tensor([0.0, 1.0, 2.0])),
    priors.Flat(),
    priors.StudentT(0.4, df=3.5),
    priors.StudentT(0.4, df=3.5, mean=torch.tensor([0.0, 1.0, 2.0])),
    priors.StudentT(torch.tensor([0.1, 0.5, 2.0])),
    priors.Laplace(0.7),
    priors.Laplace(0.7, mean=0.4),
    priors.Laplace(torch.tensor([0.1, 0.5, 2.0])),
    priors.ScaleMixture((1.0, 0.04), (1, 3)),
    priors.ScaleMixture((1.0, 0.04), (1, 3), mean=-0.3),
    priors.HalfNormal(1.3),
    priors.HalfCauchy(torch.tensor([0.5, 1.0, 2.0])),
    priors.Gamma(shape=2.5, rate=3.0),
    priors.InverseGamma(shape=3.0, scale=2.0),
    priors.LogNormal(mean=0.5, variance=0.4),
    priors.Positive(),
    priors.Beta(2.0, 3.5),
    priors.Beta(1.0, 1.0, low=-2.0, high=5.0),
]
IMPROPER = (priors.Flat, priors.Positive)
PROPER = [p for p in ALL if not isinstance(p, IMPROPER)]
INDEPENDENT = [p for p in PROPER if not isinstance(p, priors.NormalInverseGamma)]


def points(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, *shape, generator=generator, dtype=torch.float64)


def keys(chains: int) -> Tensor:
    return random.stream(random.origin(0, random.INIT, torch.arange(chains)), 0)


@pytest.mark.parametrize("prior", ALL, ids=repr)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 2), (2, 3, 2)])
def test_gradient_is_the_derivative(prior: priors.Prior, shape: tuple[int, ...]) -> None:
    theta = points(*shape).requires_grad_()
    density = prior.log_density(theta)
    assert density.shape == (3,)
    gradient = prior.gradient(theta.detach())
    if isinstance(prior, priors.Flat):
        assert not density.any()
        assert not gradient.any()
        return
    (expected,) = torch.autograd.grad(density.sum(), theta)
    assert gradient.shape == theta.shape
    assert gradient.count_nonzero() == gradient.numel()
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", ALL, ids=repr)
def test_chains_are_independent(prior: priors.Prior) -> None:
    """Each chain has its own prior: its density and gradient ignore the other chains."""
    theta = points(4, 2)
    moved = theta.clone()
    moved[1:] += 1
    assert torch.equal(prior.log_density(theta)[0], prior.log_density(moved)[0])
    assert torch.equal(prior.gradient(theta)[0], prior.gradient(moved)[0])


def test_gaussian_density() -> None:
    theta = points(4, 2)
    variances, means = torch.tensor([0.1, 1.0, 10.0]), torch.tensor([0.0, 1.0, 2.0])
    density = priors.Gaussian(variance=variances, mean=means).log_density(theta)
    for c in range(3):
        scale = math.sqrt(float(variances[c].double()))
        expected = stats.norm(float(means[c]), scale).logpdf(theta[c].numpy()).sum()
        assert float(density[c]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 5])
@pytest.mark.parametrize(("alpha", "beta", "mean"), [(0.5, 0.5, 0.0), (2.0, 0.3, 0.7)])
def test_normal_inverse_gamma_is_the_mixture(
    dimension: int, alpha: float, beta: float, mean: float
) -> None:
    """The integral over the variance, done numerically, with its normalisation."""
    theta = points(dimension)
    prior = priors.NormalInverseGamma(alpha=alpha, beta=beta, mean=mean)
    for c in range(3):
        squares = float((theta[c] - mean).square().sum())

        def integrand(log_v: float, squares: float = squares) -> float:
            v = math.exp(log_v)
            log_normal = -(squares / v + dimension * math.log(2 * math.pi * v)) / 2
            log_gamma = alpha * math.log(beta) - math.lgamma(alpha) - alpha * log_v - beta / v
            return math.exp(log_normal + log_gamma)

        mixture, _ = integrate.quad(integrand, -12, 40, limit=200)
        assert float(prior.log_density(theta)[c]) == pytest.approx(math.log(mixture), abs=1e-8)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_normal_inverse_gamma_samples(alpha: float) -> None:
    """A component is Student-t with 2 alpha degrees of freedom and scale sqrt(beta / alpha); the
    components of one chain share their variance, those of different chains do not."""
    beta, mean = 0.3, 1.5
    prior = priors.NormalInverseGamma(alpha=alpha, beta=beta, mean=mean)
    draws = prior.sample(keys(4000), (2, 2), torch.float64).reshape(4000, 4)
    law = stats.t(2 * alpha, loc=mean, scale=math.sqrt(beta / alpha))
    for component in draws.T:
        assert stats.kstest(component.numpy(), law.cdf).pvalue > 1e-4
    size = (draws - mean).abs().log()
    # ln|theta| = ln|z| + ln(variance) / 2, and var(ln|z|) = pi^2 / 8.
    shared = float(torch.special.polygamma(1, torch.tensor(alpha))) / 4
    expected = shared / (shared + math.pi**2 / 8)
    assert abs(torch.corrcoef(size.T)[0, 1] - expected) < 5 / math.sqrt(4000)
    assert abs(torch.corrcoef(torch.stack([size[:-1, 0], size[1:, 0]]))[0, 1]) < 5 / math.sqrt(4000)


def test_gaussian_samples() -> None:
    variances = torch.tensor([0.25, 4.0])
    draws = priors.Gaussian(variances, mean=1.0).sample(keys(2), (100, 50), torch.float64)
    assert draws.shape == (2, 100, 50)
    assert draws.dtype == torch.float64
    for c in range(2):
        law = stats.norm(1.0, math.sqrt(float(variances[c])))
        assert stats.kstest(draws[c].flatten().numpy(), law.cdf).pvalue > 1e-4


@pytest.mark.parametrize("prior", PROPER, ids=repr)
def test_one_component_is_normalised_and_its_precision_the_mean_curvature(
    prior: priors.Prior,
) -> None:
    """By quadrature over theta = sinh(t): total 1, and E[(d ln alpha)^2] = -E[d^2 ln alpha]."""
    t = grid(prior)
    theta = t.sinh().expand(3, -1)
    precision = torch.as_tensor(prior.precision, dtype=torch.float64).expand(3)
    for c in range(3):
        one = _alone(prior, c)
        weight = one.log_density(theta[c][:, None]).exp() * t.cosh()
        assert float(torch.trapezoid(weight, t)) == pytest.approx(1, rel=1e-6)
        squares = one.gradient(theta[c][:, None])[:, 0].square()
        curvature = float(torch.trapezoid(weight * squares.nan_to_num(), t))
        if isinstance(prior, priors.NormalInverseGamma):  # the limit of many components
            a = prior.alpha
            assert curvature == pytest.approx(float(precision[c]) * (2 * a + 1) / (2 * a + 3))
        else:
            assert curvature == pytest.approx(float(precision[c]), rel=1e-4)


def grid(prior: priors.Prior) -> Tensor:
    """t for quadrature over theta = sinh(t), without 0, where Laplace's density has its kink; the
    logarithms of positive numbers need not reach far."""
    reach = math.asinh(60) if isinstance(prior, Constrained) else 20
    return torch.linspace(-reach, reach, 200_000).double()


def _alone(prior: priors.Prior, chain: int) -> priors.Prior:
    """The prior of one chain, with numbers for settings."""
    values = {
        k: float(v[chain])
        for k, v in prior.chain_values().items()
        if isinstance(v, Tensor) and v.ndim
    }
    return dataclasses.replace(prior, **values) if values else prior


@pytest.mark.parametrize("prior", INDEPENDENT, ids=repr)
def test_draws_have_the_prior_as_their_law(prior: priors.Prior) -> None:
    """Kolmogorov-Smirnov of 4,000 draws per chain against the density's integral."""
    draws = prior.sample(keys(3), (40, 100), torch.float64).reshape(3, -1)
    t = grid(prior)
    for c in range(3):
        weight = _alone(prior, c).log_density(t.sinh()[:, None]).exp() * t.cosh()
        below = torch.cumulative_trapezoid(weight, t)
        place = np.interp(draws[c].asinh().numpy(), t[1:].numpy(), below.numpy())
        assert stats.kstest(place, "uniform").pvalue > 1e-4


def test_the_precision_of_a_learned_variance_is_its_limit() -> None:
    """E[(d ln alpha)^2] over prior samples of a tensor of many components."""
    prior = priors.NormalInverseGamma(alpha=2.0, beta=0.3, mean=0.7)
    theta = prior.sample(keys(2000), (500,), torch.float64)
    measured = prior.gradient(theta).square().mean(1)
    error = float(measured.std()) / math.sqrt(2000)
    # (2 alpha + d) / (2 alpha + d + 2) of the limit
    assert abs(float(measured.mean()) - prior.precision * 504 / 506) < 5 * error


def test_improper_priors_have_no_precision() -> None:
    assert priors.Flat().precision == 0
    assert priors.Positive().precision == 0


def test_flat_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match=r'improper.*init="model"'):
        priors.Flat().sample(keys(2), (3,), torch.float32)


def test_first_matching_pattern_wins() -> None:
    bias, first, rest = priors.Gaussian(1.0), priors.Gaussian(2.0), priors.Flat()
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    resolved = priors.resolve({"*.bias": bias, "0.*": first, "*": rest}, names, chains=1)
    assert list(resolved) == names
    assert list(resolved.values()) == [first, bias, rest, bias]
    assert set(priors.resolve(rest, names, chains=1).values()) == {rest}


@pytest.mark.parametrize(
    ("prior", "error", "words"),
    [
        ({"*.bais": priors.Flat(), "*": priors.Flat()}, ValueError, ["*.bais", "0.weight"]),
        ({"*.bias": priors.Flat()}, ValueError, ["0.weight", "*.bias", 'last pattern "*"']),
        ({"*": 0.1}, TypeError, ["must be a Prior", "0.1"]),
        ("gaussian", TypeError, ["must be a Prior", "gaussian"]),
        (priors.Gaussian(torch.ones(3)), ValueError, ["variance", "3 values for 2 chains"]),
        (priors.Gaussian(1.0, mean=torch.ones(3)), ValueError, ["mean of shape (3,)", "2 chains"]),
        (
            priors.NormalInverseGamma(mean=torch.ones(3)),
            ValueError,
            ["mean of shape (3,)", "2 chains"],
        ),
    ],
)
def test_bad_mappings(prior: priors.PriorLike, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        priors.resolve(prior, ["0.weight", "0.bias"], chains=2)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priors.Gaussian(0.0), r"variance must be positive and finite, got 0\.0"),
        (lambda: priors.Gaussian(math.nan), "variance must be positive and finite, got nan"),
        (lambda: priors.Gaussian(torch.tensor([1.0, -1.0])), "variance must be positive"),
        (lambda: priors.Gaussian(torch.ones(2, 2)), r"one value per chain, got shape \(2, 2\)"),
        (lambda: priors.Gaussian(1.0, mean=math.inf), "mean must be finite, got inf"),
        (lambda: priors.NormalInverseGamma(alpha=-1), "alpha must be positive and finite, got -1"),
        (lambda: priors.NormalInverseGamma(beta=0), "beta must be positive and finite, got 0"),
        (lambda: priors.StudentT(df=0.0), "df must be positive and finite, got 0.0"),
        (lambda: priors.Laplace(-1.0), "scale must be positive and finite, got -1.0"),
        (lambda: priors.ScaleMixture((1.0, 0.0)), "variances must be positive and finite"),
        (lambda: priors.ScaleMixture((1.0,)), "1 variances have 2 weights"),
        (lambda: priors.FanIn(0.0), "gain must be positive and finite, got 0.0"),
        (lambda: priors.Correlated(1.0, torch.ones(2, 3)), r"symmetric matrix.*got \(2, 3\)"),
        (lambda: priors.Correlated(1.0, torch.ones(2, 2)), "positive definite: add a small"),
        (lambda: priors.smooth_pixels(3, 3, -1.0), "length -1.0"),
        (lambda: priors.HalfNormal(0.0), "scale must be positive and finite, got 0.0"),
        (lambda: priors.Gamma(shape=-1, rate=1), "shape must be positive and finite, got -1"),
        (lambda: priors.Beta(low=1.0, high=1.0), "low < high, got 1.0 and 1.0"),
    ],
)
def test_bad_values(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_conjugate_arguments_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        priors.NormalInverseGamma(0.5, 0.5)


def test_fan_in_becomes_each_tensors_gaussian() -> None:
    """(out, in, ...) have gain^2 / (in ...), vectors gain^2; a gain per chain stays one."""
    parameters = {"w": torch.zeros(5, 8), "c": torch.zeros(4, 2, 3, 3), "b": torch.zeros(5)}
    resolved = priors.resolve(priors.FanIn(torch.tensor([1.0, 2.0])), parameters, chains=2)
    for name, size in (("w", 8), ("c", 18), ("b", 1)):
        torch.testing.assert_close(resolved[name].variance, torch.tensor([1.0, 4.0]) / size)
    with pytest.raises(ValueError, match="instead of their names"):
        priors.resolve(priors.FanIn(), ["w"], chains=1)


def covariance(size: int) -> Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(1)).double()
    return root @ root.T + 0.1 * torch.eye(size)


@pytest.mark.parametrize("variance", [0.5, torch.tensor([0.1, 1.0, 10.0])])
def test_correlated_is_a_gaussian_over_a_units_inputs(variance: float | Tensor) -> None:
    k = covariance(6)
    prior = priors.Correlated(variance, k)
    theta = points(4, 2, 3).requires_grad_()
    density = prior.log_density(theta)
    for c, found in enumerate(density.tolist()):
        v = float(torch.as_tensor(variance).expand(3)[c].double())
        law = stats.multivariate_normal(np.zeros(6), v * k.numpy())
        expected = law.logpdf(theta[c].detach().reshape(4, 6).numpy()).sum()
        assert found == pytest.approx(expected, rel=1e-6)  # a float32 variance
    (expected,) = torch.autograd.grad(density.sum(), theta)
    torch.testing.assert_close(prior.gradient(theta.detach()), expected, rtol=1e-9, atol=1e-9)
    precision = torch.as_tensor(k.inverse().diagonal().mean() / variance)
    torch.testing.assert_close(torch.as_tensor(prior.precision), precision, check_dtype=False)
    draws = prior.sample(keys(3), (20_000, 2, 3), torch.float64).reshape(3, 20_000, 6)
    for c in range(3):
        v = float(torch.as_tensor(variance).expand(3)[c].double())
        white = torch.linalg.solve_triangular(torch.linalg.cholesky(v * k), draws[c].T, upper=False)
        found = white @ white.T / 20_000
        assert float((found - torch.eye(6)).abs().max()) < 5 * math.sqrt(2 / 20_000)


def test_correlated_knows_its_tensor() -> None:
    prior = priors.Correlated(0.5, covariance(6))
    parameters = {"0.weight": torch.zeros(4, 6), "0.bias": torch.zeros(4)}
    resolved = priors.resolve({"0.weight": prior, "*": priors.Flat()}, parameters, chains=1)
    theta = points(4, 6).float()
    assert resolved["0.weight"].gradient(theta).dtype == torch.float32
    torch.testing.assert_close(
        resolved["0.weight"].gradient(theta), prior.gradient(theta.double()).float()
    )
    with pytest.raises(ValueError, match=r'6 inputs does not fit .* \(4,\).*"0.weight"'):
        priors.resolve(prior, parameters, chains=1)
    other = priors.Correlated(0.5, covariance(6) + 1e-9)
    assert repr(prior) != repr(other)  # so that runs are told apart
    chosen = priors.of_chains(
        {"w": priors.Correlated(torch.ones(3), covariance(6))}, torch.arange(2)
    )
    assert chosen["w"].variance.shape == (2,)


def test_smooth_pixels_are_the_correlations_of_blurred_weights() -> None:
    k = priors.smooth_pixels(5, 7, 0.8)
    assert k.shape == (35, 35)
    torch.testing.assert_close(k.diagonal(), torch.ones(35).double())
    assert torch.linalg.eigvalsh(k).min() > 0
    rows = {(i, j): 7 * i + j for i in range(5) for j in range(7)}
    centre = rows[2, 3]
    near, diagonal, far = (float(k[centre, rows[at]]) for at in ((2, 4), (1, 2), (2, 6)))
    assert 1 > near > diagonal > far > 0
    # A rough part of 1 is no smoothing at all.
    torch.testing.assert_close(
        priors.smooth_pixels(5, 7, 0.8, rough=1.0), torch.eye(35, dtype=torch.float64)
    )


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_ordered_has_the_density_of_order_statistics(shape: tuple[int, ...]) -> None:
    """ln alpha(u) = ln(K! prod N(x)) + ln |dx/du|, with the Jacobian from autograd; and its
    exponential integrates to 1, by importance sampling from a wide Gaussian over u."""
    prior = priors.Ordered(variance=2.0, mean=0.5)
    u = points(*shape)
    x = prior.constrain(u)
    assert (x.diff(dim=-1) > 0).all()
    expected = stats.norm(0.5, math.sqrt(2)).logpdf(x.numpy()).reshape(3, -1).sum(1)
    for c in range(3):
        for row in u[c].reshape(-1, 3):
            jacobian = torch.autograd.functional.jacobian(prior.constrain, row)
            expected[c] += float(torch.linalg.slogdet(jacobian)[1]) + math.lgamma(4)
    torch.testing.assert_close(prior.log_density(u), torch.tensor(expected))
    if shape != (3,):
        return
    proposal = 2.5 * torch.randn(200_000, 3, generator=torch.Generator().manual_seed(0)).double()
    log_q = stats.norm(0, 2.5).logpdf(proposal.numpy()).sum(1)
    ratio = (prior.log_density(proposal) - torch.tensor(log_q)).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(200_000)


def test_ordered_draws_are_sorted_gaussians() -> None:
    prior = priors.Ordered(variance=2.0, mean=0.5)
    u = prior.sample(keys(5000), (3,), torch.float64)
    smallest = prior.constrain(u)[:, 0].numpy()
    law = stats.norm(0.5, math.sqrt(2))
    assert stats.kstest(smallest, lambda t: 1 - (1 - law.cdf(t)) ** 3).pvalue > 1e-4


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        (priors.HalfNormal(1.3), stats.halfnorm(scale=1.3)),
        (priors.HalfCauchy(2.5), stats.halfcauchy(scale=2.5)),
        (priors.Gamma(shape=0.7, rate=3.0), stats.gamma(0.7, scale=1 / 3)),
        (priors.InverseGamma(shape=3.0, scale=2.0), stats.invgamma(3, scale=2)),
        (priors.LogNormal(mean=0.0, variance=0.4), stats.lognorm(math.sqrt(0.4))),
        (priors.Beta(2.0, 0.5), stats.beta(2.0, 0.5)),
        (priors.Beta(1.0, 1.0, low=-2.0, high=5.0), stats.uniform(-2, 7)),
    ],
    ids=lambda value: repr(value) if isinstance(value, priors.Prior) else "",  # no addresses
)  # fmt: skip
def test_what_the_model_sees_has_scipys_law(prior: priors.Prior, law) -> None:
    """Draws of u, constrained, in distribution; and the density of u by the change of variables."""
    u = prior.sample(keys(1), (5000,), torch.float64)
    x = prior.constrain(u)
    assert stats.kstest(x[0].numpy(), law.cdf).pvalue > 1e-4
    step = 1e-6
    below = law.cdf(prior.constrain(points(1) + step).numpy())
    slope = (below - law.cdf(prior.constrain(points(1) - step).numpy())) / (2 * step)
    # A difference of probabilities over 2e-6 has lost ten of their sixteen digits.
    np.testing.assert_allclose(
        prior.log_density(points(1)).exp(), slope[:, 0], rtol=1e-6, atol=1e-9
    )


def test_a_run_with_priors_that_know_their_tensors() -> None:
    """Chosen by name, drawn as a start, sampled with, and asked for again by the diagnosis."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    x, y = torch.randn(40, 6), torch.arange(40) % 2
    prior = {
        "0.weight": priors.Correlated(0.5, priors.smooth_pixels(2, 3, 1.0)),
        "2.weight": priors.FanIn(1.5),
        "*": priors.StudentT(0.3),
    }
    sampler = Langevin(
        model, likelihoods.Categorical(), prior=prior, chains=3, step_size=1e-3, init="prior",
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=0.1), compile=False,
    )  # fmt: skip
    posterior = sampler.sample((x, y), 30, batch_size=20, burn_in=10, thin=2, progress=False)
    assert posterior.prior["2.weight"] == priors.Gaussian(1.5**2 / 5)
    assert posterior.predict(x).mean.isfinite().all()
    again = posterior.diagnose(x, data=(x, y), prior=prior)
    assert "temperature" in str(again)


class Cauchy(priors.Prior):
    """A stranger's prior: its density and nothing else."""

    def log_density(self, theta: Tensor) -> Tensor:
        return -torch.log1p(theta.square()).flatten(1).sum(1)


def test_a_density_and_its_curvature_are_a_prior() -> None:
    theta = torch.linspace(-3, 3, 12).reshape(2, 6)
    torch.testing.assert_close(Cauchy().gradient(theta), -2 * theta / (1 + theta**2))
    x, y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2

    def run(prior):
        sampler = Langevin(
            nn.Linear(2, 2), likelihoods.Categorical(), prior=prior, chains=2, step_size=1e-3
        )
        return sampler.sample((x, y), 4, burn_in=0, thin=1, batch_size=10, progress=False)

    with pytest.raises(NotImplementedError, match=r"Cauchy has no precision: define"):
        run(Cauchy())
    with pytest.raises(NotImplementedError, match=r"Cauchy has no draws: define sample"):
        Langevin(nn.Linear(2, 2), likelihoods.Categorical(), prior=Cauchy(), init="prior")
    found = run(type("Known", (Cauchy,), {"precision": 0.5})())
    assert found.samples["weight"].shape == (2, 4, 2, 2)
    assert found.samples["weight"].isfinite().all()
