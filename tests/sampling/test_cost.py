"""What a step costs, and what follows for networks that only using torch operations on a CPU."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.recipe import cost, run_length, step_size
from natural_langevin.recipe import rules as recipe
from natural_langevin.run.problem import work
from short_recipe import SHORT, USUAL, changed

BUDGETS = USUAL.cost


def convolutional(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), activation or nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
    )


def test_every_use_of_a_weight_counts() -> None:
    images = Langevin(convolutional(), likelihoods.Categorical())
    x = torch.rand(5, 1, 4, 4)
    assert cost.of_problem(images.problem, x, USUAL).budget is BUDGETS.places
    assert cost.of_problem(images.problem, x, USUAL).multiplications == 16 * 9 * 3 + 48 * 2
    table = Langevin(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), likelihoods.Categorical())
    assert cost.of_problem(table.problem, x[:, 0, 0], USUAL).budget is BUDGETS.usual
    assert (
        cost.of_problem(table.problem, x[:, 0, 0], USUAL).multiplications
        == (4 + 1) * 3 + (3 + 1) * 2
    )


def test_a_network_is_traced_once_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, trace = [], work.trace
    monkeypatch.setattr(work, "trace", lambda *call: traced.append(1) or trace(*call))
    layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    sampler = Langevin(layers, likelihoods.Gaussian("rmse"), init="model", chains=1, recipe=SHORT)
    x = torch.rand(60, 2)
    sampler.plan((x, x[:, :1]))
    assert len(traced) == 1


def test_few_weights_are_dear_where_a_network_uses_them_many_times() -> None:
    """Which is not so of a model of one's own with a handful of numbers."""
    layers = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Softsign(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 2)
    )
    small = Langevin(layers, likelihoods.Categorical())
    assert (
        cost.of_problem(small.problem, torch.rand(5, 1, 8, 8), USUAL).budget is BUDGETS.eager
    )  # no engine knows Softsign

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.slope * x

    line = Langevin(Line(), likelihoods.Gaussian(1.0))
    assert cost.of_problem(line.problem, torch.rand(5, 1), USUAL).budget is BUDGETS.usual


def test_a_matrix_counts_at_every_position() -> None:
    layers = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2))
    tokens = Langevin(layers, likelihoods.Categorical())
    found = cost.of_problem(tokens.problem, torch.rand(4, 3, 5), USUAL)
    assert found.multiplications == 3 * 5 * 20 + 60 * 2


def test_large_networks_have_small_minibatches_more_epochs_and_fewer_draws() -> None:
    small, large, huge = (cost.Costs(m, BUDGETS.usual, USUAL) for m in (700, 90_000, 9e6))
    steps, fewest = USUAL.length.most_eager, BUDGETS.usual.fewest
    assert recipe.batch_size(20_000, small.rows_of_step(steps, 4), USUAL.batch) == 500
    assert recipe.batch_size(20_000, large.rows_of_step(steps, 4), USUAL.batch) == 100
    assert small.fewest_steps(20_000, 500, 4) == fewest
    assert large.fewest_steps(60_000, 100, 4) == 6_000  # ten epochs
    assert huge.fewest_steps(60_000, 100, 4) == fewest  # which are dear enough
    assert (small.draws(4), large.draws(4), huge.draws(4)) == (200, 20, 20)
    # A trial may cost more where the fewest steps of a run do.
    assert small.of_trial(500, 4) == BUDGETS.usual.trial < large.of_trial(100, 4)


def test_a_dear_run_is_shorter_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    choice = recipe.Choice(1e-3, 100.0, 0.0, "", "eager")
    options = {"settings": USUAL, "budget": BUDGETS.eager}
    options |= {"steps": None, "burn_in": None, "thin": None}
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        assert run_length.choose(choice, work=1e6, **options).steps == 4000
        assert not caplog.text
        most, fewest = BUDGETS.eager.work, BUDGETS.eager.fewest
        found = run_length.choose(choice, work=most / 750, **options)
        assert found.steps == 700
        assert "700 steps, where 4000" in caplog.text
        found = run_length.choose(choice, work=most, **options)
        assert (found.steps, found.burn_in) == (fewest, None)  # a third


def test_a_pilot_goes_on_while_curvature_changes_and_steps_are_cheap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = (cost.Costs(m, BUDGETS.usual, USUAL) for m in (700, 9e6))
    spared = cost.Costs(700, BUDGETS.eager, USUAL)
    assert [c.pilot_steps(800) for c in (small, large, spared)] == [
        (1, 50, 150, 500), (1, 50), (1, 50)
    ]  # fmt: skip
    prior = priors.Gaussian(1.0)
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), prior=prior, init="model")
    data = torch.rand(60, 2), torch.arange(60) % 2
    for growth, stops in ((1.0, [1, 50, 150]), (2.0, [1, 50, 150, 500])):
        seen: list[int] = []

        def steepest(dynamics, state, *rest, growth=growth, seen=seen):  # type: ignore[no-untyped-def]
            seen.append(int(state.step))
            return torch.full((state.chains,), 10.0 * growth ** len(seen))

        monkeypatch.setattr(step_size, "steepest", steepest)
        plan = sampler.plan(data)
        assert seen == stops
        assert plan.measured["curvature"] is not None
    seen.clear()
    moments = itertools.count(step=1000.0)
    monkeypatch.setattr(step_size, "clock", lambda: next(moments))
    sampler.plan(data, seconds=5.0)
    assert seen == [1]  # more would take longer than the whole call may


@pytest.mark.parametrize("native", [False, True])
def test_a_pilot_measures_on_fewer_rows_where_its_steps_are_dear(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And minibatches are small, and no other scale of the prior is tried."""
    x, y = torch.rand(600, 1, 4, 4), torch.randint(0, 2, (600,))
    kind = "places" if native else "eager"
    little = replace(getattr(BUDGETS, kind), work=1e6, trial=1e6, fewest=30)
    settings = changed(cost={kind: little}, pilot={"costly_step": 1e4}, descent={"rounds": (10,)})
    seen: list[int] = []
    measured = step_size.steepest

    def steepest(dynamics, state, data, *rest):  # type: ignore[no-untyped-def]
        seen.append(int(state.step))
        assert len(data[0]) == USUAL.pilot.costly_rows
        return measured(dynamics, state, data, *rest)

    monkeypatch.setattr(step_size, "steepest", steepest)
    model = convolutional() if native else convolutional(nn.Softsign())
    sampler = Langevin(model, likelihoods.Categorical(), chains=2, recipe=settings)
    posterior = sampler.sample((x, y), progress=False)
    assert seen == [1, 50]
    assert posterior.plan.prior_scale == 1.0
    assert posterior.config["steps"] == 30
    assert posterior.config["batch_size"] == 100
