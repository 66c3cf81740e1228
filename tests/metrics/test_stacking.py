"""Stacking weights: against a general optimiser, and of a mixture whose weights are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize
from torch.testing import assert_close

from natural_langevin.metrics import TemperatureScaling, stacking_weights


@pytest.mark.parametrize("apart", [1.0, 0.1, 0.005])
def test_a_general_optimiser_finds_no_better_weights(apart):
    """However much alike the candidates are."""
    generator = torch.Generator().manual_seed(0)
    values = apart * torch.randn(200, 4, generator=generator, dtype=torch.float64)
    found = stacking_weights(values)
    density = values.exp().numpy()

    def loss(free: np.ndarray) -> float:
        return -np.log(density @ free).sum()

    constraint = {"type": "eq", "fun": lambda w: w.sum() - 1}
    best = optimize.minimize(
        loss, np.full(4, 0.25), method="SLSQP", bounds=[(0, 1)] * 4, constraints=constraint
    )
    assert best.success
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert loss(found.numpy()) <= best.fun + 200 * 1e-6


def test_the_worse_of_two_gets_nothing_however_small_the_gap():
    same = torch.randn(100, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert stacking_weights(torch.cat([same, same - 0.002], 1))[1] < 1e-3


def test_stopped_early_what_is_alike_shares():
    """One update from equal weights is the mean responsibility."""
    values = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(stacking_weights(values, updates=1), values.softmax(1).mean(0))


def test_the_weights_of_a_mixture_are_found():
    """y is N(-2, 1) with probability 0.3, N(2, 1) otherwise: 4000 data tell it to 0.008."""
    generator = np.random.default_rng(1)
    first = generator.random(4000) < 0.3
    y = torch.tensor(generator.normal(size=4000) + np.where(first, -2.0, 2.0))
    candidates = torch.stack([-((y + 2) ** 2) / 2, -((y - 2) ** 2) / 2, -((y - 9) ** 2) / 2], 1)
    weights = stacking_weights(candidates)
    assert float(weights[0]) == pytest.approx(0.3, abs=3 * 0.008)
    assert float(weights[2]) < 0.01


def test_a_candidate_that_failed_gets_no_weight():
    values = torch.zeros(5, 2, dtype=torch.float64)
    values[:, 1] = -math.inf
    assert stacking_weights(values).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(3), r"must be \(n, candidate\), got \(3,\)"),
        (torch.zeros(0, 2), r"got \(0, 2\)"),
        (torch.full((2, 2), math.nan), "holds NaN: give .* -inf"),
        (torch.full((2, 2), -math.inf), "density zero under every candidate"),
    ],
)
def test_what_has_no_weights_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        stacking_weights(values)


def test_a_prior_keeps_the_scale_of_few_data_near_one():
    """All told right: the likelihood alone asks for a scale of zero; a grid finds the optimum."""
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    free, held = TemperatureScaling.fit(p, y), TemperatureScaling.fit(p, y, deviation=0.3)
    assert free.scale < 0.01
    grid = torch.linspace(math.log(0.2), math.log(5), 20001, dtype=torch.float64)
    log_p = (p.log() / grid.exp()[:, None, None]).log_softmax(-1)[:, torch.arange(3), y].sum(1)
    best = grid[(log_p - (grid / 0.3) ** 2 / 2).argmax()].exp()
    assert held.scale == pytest.approx(float(best), rel=2e-4)
    with pytest.raises(ValueError, match="deviation must be positive, got 0"):
        TemperatureScaling.fit(p, y, deviation=0)


def test_a_prior_of_the_weights_counts_as_so_many_data():
    """Without data that tell, the weights are the prior's; of two that data tell apart for sure,
    the share of n data and m of the prior."""
    prior = torch.tensor([0.2, 0.8]).double()
    alike = stacking_weights(torch.zeros(30, 2), updates=50, prior=prior, prior_rows=10)
    torch.testing.assert_close(alike, prior)
    sure = torch.tensor([[0.0, -50.0]]).double().expand(30, 2)
    found = stacking_weights(sure, updates=50, prior=prior, prior_rows=10)
    torch.testing.assert_close(found, torch.tensor([32.0, 8.0]).double() / 40)


def test_a_prior_that_counts_needs_a_number_of_updates():
    with pytest.raises(ValueError, match="needs a number of updates"):
        stacking_weights(torch.zeros(4, 2), prior=torch.ones(2), prior_rows=3.0)
