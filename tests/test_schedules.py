"""Schedules: the formulas, per-chain values, and the checks at the door."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from natural_langevin import schedules


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (schedules.constant(0.3), lambda t: 0.3),
        (schedules.halving(0.8, every=10), lambda t: 0.8 * 0.5 ** (t // 10)),
        (schedules.polynomial(2.0, offset=5), lambda t: 2.0 * (1 + t / 5) ** (-1 / 3)),
        (schedules.polynomial(2.0, offset=5, power=1), lambda t: 2.0 / (1 + t / 5)),
        (
            schedules.cyclical(0.1, period=8),
            lambda t: 0.05 * (1 + math.cos(math.pi * (t % 8) / 8)),
        ),
        (schedules.inverse_sqrt(), lambda t: 1 / math.sqrt(t + 1)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_formula(schedule: schedules.Schedule, formula: schedules.Schedule) -> None:
    for step in [*range(25), 10_000]:
        assert schedule(step) == pytest.approx(formula(step), rel=1e-14)
    table = schedules.tabulate(schedule, 3, 40, name="rate", chains=1)
    assert table[:, 0].tolist() == [schedule(step) for step in range(3, 40)]


def test_edges() -> None:
    """Steps count from 0; a halving happens exactly at its multiple, a cycle restarts in full."""
    halving = schedules.halving(1.0, every=3)
    assert [halving(t) for t in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    cyclical = schedules.cyclical(1.0, period=4)
    assert cyclical(0) == cyclical(4) == 1.0
    assert 0 < cyclical(3) < 0.2
    assert schedules.inverse_sqrt()(0) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        schedules.constant,
        lambda v: schedules.halving(v, every=2),
        lambda v: schedules.polynomial(v, offset=2),
        lambda v: schedules.cyclical(v, period=4),
    ],
)
def test_one_initial_value_per_chain(make) -> None:
    grid = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)
    table = schedules.tabulate(make(grid), 0, 6, name="step_size", chains=3)
    assert table.shape == (6, 3)
    for chain, value in enumerate(grid.tolist()):
        alone = schedules.tabulate(make(value), 0, 6, name="step_size", chains=1)
        torch.testing.assert_close(table[:, chain], alone[:, 0], rtol=1e-14, atol=0)


def test_tabulate() -> None:
    assert schedules.tabulate(0.5, 2, 5, name="eta", chains=2).tolist() == [[0.5, 0.5]] * 3
    table = schedules.tabulate(lambda t: t / 10, 2, 5, name="eta", chains=1)
    assert table.dtype == torch.float64
    assert table.flatten().tolist() == [0.2, 0.3, 0.4]
    scalar = schedules.tabulate(torch.tensor(0.25), 0, 1, name="eta", chains=3)
    assert scalar.tolist() == [[0.25] * 3]


def test_as_schedule_keeps_a_schedule() -> None:
    halving = schedules.halving(1.0, every=3)
    assert schedules.as_schedule(halving) is halving
    assert schedules.as_schedule(0.5)(17) == 0.5


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (-0.1, ["eta", "at least 0", "-0.1", "step 3"]),
        (math.nan, ["eta", "finite", "nan"]),
        (math.inf, ["eta", "finite", "inf"]),
        (lambda t: 0.1 if t < 4 else math.nan, ["nan", "step 4"]),
        (torch.tensor([0.1, -0.2]), ["-0.2", "chain 1"]),
        (torch.tensor([0.1, 0.1, 0.1]), ["one value per chain", "(2,)", "(3,)"]),
        (torch.ones(2, 1), ["one value per chain", "(2, 1)"]),
    ],
)
def test_bad_rates(rate: schedules.Schedule, words: list[str]) -> None:
    with pytest.raises(ValueError, match="eta") as error:
        schedules.tabulate(rate, 3, 6, name="eta", chains=2)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_the_remedy_fits_every_bad_value(rate: float) -> None:
    with pytest.raises(ValueError, match=r": correct the number or the schedule$"):
        schedules.tabulate(rate, 0, 1, name="eta", chains=1)


@pytest.mark.parametrize(
    "rate", ["0.1", True, None, [0.1, 0.2], np.ones(2), lambda t: 0.1 if t < 4 else "0.1"]
)
def test_rates_are_numbers(rate: object) -> None:
    with pytest.raises(TypeError, match=r"eta must be a number.*got .*float\(\.\.\.\), or torch"):
        schedules.tabulate(rate, 3, 6, name="eta", chains=2)


@pytest.mark.parametrize("rate", [1, np.float32(1), np.float64(1), np.int64(1), Fraction(1)])
def test_other_numbers_are_fine(rate: float) -> None:
    assert schedules.tabulate(rate, 0, 1, name="eta", chains=2).tolist() == [[1.0, 1.0]]


def test_upper_bound() -> None:
    with pytest.raises(ValueError, match=r"decay must be finite and between 0 and 1, got 1\.5"):
        schedules.tabulate(1.5, 0, 1, name="decay", chains=1, high=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.halving(0.1, every=0), "every must be positive, got 0"),
        (lambda: schedules.polynomial(0.1, offset=-1), "offset must be positive, got -1"),
        (lambda: schedules.polynomial(0.1, offset=1, power=-1), "power must be at least 0, got -1"),
        (lambda: schedules.cyclical(0.1, period=0), "period must be positive, got 0"),
    ],
)
def test_bad_arguments(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class Table:
    """A schedule that gives all its values at once, one for each of so many chains."""

    def __init__(self, chains: int) -> None:
        self.values = torch.arange(1.0, chains + 1)

    def __call__(self, step: int) -> torch.Tensor:
        return self.values * (step + 1)

    def table(self, start: int, stop: int) -> torch.Tensor:
        return torch.stack([self(step) for step in range(start, stop)])


def test_a_table_at_once_is_the_schedule_step_by_step() -> None:
    for eta in (Table(2), schedules.polynomial_average(2.0, before=1.0), schedules.inverse_sqrt()):
        found = schedules.tabulate(eta, 3, 40, name="step_size", chains=2)
        one = [torch.as_tensor(eta(k), dtype=torch.float64).expand(2) for k in range(3, 40)]
        assert torch.equal(found, torch.stack(one))


def test_a_table_of_another_number_of_chains_is_refused() -> None:
    with pytest.raises(ValueError, match="3 values"):
        schedules.tabulate(Table(3), 0, 10, name="step_size", chains=2)
