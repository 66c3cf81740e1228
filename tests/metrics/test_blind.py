"""The blind guess, and whether predictions are usable: against it, and against one network."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

import small_run
from natural_langevin import Langevin, likelihoods, models
from natural_langevin.metrics import blind


def numbers(y: torch.Tensor, **ends: Any) -> float:
    return float(blind.Guess.of(y.double()).numbers(y.double(), **ends).sum(1).mean())


def counts(y: torch.Tensor) -> float:
    return float(blind.Guess.of(y.double()).counts(y.double()).sum(1).mean())


def test_each_kind_against_its_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    y = 3 + 2 * torch.randn(20_000, 2, generator=generator)
    wanted = math.log(2 * math.pi * math.e * 4)  # two components of entropy ln(2 pi e 4) / 2
    assert numbers(y) == pytest.approx(wanted, abs=0.02)
    rates = torch.full((20_000, 1), 3.0)
    poisson = torch.poisson(rates, generator=generator)
    law = torch.distributions.Poisson(3.0)
    assert counts(poisson) == pytest.approx(float(-law.log_prob(poisson).mean()), abs=0.01)
    wide = torch.poisson(
        rates * torch.rand(20_000, 1, generator=generator) * 4, generator=generator
    )
    over = -torch.distributions.Poisson(wide.mean()).log_prob(wide).mean()
    assert counts(wide) < float(over) - 0.1  # a Poisson distribution is too narrow
    labels = torch.tensor([0] * 30 + [1] * 10)
    assert blind.classes(labels, 3) == pytest.approx(
        -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    )


def test_the_guess_of_skewed_amounts_is_log_normal() -> None:
    """Its entropy is ln(2 pi e s^2) / 2 + m; with zeros that have a probability, in two parts."""
    generator = torch.Generator().manual_seed(0)
    y = (2 + 1.5 * torch.randn(20_000, 1, generator=generator)).exp()
    entropy = 0.5 * math.log(2 * math.pi * math.e * 1.5**2) + 2
    assert numbers(y) == pytest.approx(entropy, abs=0.03)
    plain = torch.randn(20_000, 1, generator=generator)  # beside a component of both signs
    both = numbers(torch.cat([y, plain], 1))
    assert both == pytest.approx(entropy + 0.5 * math.log(2 * math.pi * math.e), abs=0.04)
    some = y * (torch.rand(20_000, 1, generator=generator) < 0.2)
    parts = 0.2 * entropy - 0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert numbers(some, zeros=True) == pytest.approx(parts, abs=0.03)
    assert numbers(some) > parts + 0.5  # a density has nothing for a zero
    one = torch.zeros(50, 1)
    one[0] = 3.0  # whose spread is not known
    assert 0 < numbers(one, zeros=True) < math.inf


def test_a_guess_is_scored_on_other_numbers_than_it_knows() -> None:
    """A zero that was never seen is none of a log-normal's, nor a negative number."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(20_000, 1, generator=generator).exp().double()
    guess = blind.Guess.of(y)
    assert float(guess.numbers(y[:9_000]).mean()) == pytest.approx(
        float(guess.numbers(y).mean()), abs=0.03
    )
    for strange in (0.0, -1.0):
        some = torch.tensor([[strange], [1.0]]).double()
        normal = -torch.distributions.Normal(guess.mean, guess.scale).log_prob(some)
        assert float(guess.numbers(some).mean()) == pytest.approx(float(normal.mean()))
    ends = y.clamp_max(2.0)  # what lies beyond 2 has a probability there
    known = torch.distributions.Normal(0.0, 1.0)
    above = 1 - known.cdf(torch.tensor(2.0).log())
    below = y[y < 2]
    density = (0.5 * below.log().square() + 0.5 * math.log(2 * math.pi) + below.log()).mean()
    exact = float((1 - above) * density - above * above.log())
    own = guess._replace(log_mean=torch.zeros(1), log_scale=torch.ones(1))
    assert float(own.numbers(ends, upper=2.0).mean()) == pytest.approx(exact, abs=0.02)


def test_evaluate_says_what_a_blind_guess_and_one_network_score() -> None:
    x, y = small_run.data()
    posterior = small_run.sample(400, burn_in=200, sampler={"step_size": 0.02})
    scores = posterior.evaluate(x, y)
    assert scores.blind_nll == pytest.approx(blind.classes(y, 2))
    each = -posterior.log_likelihood(x, y).mean(-1)
    assert scores.single_nll == pytest.approx(float(each.min()), rel=1e-5)
    assert "of a blind guess" in str(scores)
    assert "of one network" in str(scores)


def test_verdicts_of_classes() -> None:
    x, y = small_run.data()
    good = dataclasses.replace(
        small_run.sample(100).evaluate(x, y), nll=0.2, nll_error=0.01, blind_nll=0.69,
        single_nll=0.25, calibration_error=0.03,
    )  # fmt: skip
    assert good.verdicts == []
    [guess] = dataclasses.replace(good, nll=0.75).verdicts
    assert "worse than a blind guess (0.750 against 0.690" in guess
    [poor] = dataclasses.replace(good, nll=0.4).verdicts
    assert "One network alone predicts better (0.250 against 0.400" in poor
    assert "few training rows this is expected" in poor
    assert dataclasses.replace(good, nll=0.4, nll_error=0.1).verdicts == []
    [gap] = dataclasses.replace(good, calibration_error=0.4).verdicts
    assert "0.400 apart" in gap
    assert "metrics.TemperatureScaling" in gap


def test_verdicts_of_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 1, generator=generator)
    y = x + 0.3 * torch.randn(200, 1, generator=generator)
    model = models.mlp(1, 1, ())
    with torch.no_grad():
        for p, value in zip(model.parameters(), (1.0, 0.0), strict=True):
            p.fill_(value)
    found = []
    for sigma in (0.3, 0.05):
        sampler = Langevin(model, likelihoods.Gaussian(sigma=sigma), step_size=1e-2, chains=2)
        posterior = sampler.sample((x, y), 60, batch_size=100, burn_in=20, progress=False)
        found.append(posterior.evaluate(x, y))
    assert found[0].verdicts == []
    texts = " ".join(found[1].verdicts)
    assert "too narrow" in texts
    assert "worse than a blind guess" in texts
