"""What a step costs, and what follows for networks that only torch's operations serve on a CPU."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods
from natural_langevin.sampling import cost, recipe


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    )  # fmt: skip


def test_every_use_of_a_weight_counts() -> None:
    images = Langevin(convolutional(), likelihoods.Categorical())
    x = torch.rand(5, 1, 4, 4)
    assert cost.is_dear(images, x)
    assert cost.multiplications(images, x) == 16 * 9 * 3 + 48 * 2
    table = Langevin(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), likelihoods.Categorical())
    assert not cost.is_dear(table, x[:, 0, 0])
    assert cost.multiplications(table, x[:, 0, 0]) == (4 + 1) * 3 + (3 + 1) * 2


def test_few_weights_are_dear_where_a_network_uses_them_many_times() -> None:
    """Which is not so of a model of one's own with a handful of numbers."""
    layers = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 2)
    )
    small = Langevin(layers, likelihoods.Categorical())
    assert cost.is_dear(small, torch.rand(5, 1, 8, 8))

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.slope * x

    assert not cost.is_dear(Langevin(Line(), likelihoods.Gaussian(1.0)), torch.rand(5, 1))


def test_a_small_matrix_at_many_positions_counts_as_a_larger_one() -> None:
    layers = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2))
    tokens = Langevin(layers, likelihoods.Categorical())
    assert cost.multiplications(tokens, torch.rand(4, 3, 5)) == 3 * cost.SMALLEST + 60 * 2


def test_a_dear_run_is_shorter_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    choice = recipe.Choice(1e-3, 100.0, 0.0, "", "eager")
    options = {"steps": None, "burn_in": None, "thin": None}
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        assert recipe.length(choice, work=1e6, dear=True, **options).steps == 4000
        assert not caplog.text
        assert recipe.length(choice, work=cost.MOST_WORK / 750, dear=True, **options).steps == 700
        assert "700 steps, where 4000" in caplog.text
        found = recipe.length(choice, work=cost.MOST_WORK, dear=True, **options)
        assert (found.steps, found.burn_in) == (cost.FEWEST_STEPS, cost.FEWEST_STEPS // 3)


def test_a_pilot_ends_early_where_its_steps_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """And minibatches are small, and the prior's scale is not tried: a whole run in seconds."""
    x, y = torch.rand(600, 1, 4, 4), torch.randint(0, 2, (600,))
    monkeypatch.setattr(cost, "MOST_WORK", 1e6)
    monkeypatch.setattr(cost, "PILOT_WORK", 1e6)
    monkeypatch.setattr(cost, "TRIAL_WORK", 1e6)
    monkeypatch.setattr(cost, "FEWEST_STEPS", 30)
    seen: list[int] = []
    measured = recipe.steepest

    def steepest(dynamics, state, data, num_data):  # type: ignore[no-untyped-def]
        seen.append(int(state.step))
        assert len(data[0]) == cost.ROWS
        return measured(dynamics, state, data, num_data)

    monkeypatch.setattr(recipe, "steepest", steepest)
    monkeypatch.setattr("natural_langevin.sampling.warm_up.ROUNDS", (10,))
    posterior = Langevin(convolutional(), likelihoods.Categorical(), chains=2).sample(
        (x, y), progress=False
    )
    assert seen == [1, 50]
    assert posterior.config["recipe"]["prior_scale"] is None
    assert posterior.config["steps"] == 30
    assert posterior.config["batch_size"] == cost.BATCH
