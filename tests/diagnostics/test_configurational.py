"""Temperature of the samples against exact draws, and against the exact bias of a finite step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, preconditioners, priors

NUM_DATA, FEATURES, SIGMA = 60, 5, 0.5
PRIOR = priors.Gaussian(variance=0.5)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_DATA, FEATURES, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True) + SIGMA * torch.randn(
        NUM_DATA, 1, generator=generator, dtype=torch.float64
    )


def precision() -> tuple[Tensor, Tensor]:
    """Hessian of U and its minimum, for nn.Linear without bias."""
    x, y = data()
    hessian = x.mT @ x / SIGMA**2 + torch.eye(FEATURES, dtype=x.dtype) / 0.5
    return hessian, torch.linalg.solve(hessian, (x.mT @ y)[:, 0] / SIGMA**2)


def exact_draws(temperature: float, heat: Tensor | float = 1.0, *, seed: int = 0) -> Posterior:
    """Independent draws of the posterior, with variances multiplied by ``heat`` along the
    eigenvectors of the Hessian."""
    hessian, centre = precision()
    values, vectors = torch.linalg.eigh(hessian)
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(4, 250, FEATURES, generator=generator, dtype=torch.float64)
    theta = centre + (z * (temperature * heat / values).sqrt()) @ vectors.mT
    posterior = Posterior(
        model=nn.Linear(FEATURES, 1, bias=False).double(),
        likelihood=likelihoods.Gaussian(SIGMA),
        samples={"weight": theta[:, :, None]},
        mean={"weight": theta.mean(1)[:, None]},
        last={"weight": theta[:, -1:]},
        diverged=torch.full((4,), -1),
        config={"temperature": [temperature] * 4, "num_data": NUM_DATA},
    )
    posterior.prior = {"weight": PRIOR}
    return posterior


@pytest.mark.parametrize(
    ("temperature", "batch_size"),
    [
        (1.0, NUM_DATA),
        pytest.param(0.1, NUM_DATA, marks=pytest.mark.thorough),
        (1.0, 20),
        pytest.param(0.1, 20, marks=pytest.mark.thorough),
    ],
)
def test_exact_draws_read_one(temperature: float, batch_size: int) -> None:
    """Within 4 errors; with all data the error is that of a chi-squared, sqrt(2 / (n d))."""
    found = exact_draws(temperature).diagnose(
        data()[0][:5], data=data(), batch_size=batch_size, max_draws=250
    )
    reading = found.configurational.temperature
    assert abs(reading.value - 1) < 4 * reading.error
    if batch_size == NUM_DATA:
        expected = (2 / (1000 * FEATURES)) ** 0.5
        assert expected / 1.5 < reading.error < expected * 1.5
    assert not any("samples are too" in v for v in found.verdicts)


@pytest.mark.parametrize(
    ("heat", "word"), [(1.4, "hot"), pytest.param(0.6, "cold", marks=pytest.mark.thorough)]
)
def test_wrong_heat_is_read_and_said(heat: float, word: str) -> None:
    found = exact_draws(0.5, heat).diagnose(data()[0][:5], data=data(), max_draws=250)
    reading = found.configurational.temperature
    assert abs(reading.value - heat) < 4 * reading.error
    assert found.configurational.bias == reading.value - 1
    assert any(f"samples are too {word}" in v for v in found.verdicts)


def test_the_bias_of_a_large_step_is_what_is_read() -> None:
    """Full batches, C = Id: along an eigenvalue h of the Hessian / N the chain's variance is
    T / (N h (1 - eta h / 2)), so the samples' temperature is the mean of 1 / (1 - eta h / 2)."""
    hessian, _ = precision()
    h = torch.linalg.eigvalsh(hessian) / NUM_DATA
    eta = float(1.2 / h.max())
    expected = float((1 / (1 - eta * h / 2)).mean())
    assert expected > 1.5
    sampler = Langevin(
        nn.Linear(FEATURES, 1, bias=False).double(), likelihoods.Gaussian(SIGMA), prior=PRIOR,
        preconditioner=preconditioners.Euclidean(), step_size=eta, chains=16,
    )  # fmt: skip
    posterior = sampler.sample(
        data(), steps=280, batch_size=NUM_DATA, burn_in=30, thin=4, progress=False
    )
    found = posterior.diagnose(data()[0][:5], data=data(), max_draws=250)
    reading = found.configurational.temperature
    assert abs(reading.value - expected) < 4 * reading.error
    assert reading.error < 0.1
    assert any("bias of the step size" in v for v in found.verdicts)


def test_a_loaded_posterior_needs_its_prior() -> None:
    posterior = exact_draws(1.0)
    posterior.prior = None
    with pytest.raises(ValueError, match=r"prior=priors\.Gaussian"):
        posterior.diagnose(data()[0][:5], data=data())
    given = posterior.diagnose(data()[0][:5], data=data(), prior=PRIOR)
    assert (
        given.configurational
        == exact_draws(1.0).diagnose(data()[0][:5], data=data()).configurational
    )
    wrong = posterior.diagnose(data()[0][:5], data=data(), prior=priors.Gaussian(1e-3))
    assert wrong.configurational.temperature.differs_from(1.0)


def test_a_diverged_chain_is_left_out() -> None:
    posterior = exact_draws(1.0)
    posterior.diverged[2] = 7
    posterior.samples["weight"][2, 100:] = torch.nan
    found = posterior.diagnose(data()[0][:5], data=data(), max_draws=250)
    reading = found.configurational.temperature
    assert abs(reading.value - 1) < 4 * reading.error
    assert "Chain 2 diverged at step 7" in str(found)
