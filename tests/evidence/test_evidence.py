"""Marginal likelihoods against closed forms, and the parts of which they are made."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import evidence, likelihoods, priors
from natural_langevin.evidence import marginal

#: The largest ln p of the known ladder: of the size of many data's.
TOP = -7000.0


def regression(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    truth = torch.randn(d, 1, generator=g)
    return x, x @ truth + 0.5 * torch.randn(n, 1, generator=g)


def closed_form(x: Tensor, y: Tensor, variance: float, sigma: float) -> float:
    a = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    n, d = a.shape
    target = y[:, 0].double()
    precision = a.T @ a / sigma**2 + torch.eye(d).double() / variance
    mean = torch.linalg.solve(precision, a.T @ target / sigma**2)
    return float(
        -n / 2 * math.log(2 * math.pi * sigma**2) - target @ target / (2 * sigma**2)
        + mean @ precision @ mean / 2 - torch.logdet(precision) / 2 - d / 2 * math.log(variance)
    )  # fmt: skip


def test_the_closed_form_of_linear_regression() -> None:
    x, y = regression(60, 2)
    torch.manual_seed(0)
    found = evidence.log_marginal_likelihood(
        nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.5), (x, y),
        prior=priors.Gaussian(variance=1.0), steps=900, draws=80, prior_draws=128,
    )  # fmt: skip
    exact = closed_form(x, y, 1.0, 0.5)
    print(found, exact)
    assert found.error < 0.3
    assert abs(found.value - exact) < 4 * found.error
    assert abs(found.stepping_stone - exact) < 2
    assert found.powers[-1] == 1
    assert found.unsettled == 0
    assert bool((found.mean.diff() > -4 * found.mean_error.max()).all())
    assert len(found.plot().axes) == 1
    assert "+-" in str(found)


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "d"), [(500, 30), (2000, 8), (10_000, 4)])
def test_the_closed_form_of_more_of_them(n: int, d: int) -> None:
    x, y = regression(n, d, seed=d)
    torch.manual_seed(0)
    found = evidence.log_marginal_likelihood(
        nn.Linear(d, 1), likelihoods.Gaussian(sigma=0.5), (x, y),
        prior=priors.Gaussian(variance=1.0),
    )  # fmt: skip
    exact = closed_form(x, y, 1.0, 0.5)
    print(found, exact)
    assert abs(found.value - exact) < 0.8


def gaussian_ladder(d: int, largest: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """ln p = TOP - largest |w|^2 / 2 under w ~ N(0, Id): powers, its mean and variance, ln Z."""
    beta = marginal.ladder(largest * math.sqrt(d / 2), d)
    precision = 1 + beta * largest
    mean, variance = TOP - largest * d / (2 * precision), largest**2 * d / (2 * precision**2)
    return beta, mean, variance, TOP - d / 2 * math.log1p(largest)


@pytest.mark.parametrize(("d", "largest"), [(3, 50.0), (50, 1e4)])
def test_integration_and_stones_of_a_known_ladder(d: int, largest: float) -> None:
    beta, mean, variance, exact = gaussian_ladder(d, largest)
    below = float(beta[0]) * TOP - d / 2 * math.log1p(float(beta[0]) * largest)
    total, weight, steep = marginal.thermodynamic(beta, mean, variance)
    assert float(total) + below == pytest.approx(exact, abs=0.02)
    for k in (0, 2, -1):  # the weights are the derivative by the means
        moved = mean.clone()
        moved[k] += 1
        change = float(marginal.thermodynamic(beta, moved, variance)[0] - total)
        assert change == pytest.approx(float(weight[k]), rel=1e-6, abs=1e-9)
        wider = variance.clone()
        wider[k] *= 0.999
        change = float(marginal.thermodynamic(beta, mean, wider)[0] - total)
        expected = float(steep[k] * (wider[k] - variance[k]))
        assert change == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert float(steep[-1]) < -0.005
    variance[-1] *= 1e6  # draws of a chain that has not mixed
    wrong = float(marginal.thermodynamic(beta, mean, variance)[0] - total)
    assert abs(wrong) < 0.1 * d
    g = torch.Generator().manual_seed(0)
    draws = []
    for b in beta:
        w = torch.randn(2000, d, generator=g, dtype=torch.float64) / (1 + b * largest).sqrt()
        draws.append(TOP - largest * w.square().sum(1) / 2)
    assert marginal.stepping_stone(beta, draws) + below == pytest.approx(exact, abs=0.3)
    w = torch.randn(4000, d, generator=g, dtype=torch.float64)
    value, error = marginal.from_prior(TOP - largest * w.square().sum(1) / 2, float(beta[0]))
    assert abs(value - below) < 5 * error


def test_regression_leaves_the_mean_and_takes_the_noise() -> None:
    """Of a Gaussian with independent weights nothing is left; hotter draws have the same mean."""
    g, d, count = torch.Generator().manual_seed(0), 6, 400
    data = torch.linspace(1, 30, d, dtype=torch.float64)
    prior = torch.full((d,), 2.0, dtype=torch.float64)
    exact = -float((data / (data + prior)).sum()) / 2

    def run(temperature: float) -> tuple[Tensor, Tensor]:
        z = torch.randn(count, d, generator=g, dtype=torch.float64)
        w = z * (temperature / (data + prior)).sqrt()
        log_p = -(data * w.square()).sum(1) / 2
        return log_p, marginal.reduced(log_p, w, (data + prior) * w, prior)

    raw, found = run(1.0)
    assert float(found.std()) < 0.2 * float(raw.std())
    assert float(found.mean()) == pytest.approx(exact, abs=0.03)
    raw, found = run(1.2)
    assert float(raw.mean()) == pytest.approx(1.2 * exact, abs=0.3)
    assert float(found.mean()) == pytest.approx(exact, abs=0.06)


def test_controls_of_weights_that_are_still_on_their_way_are_not_used() -> None:
    g = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 100, generator=g, dtype=torch.float64)
    assert marginal._agree(raw, 0.1 * raw)
    assert not marginal._agree(raw, 0.1 * raw + 3)


def test_models_beside_each_other() -> None:
    def one(value: float, error: float, data: str = "a") -> Any:
        posterior = SimpleNamespace(config={"data": data})
        return evidence.Evidence(
            value, error, value, torch.ones(2), torch.zeros(2), torch.ones(2), [], 0, posterior
        )  # type: ignore[arg-type]

    found = evidence.compare({"small": one(-12.0, 0.3), "large": one(-10.0, 0.4)})
    assert found.names == ("large", "small")
    assert found.differences == [0.0, -2.0]
    assert found.errors == [0.0, pytest.approx(0.5)]
    assert sum(found.probabilities) == pytest.approx(1)
    assert "small" in str(found)
    with pytest.raises(ValueError, match="different data"):
        evidence.compare([one(0, 1), one(0, 1, "b")])
    with pytest.raises(TypeError, match="got Linear"):
        evidence.compare([nn.Linear(1, 1)])  # type: ignore[list-item]
    apart = one(-10.0, 0.1)
    assert not apart.warnings
    object.__setattr__(apart, "stepping_stone", -20.0)
    assert "nats apart" in str(apart)


def test_data_that_are_not_in_memory() -> None:
    loader = DataLoader(TensorDataset(*regression(20, 1)))
    with pytest.raises(TypeError, match="in memory"):
        evidence.log_marginal_likelihood(
            nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), loader, prior=priors.Gaussian(1.0)
        )


@pytest.mark.parametrize("powers", [[0.1, 0.5], [0.5, 0.1, 1.0], [0.0, 1.0]])
def test_powers_that_are_no_ladder(powers: list[float]) -> None:
    with pytest.raises(ValueError, match="powers must ascend"):
        evidence.log_marginal_likelihood(
            nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), regression(20, 1),
            prior=priors.Gaussian(1.0), powers=torch.tensor(powers),
        )  # fmt: skip


def test_models_of_the_same_targets_and_other_inputs_are_compared() -> None:
    x, y = regression(30, 2)

    def one(inputs: int, y: Tensor = y) -> Any:
        return evidence.log_marginal_likelihood(
            nn.Linear(inputs, y.shape[1]), likelihoods.Gaussian(sigma=1.0), (x[:, :inputs], y),
            prior=priors.Gaussian(1.0), powers=torch.tensor([0.5, 1.0]), steps=20, draws=4,
        )  # fmt: skip

    assert len(evidence.compare([one(1), one(2)]).names) == 2
    with pytest.raises(ValueError, match="same targets"):
        evidence.compare([one(2), one(2, y + 1)])


def test_what_has_no_evidence_is_refused_in_its_own_words() -> None:
    data = regression(20, 1)
    for likelihood, prior, said in (
        (likelihoods.Gaussian(sigma="rmse"), priors.Gaussian(1.0), "a marginal likelihood needs"),
        (likelihoods.Gaussian(sigma=1.0), priors.Flat(), "a marginal likelihood needs a proper"),
    ):
        with pytest.raises(ValueError, match=said):
            evidence.log_marginal_likelihood(nn.Linear(1, 1), likelihood, data, prior=prior)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", 2.0, "temperature= cannot be given"),
        ("likelihood_power", 0.5, "give power="),
        ("chains", 3, "repeats="),
        ("num_data", 120, "num_data= cannot be given"),
        ("exchange", 0, "exchange must be at least 1"),
        ("prior_draws", 1, "prior_draws must be at least 2"),
    ],
)
def test_options_that_have_no_meaning_here(name: str, value: Any, said: str) -> None:
    """The first and the fourth gave a value that was tens of nats off."""
    x, y = regression(60, 2)
    with pytest.raises((TypeError, ValueError), match=said):
        evidence.log_marginal_likelihood(
            nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.5), (x, y),
            prior=priors.Gaussian(variance=1.0), **{name: value},
        )  # fmt: skip
