"""What the networks are given: tails drawn in, directions decorrelated."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats

from natural_langevin.tabular.inputs import Inputs, fit_inputs, plain_inputs, yeo_johnson

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0, 1.7, 2.0])
def test_the_transform_is_that_of_yeo_and_johnson(power):
    x = RNG.normal(size=50) * 3
    expected = stats.yeojohnson(x, lmbda=power)
    assert_allclose(yeo_johnson(torch.tensor(x), torch.tensor(power).double()), expected)


def test_the_power_is_the_likeliest():
    x = torch.tensor((1.5 + 0.1 * RNG.normal(size=(2000, 1))) ** 2 - 1)  # 1 + x is a square
    expected = stats.yeojohnson_normmax(x[:, 0].numpy())
    assert 0 < expected < 2
    assert float(fit_inputs(x).power) == pytest.approx(expected, abs=0.05)  # the grid's step


def test_long_tails_are_drawn_in_and_the_rest_stays():
    tail = torch.tensor(np.exp(RNG.normal(size=400)))
    flag = torch.tensor(RNG.integers(2, size=400)).double()
    x = torch.stack([(tail - tail.mean()) / tail.std(), flag], 1)
    inputs = fit_inputs(x)
    assert inputs.power.tolist() != [1, 1]
    found = inputs(x)
    assert found.dtype == torch.float32
    assert abs(stats.skew(found[:, 0])) < 1 < stats.skew(tail)
    assert_allclose(found[:, 0].mean(), 0, atol=1e-5)
    assert_allclose(found[:, 1], flag)
    far = inputs(torch.tensor([[1e6, 0.0], [-1e6, 1.0]]).double())
    assert far.isfinite().all()


def test_amounts_over_many_orders_of_size_keep_the_small_ones_apart():
    """ln of the amount from a tenth of the rows on, whichever end the tail is at; an end that many
    rows share is no unit."""
    amount = torch.tensor(np.exp(4 * RNG.normal(size=(500, 1))))
    for sign in (1.0, -1.0):
        x = sign * (amount - amount.mean()) / amount.std()
        inputs = fit_inputs(x, torch.float64)
        order = amount[:, 0].argsort()[60:]
        found = sign * inputs(x)[order, 0]
        assert np.corrcoef(found, amount[order, 0].log())[0, 1] > 0.99
        again = Inputs.from_json(json.loads(json.dumps(inputs.to_json())))
        assert torch.equal(again(x), inputs(x))
    zeros = torch.where(amount < amount.quantile(0.2), 0.0, amount)
    x = (zeros - zeros.mean()) / zeros.std()
    assert fit_inputs(x).unit.tolist() == [1.0]


def test_decorrelated_inputs_have_unit_variance_in_every_direction():
    one = torch.tensor(RNG.normal(size=(300, 1)))
    x = torch.cat([one, one + 1e-2 * torch.tensor(RNG.normal(size=(300, 1))), -2 * one], 1)
    inputs = plain_inputs(3).decorrelated(x)
    assert inputs is not None
    assert str(inputs) == "decorrelated inputs"
    assert inputs.width == 2  # the third column is the first
    covariance = torch.cov(inputs(x).double().T, correction=0)
    assert_allclose(covariance, np.eye(2), atol=1e-4)
    again = Inputs.from_json(json.loads(json.dumps(inputs.to_json())))
    assert torch.equal(again(x), inputs(x))


def test_there_is_nothing_to_decorrelate_in_one_column_or_few_rows():
    assert plain_inputs(1).decorrelated(torch.randn(10, 1)) is None
    assert plain_inputs(5).decorrelated(torch.randn(5, 5)) is None
    assert str(plain_inputs(2)) == ""


def test_far_cells_go_on_as_a_logarithm_without_a_jump():
    inputs = plain_inputs(1, torch.float64, limit=3.0)
    x = torch.linspace(-40, 40, 8001).double()[:, None]
    v = inputs(x)
    near = x.abs() <= 3
    assert_allclose(v[near], x[near])
    assert_allclose(v[~near], x[~near].sign() * (3 + (x[~near].abs() - 2).log()))
    slope = torch.diff(v, dim=0) / torch.diff(x, dim=0)
    assert bool((slope > 0).all())
    assert float(slope.max()) == pytest.approx(1)
    again = Inputs.from_json(json.loads(json.dumps(inputs.to_json())))
    assert torch.equal(again(x), v)
    before = {name: value for name, value in plain_inputs(1).to_json().items() if name != "limit"}
    assert Inputs.from_json(before).limit is None  # files from before there was a limit
