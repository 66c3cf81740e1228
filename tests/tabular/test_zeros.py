"""Amounts and counts with many zeros: the two parts against numbers from the definition, and when
they are tried."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from natural_langevin.data.errors import DataError
from natural_langevin.tabular.outcome import Outcome, outcomes
from natural_langevin.tabular.predictive import Networks, Predictive
from natural_langevin.tabular.recipe import learn
from natural_langevin.tabular.scoring import NumberScores
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.target import Target
from natural_langevin.tabular.weighing import BOUNDS, HeldOut, Weighed, mean_bound


def amounts(zeros: float = 0.5, rows: int = 200) -> torch.Tensor:
    rng = np.random.default_rng(0)
    y = np.exp(rng.normal(3.0, 0.5, rows)) * (rng.random(rows) >= zeros)
    return torch.from_numpy(y)[:, None]


def kinds(y: torch.Tensor, **settings: object) -> list[str]:
    return [one.noise for one in outcomes("regression", y, Settings(**settings))]  # type: ignore[arg-type]


def test_two_parts_are_tried_where_a_tenth_is_zero_and_nothing_negative() -> None:
    assert kinds(amounts(0.5)) == ["constant", "varying", "hurdle"]
    assert kinds(amounts(0.02)) == ["constant", "varying"]
    assert "hurdle" not in kinds(amounts(0.5) - 1.0)
    assert "hurdle" not in kinds(amounts(0.95))  # ten amounts say little
    assert kinds(amounts(0.02), noise="hurdle") == ["hurdle"]
    with pytest.raises(DataError, match="needs one target of amounts"):
        kinds(amounts(0.5) - 1.0, noise="hurdle")


def predicted() -> tuple[Predictive, Outcome, np.ndarray]:
    """Two networks of weights .3 and .7 for three rows, and their q, mean and deviation of ln y."""
    outcome = outcomes("regression", amounts(), Settings(noise="hurdle"))[0]
    outputs = torch.tensor([[[0.4, 0.1, -1.0], [-1.0, 0.5, 0.0], [-6.0, 0.0, -0.5]],
                            [[1.0, -0.3, -2.0], [-0.5, 0.2, -1.0], [-7.0, 0.4, 0.2]]])  # fmt: skip
    law = Networks(outputs, None).law(outcome, 1.4)
    parts = outputs.double().numpy()
    (mean,), (scale,) = outcome.mean, outcome.scale
    u = parts[..., 2]
    width = np.where(u > 0, (1 + 2 * u.clip(min=0)) ** 0.25, 1 / (1 - u.clip(max=0) / 2))
    own = np.stack([1 / (1 + np.exp(-parts[..., 0])), mean + scale * parts[..., 1],
                    1.4 * scale * width])  # fmt: skip
    weights = torch.tensor([0.3, 0.7])
    return Predictive(outcome, law, weights, flat=True), outcome, own


def test_probabilities_are_those_of_the_mixture() -> None:
    p, _, (q, mean, sd) = predicted()
    weights = np.array([[0.3], [0.7]])
    np.testing.assert_allclose(p.zero, (weights * (1 - q)).sum(0), rtol=1e-7)
    np.testing.assert_allclose(np.exp(p.log_prob(np.zeros(3))), p.zero, rtol=1e-7)
    y = np.array([5.0, 20.0, 60.0])
    density = (weights * q * stats.lognorm(sd, scale=np.exp(mean)).pdf(y)).sum(0)
    np.testing.assert_allclose(np.exp(p.log_prob(y)), density, rtol=1e-6)
    below = (weights * (1 - q + q * stats.lognorm(sd, scale=np.exp(mean)).cdf(y))).sum(0)
    np.testing.assert_allclose(p.cdf(y), below, rtol=1e-7)
    assert (p.log_prob(-y) == -np.inf).all()
    assert (p.cdf(-y) == 0).all()


def test_counts_have_a_probability_of_zero_too() -> None:
    law = torch.distributions.Poisson(torch.tensor([[[0.5], [2.0]], [[1.0], [4.0]]]).double())
    p = Predictive(Outcome("count", "poisson"), law, torch.tensor([0.25, 0.75]), flat=True)
    expected = 0.25 * np.exp([-0.5, -2.0]) + 0.75 * np.exp([-1.0, -4.0])
    np.testing.assert_allclose(p.zero, expected, rtol=1e-7)


def test_means_are_bounded_where_held_out_means_come_closest() -> None:
    """Laws with a longer tail than the amounts have: the part of ``largest`` is that of the least
    squared error, by hand; of too few rows it stays."""
    y = amounts()
    outcome = outcomes("regression", y, Settings(noise="hurdle"))[0]
    assert outcome.largest is not None
    outputs = torch.tensor([1.0, 0.0, 1.5]).expand(3, len(y), 3)  # three networks, too wide
    view, found = HeldOut(outcome, [Networks(outputs, None)]), Weighed([0.0], [1.0], [[[1.0, 1.0]]])
    errors = {}
    for part in BOUNDS:
        one = replace(outcome, largest=part * outcome.largest)
        law = Networks(outputs, None).law(one)
        mean = Predictive(one, law, torch.full((3,), 1 / 3), flat=True).mean
        errors[part * outcome.largest] = float(((mean - y[:, 0].numpy()) ** 2).sum())
    best = min(errors, key=lambda bound: errors[bound])
    assert best < outcome.largest
    assert mean_bound([view], found, y) == pytest.approx(best)
    few = HeldOut(outcome, [Networks(outputs[:, :10], None)])
    assert mean_bound([few], found, y[:10]) == outcome.largest


def test_a_network_that_is_unsure_beyond_measure_leaves_a_finite_mean() -> None:
    """On diamonds a row 30 deviations out had a logarithm of the variance of 50."""
    outcome = Outcome("regression", "varying", log=True, largest=100.0)
    outputs = torch.tensor([[[3.0, wide], [4.0, 0.0]] for wide in (50.0, 800.0)])
    law = Networks(outputs, None).law(outcome)
    p = Predictive(outcome, law, torch.tensor([0.5, 0.5]), flat=True)
    assert np.isfinite(p.mean).all()
    assert (p.network_means <= 200.0 * (1 + 1e-6)).all()  # BEYOND times the largest


def test_quantiles_moments_and_draws_agree() -> None:
    p, outcome, (q, mean, sd) = predicted()
    for level in (0.05, 0.5, 0.95):
        y = p.quantile(level)
        zero = np.asarray(p.zero) >= level
        assert (y[zero] == 0).all()
        assert (y[~zero] > 0).all()
        np.testing.assert_allclose(p.cdf(y)[~zero], level, rtol=1e-7)
    draws = p.sample(40_000, seed=1)
    error = np.sqrt(np.asarray(p.zero) * (1 - np.asarray(p.zero)) / 40_000)
    assert (np.abs((draws == 0).mean(0) - p.zero) < 5 * error).all()
    assert outcome.largest is not None
    limited = np.minimum(draws, 2 * outcome.largest)
    error = limited.std(0) / 200
    assert (np.abs(limited.mean(0) - p.mean) < 5 * error).all()
    np.testing.assert_allclose(limited.std(0), p.std, rtol=0.1)
    plain = (np.array([[0.3], [0.7]]) * q * np.exp(mean + sd**2 / 2)).sum(0)
    assert (p.mean <= plain * (1 + 1e-9)).all()
    assert (p.mean > 0.5 * plain).all()


def test_intervals_from_zero_hold_what_they_are_said_to_hold() -> None:
    """From 0 to the 95 % quantile are 95 %, and 0 alone holds its own probability: that this is
    more than 90 % is no fault. Rows whose interval is 0 alone have no mean inside."""
    p, _, _ = predicted()
    scores = NumberScores(SimpleNamespace(predictive=lambda x: p), Target("y", task="regression"))
    draws = p.sample(250, seed=3)
    for row in draws:
        scores.add(torch.zeros(3, 1), torch.from_numpy(row)[:, None])
    found = scores.result()
    said = found["intervals"]["said"]
    assert said == pytest.approx((0.95 + 0.95 + np.asarray(p.zero)[2]) / 3, abs=1e-6)
    error = np.sqrt(said * (1 - said) / draws.size)
    assert abs(found["scores"]["coverage"] - said) < 5 * error
    assert found["intervals"]["mean_outside"] == 0


def test_a_table_of_half_zeros_is_learned_in_two_parts() -> None:
    """Half of the rows have no amount, by the first column: the second part says how much."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(120, 2)))
    y = torch.where(x[:, :1] > 0, (2 + x[:, 1:] / 2).exp(), 0.0)
    learned = learn(x, y, "regression", Settings(noise="hurdle", steps=300, folds=2, hidden=(10,)))
    found = learned.predictive(x)
    assert found.zero is not None
    there = y[:, 0].numpy() > 0
    assert found.zero[there].mean() < 0.3
    assert found.zero[~there].mean() > 0.7
    assert found.mean[there].mean() > 3 * found.mean[~there].mean()


def counts(zeros: float, rows: int = 400) -> torch.Tensor:
    """Negative binomial counts, 6 % of them 0, and this share of zeros beside theirs."""
    rng = np.random.default_rng(0)
    y = rng.negative_binomial(4, 0.5, rows) * (rng.random(rows) >= zeros)
    return torch.from_numpy(y).double()[:, None]


def test_counts_are_tried_in_two_parts_where_a_tenth_is_zero() -> None:
    offered = [[one.noise for one in outcomes("count", counts(z), Settings())] for z in (0, 0.4)]
    assert offered == [["poisson", "overdispersed"], ["poisson", "overdispersed", "hurdle"]]
    with pytest.raises(DataError, match="amounts or counts"):
        outcomes("count", counts(0) + 1, Settings(noise="hurdle"))


def test_counts_in_two_parts_are_a_law_of_whole_numbers() -> None:
    """Probabilities sum to 1 and are the steps of the distribution function; the median and draws
    are counts, and 0 is as probable as the first part says."""
    (outcome,) = outcomes("count", counts(0.4), Settings(noise="hurdle"))
    outputs = torch.tensor([[[0.4, 0.1, -1.0], [-1.0, 1.5, 0.0], [-3.0, -2.0, -0.5]],
                            [[1.0, -0.3, -2.0], [-0.5, 0.2, -1.0], [2.0, 0.4, 0.2]]])  # fmt: skip
    law = Networks(outputs, None).law(outcome)
    found = Predictive(outcome, law, torch.tensor([0.3, 0.7]), flat=True)
    every = np.arange(400)
    p = np.exp([found.log_prob(np.full(3, k)) for k in every])
    below = np.array([found.cdf(np.full(3, k)) for k in every])
    np.testing.assert_allclose(p.cumsum(0), below, atol=1e-9)
    np.testing.assert_allclose(below[-1], 1.0, atol=0.01)
    assert found.zero is not None
    np.testing.assert_allclose(p[0], found.zero)
    for level in (0.05, 0.5, 0.95):
        np.testing.assert_array_equal(found.quantile(level), (below < level).sum(0))
    drawn = found.sample(4000)
    assert (drawn == drawn.round()).all()
    for k in range(4):
        np.testing.assert_allclose((drawn == k).mean(0), p[k], atol=0.04)
    assert np.isneginf(found.log_prob(np.full(3, 1.5))).all()


def test_counts_in_two_parts_are_learned() -> None:
    """Zeros by one column, how many by another."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = torch.from_numpy(rng.poisson(np.exp(1.5 + 0.4 * x[:, 1])) * (x[:, 0] > 0)).double()
    settings = Settings(noise="hurdle", steps=300, folds=2, hidden=(10,))
    learned = learn(torch.from_numpy(x), y[:, None], "count", settings)
    found = learned.predictive(torch.tensor([[-2.0, 0.0], [2.0, -1.0], [2.0, 1.0]]).double())
    assert found.zero is not None
    assert found.zero[0] > 0.8
    assert found.zero[1] < 0.2
    assert 3 * found.mean[1] > found.mean[2] > found.mean[1] > 1
