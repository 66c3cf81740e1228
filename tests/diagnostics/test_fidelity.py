"""Posteriors held against Metropolis-adjusted chains: right, too hot and too cold ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, diagnostics, dynamics, likelihoods, models, preconditioners
from natural_langevin import priors as p
from natural_langevin.diagnostics import exact_reference
from natural_langevin.diagnostics.exact_reference import _binned, _kolmogorov


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Regression:
    """A linear model, whose posterior is Gaussian; sampled at a temperature once it is needed."""

    def __init__(self) -> None:
        g = generator()
        x = torch.randn(60, 2, generator=g)
        y = x @ torch.tensor([[1.0], [-0.5]]) + 0.3 * torch.randn(60, 1, generator=g)
        self.data, self._sampled = (x, y), dict[float, Any]()

    def at(self, temperature: float) -> Any:
        if temperature not in self._sampled:
            sampler = Langevin(
                nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.3), prior=p.Gaussian(1.0),
                preconditioner=preconditioners.Euclidean(), step_size=2e-3,
                temperature=temperature, chains=4,
            )  # fmt: skip
            self._sampled[temperature] = sampler.sample(
                self.data, steps=6000, batch_size=60, burn_in=1000, thin=10, progress=False
            )
        return self._sampled[temperature]


@pytest.fixture(scope="module")
def regression() -> Regression:
    return Regression()


@pytest.mark.parametrize(
    ("temperature", "heat"),
    [
        pytest.param(0.25, "too cold", marks=pytest.mark.thorough),
        (1.0, ""),
        pytest.param(4.0, "too hot", marks=pytest.mark.thorough),
    ],
)
def test_numbers_and_the_temperature_of_a_gaussian_posterior(
    regression: Regression, temperature: float, heat: str
) -> None:
    found = diagnostics.fidelity(
        regression.at(temperature), regression.data, trajectories=100, steps=3
    )
    # dE/dT = Var U is exact here: d/2 T, so the reading is the temperature within its error.
    assert abs(found.temperature.value - temperature) < 5 * found.temperature.error
    assert found.heat == heat
    assert found.near == (temperature == 1.0)
    assert found.agreement is None
    assert found.kolmogorov is not None
    assert (heat or "indistinguishable") in str(found)
    exact = found.reference.samples["weight"].std()
    assert found.reference.chains == 4
    assert found.acceptance > 0.4
    assert torch.isfinite(exact)


def test_classes_of_a_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    # Network, data and prior are the same: the first reference, at T = 1, serves both posteriors.
    monkeypatch.setattr(exact_reference, "_reference_draws", once(exact_reference._reference_draws))
    x = torch.randn(80, 2, generator=generator())
    y = (x[:, 0] * x[:, 1] > 0).long()

    def sampled(temperature: float) -> Any:
        sampler = Langevin(
            models.mlp(2, 2, (6,), activation=nn.Tanh), likelihoods.Categorical(),
            prior=p.Gaussian(1.0), dynamics=dynamics.Underdamped(friction=0.1), step_size=1e-3,
            temperature=temperature, chains=4,
        )  # fmt: skip
        return sampler.sample(
            (x, y), steps=5000, batch_size=80, burn_in=1500, thin=25, progress=False
        )

    # Between and beyond the data: near them every network says the same, at any temperature.
    at = 3 * torch.randn(80, 2, generator=generator())
    right = diagnostics.fidelity(sampled(1.0), (x, y), at=at, trajectories=30, steps=8)
    cold = diagnostics.fidelity(sampled(0.01), (x, y), at=at, trajectories=30, steps=8)
    assert right.agreement is not None
    assert right.agreement > 0.95
    assert right.total_variation < 0.05
    assert cold.heat == "too cold"
    assert not cold.near
    assert cold.total_variation > right.total_variation
    assert "class of" in str(right)
    assert "too cold" in str(cold)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls it the first time, and gives the same answer afterwards."""
    answers: list[Any] = []

    def kept(*arguments: Any, **options: Any) -> Any:
        if not answers:
            answers.append(function(*arguments, **options))
        return answers[0]

    return kept


def test_large_networks_are_refused_with_the_reason() -> None:
    sampler = Langevin(models.mlp(30, 2, (700,)), likelihoods.Categorical(), step_size=1e-4)
    x, y = torch.randn(20, 30), torch.arange(20) % 2
    posterior = sampler.sample((x, y), steps=2, batch_size=10, progress=False)
    with pytest.raises(ValueError, match=r"23,102 parameters on 20 rows is too large.*limits are"):
        diagnostics.fidelity(posterior, (x, y))


def test_a_posterior_without_its_prior_asks_for_it(regression: Regression) -> None:
    posterior = regression.at(1.0)
    known, posterior.prior = posterior.prior, None
    try:
        with pytest.raises(ValueError, match=r"prior=\.\.\."):
            diagnostics.fidelity(posterior, regression.data)
    finally:
        posterior.prior = known


def test_distances_of_known_samples() -> None:
    draws = torch.linspace(0, 1, 1001)[:, None]
    assert _kolmogorov(draws, draws) == 0
    assert _kolmogorov(draws + 0.25, draws) == pytest.approx(0.25, abs=2e-3)
    assert _binned(draws, draws) == pytest.approx(0, abs=2e-3)
    assert _binned(draws + 0.2, draws) == pytest.approx(0.2, abs=5e-3)
    assert _binned(draws + 5, draws) == pytest.approx(0.9, abs=5e-3)


def test_a_posterior_of_standard_units_is_compared_there() -> None:
    """Its prior is one of weights in those: under it, weights of targets in thousands are nowhere
    near, and the reading was some 10^5 times the temperature."""
    x, y = Regression().data
    sampler = Langevin(nn.Linear(2, 1), likelihoods.Gaussian(sigma=300.0), chains=4)
    posterior = sampler.sample((x, 1000 * y), progress=False)
    assert posterior.plan.units is not None
    found = diagnostics.fidelity(posterior, (x, 1000 * y), trajectories=50, steps=3)
    assert abs(found.temperature.value - 1) < 5 * found.temperature.error + 0.1
    assert found.near
    mean = found.reference.predict(x).mean
    assert (mean - 1000 * y).square().mean() < 1.5 * 300**2
