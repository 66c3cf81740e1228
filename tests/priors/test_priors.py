"""Priors: gradient = derivative of log_density, densities against scipy, patterns, chains."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from natural_langevin import priors, random

ALL = [
    priors.Gaussian(0.3),
    priors.Gaussian(variance=2.0, mean=-1.5),
    priors.Gaussian(variance=torch.tensor([0.1, 1.0, 10.0]), mean=torch.tensor([0.0, 1.0, 2.0])),
    priors.NormalInverseGamma(),
    priors.NormalInverseGamma(alpha=2.0, beta=0.3, mean=0.7),
    priors.NormalInverseGamma(alpha=2.0, beta=0.3, mean=torch.tensor([0.0, 1.0, 2.0])),
    priors.Flat(),
]


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


@pytest.mark.parametrize("prior", [p for p in ALL if p != priors.Flat()], ids=repr)
def test_precision_is_the_mean_curvature(prior: priors.Prior) -> None:
    """E[(d ln alpha)^2] = -E[d^2 ln alpha] over prior samples of a large tensor, chain by chain."""
    repeats = 400
    theta = torch.stack(
        [prior.sample(keys(3) + 1000 * r, (500,), torch.float64) for r in range(repeats)]
    )
    measured = torch.stack([prior.gradient(t).square().mean(1) for t in theta])
    expected = torch.as_tensor(prior.precision, dtype=torch.float64)
    error = measured.std(0) / math.sqrt(repeats)
    # A learned variance has this precision in the limit of many components: 2 / 500 is left.
    assert ((measured.mean(0) - expected).abs() < 5 * error + 0.004 * expected).all()


def test_a_flat_prior_has_no_precision() -> None:
    assert priors.Flat().precision == 0


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
        (priors.Gaussian(1.0, mean=torch.ones(3)), ValueError, ["mean", "3 values for 2 chains"]),
        (
            priors.NormalInverseGamma(mean=torch.ones(3)),
            ValueError,
            ["mean", "3 values for 2 chains"],
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
    ],
)
def test_bad_values(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_conjugate_arguments_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        priors.NormalInverseGamma(0.5, 0.5)
