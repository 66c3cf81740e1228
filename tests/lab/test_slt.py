"""The laboratory's truths about learning coefficients: known cases, and the study's own sums."""

from __future__ import annotations

import math

import pytest
import torch

from lab.jobs import side_by_side
from lab.slt import heat, width
from lab.slt.deep_linear import summary
from lab.slt.evidence import closed_form, data_of
from lab.slt.linear_networks import LinearNetwork, aoyagi, network, truth


def test_known_learning_coefficients() -> None:
    assert aoyagi([5, 7], 5) == 17.5  # one matrix: half of its weights
    assert aoyagi([3, 1, 4], 1) == 3  # matrices of rank one: half of their dimension, 6
    assert aoyagi([3, 1, 4], 0) == 1.5  # |a|^2 |b|^2
    assert aoyagi([10, 20, 20, 10], 10) == 50


def test_random_networks_have_the_rank_they_say() -> None:
    ranks = set()
    for seed in range(6):
        of = network(seed, rows=50)
        product = of.weights[0]
        for w in of.weights[1:]:
            product = w @ product
        assert int(torch.linalg.matrix_rank(product, rtol=1e-8)) == of.rank
        ranks.add(of.rank == min(of.widths))
        with torch.no_grad():
            outputs = of.model()(of.x.float()).double()
        torch.testing.assert_close(outputs, of.x @ product.T, rtol=1e-4, atol=1e-4)
    assert ranks == {True, False}


def test_the_truth_of_one_matrix_is_the_closed_form() -> None:
    """A linear regression: E[n beta (L - L(w*))] of a Gaussian posterior."""
    g, n, power = torch.Generator().manual_seed(0), 400, 0.2
    w = torch.randn(2, 3, generator=g, dtype=torch.float64)
    x = torch.randn(n, 3, generator=g, dtype=torch.float64)
    y = x @ w.T + torch.randn(n, 2, generator=g, dtype=torch.float64)
    found = truth(
        LinearNetwork([w], 2, x, y), power=power, chains=64, trajectories=14, burn_in=6, steps=20
    )
    variance = float(w.square().mean())
    precision = power * x.T @ x + torch.eye(3).double() / variance
    covariance = torch.linalg.inv(precision)
    mean = (covariance @ (power * x.T @ y + w.T / variance)).T
    spread = 2 * power * torch.trace(x.T @ x @ covariance) / 2
    moved = power * ((y - x @ mean.T).square().sum() - (y - x @ w.T).square().sum()) / 2
    exact = float(spread + moved)
    print(found, exact)
    assert abs(found.value - exact) < 4 * found.error
    assert found.error < 0.2


def test_sums_of_the_study() -> None:
    rows = [
        {"value": v, "error": 1.0, "truth": {"value": 10.0, "error": 0.0}, "seconds": 1.0}
        for v in (10.5, 9.0, 13.0)
    ]
    found = summary(rows)
    assert found["covered"] == pytest.approx(2 / 3)
    assert (found["median"], found["largest"]) == (pytest.approx(0.1), pytest.approx(0.3))
    assert found["bias"] == pytest.approx(0.25 / 3)


def test_the_factor_of_heat_is_by_least_squares() -> None:
    rows = [{"said": s, "measured": 1.5 * s, "error": e} for s, e in ((0.2, 0.1), (0.4, 0.2))]
    found = heat.summary(rows)
    assert found["factor"] == pytest.approx(1.5)
    assert found["error"] == pytest.approx(1 / math.sqrt(8))


def test_the_closed_form_is_that_of_the_normal_law() -> None:
    x, y = data_of(2, 12, 0.5)
    a = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    law = torch.distributions.MultivariateNormal(
        torch.zeros(12).double(), 0.25 * torch.eye(12).double() + 0.7 * a @ a.T
    )
    assert closed_form(x, y, 0.7, 0.5) == pytest.approx(float(law.log_prob(y[:, 0].double())))
    assert math.isfinite(closed_form(x, y, 0.7, 0.5))


def test_rows_side_by_side_are_those_of_one_process() -> None:
    rows = list(side_by_side(_half, [1.0, 2.0, 3.0], jobs=1))
    assert rows == [{"half": 0.5}, {"half": 1.0}, {"half": 1.5}]


@pytest.mark.thorough
def test_rows_of_two_processes_are_the_same_in_any_order() -> None:
    rows = list(side_by_side(math.frexp, [1.0, 2.0, 3.0], jobs=2))
    assert sorted(rows) == sorted(math.frexp(v) for v in (1.0, 2.0, 3.0))


def _half(value: float) -> dict[str, float]:
    return {"half": value / 2}


def test_the_right_width_is_counted_and_its_data_are_of_that_width() -> None:
    def by(values: list[float]) -> dict[str, dict[str, float]]:
        return {str(h): {"value": v, "seconds": 1.0} for h, v in zip((1, 2), values, strict=True)}

    rows = [{"width": 2, "ours": by([0.0, 1.0])}, {"width": 1, "ours": by([0.0, 1.0])}]
    assert width.summary(rows) == {"data_sets": 2, "ours": 0.5, "ours_seconds": 2.0}
    found = [width.data_of(seed) for seed in range(6)]
    assert [f[0] for f in found] == [1, 2, 3, 1, 2, 3]
    assert all(float(y.std()) > 3 * width.SIGMA for _, _, y in found)
