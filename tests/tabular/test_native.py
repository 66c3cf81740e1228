"""The recipe's runs go by the native engine, and it takes the steps of the definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from natural_langevin.execution import engine as engines
from natural_langevin.execution.kernels.native.planner import agrees, plan_native
from natural_langevin.tabular import crossvalidation
from natural_langevin.tabular.candidates import candidates
from natural_langevin.tabular.crossvalidation import Problem, split
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.settings import Settings

OUTCOMES = {
    "classes": Outcome("classification", "categorical", classes=3),
    "constant": Outcome("regression", "constant"),
    "varying": Outcome("regression", "varying"),
    "two targets": Outcome("regression", "varying", mean=(0.0, 0.0), scale=(1.0, 1.0)),
    "poisson": Outcome("count", "poisson", mean=(0.5,)),
}


def small_problem(kind: str, activation: str) -> Problem:
    outcome = OUTCOMES[kind]
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(60, 3))).float()
    y = x[:, : len(outcome.mean)] + 0.1 * torch.tensor(rng.normal(size=(60, 1))).float()
    if outcome.classes:
        y = torch.tensor(rng.integers(3, size=60))
    elif outcome.task == "count":
        y = torch.tensor(rng.poisson(2.0, size=(60, 1))).float()
    settings = Settings(
        hidden=(5, 4), steps=20, chains=2, activation=activation, precision="float32"
    ).of_rows(60)
    return Problem(outcome, settings, x, y)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("kind", OUTCOMES)
def test_folds_and_candidates_are_native_chains(kind, activation, monkeypatch):
    """Priors per layer and chain, temperatures and folds per chain: one step equals the reference's
    up to rounding, which a run of known networks does not check by itself."""
    plans = []

    def watched(dynamics, state, stream, rates, num_data):
        native = plan_native(dynamics, state, stream, rates, num_data)
        plans.append(native is not None and agrees(native, state))
        return native

    monkeypatch.setattr(engines, "plan_executor", watched)
    here = small_problem(kind, activation)
    offered = candidates(here.settings, classes=bool(here.outcome.classes))
    labels = here.y.numpy() if here.outcome.classes else None
    held_out, _ = here.held_out(offered, split(60, 3, 0, labels))
    assert list(held_out.networks) == list(range(len(offered)))
    run = here.posterior(offered[0], 2)
    assert len(plans) >= 3  # Gaussian candidates, the learned variance, all rows; and retries
    assert all(plans)
    assert run.config["execution"] == "native"


def test_the_schedule_rises_and_falls():
    warming = crossvalidation.Warming(torch.tensor([0.1, 0.2]), 10)
    table = warming.table(0, 100)
    assert table.shape == (100, 2)
    torch.testing.assert_close(warming(37), table[37])
    torch.testing.assert_close(table[:, 1], 2 * table[:, 0])
    assert float(table[0, 0]) == pytest.approx(0.01)
    assert float(table[90, 0]) == pytest.approx(0.1 * 10 ** (-1 / 3))


def test_networks_that_ran_away_are_not_sound():
    here = small_problem("varying", "relu")
    run = here.posterior(candidates(here.settings, classes=False)[0], 2)
    assert len(here.sound(run)) == 2 * run.draws
    run.samples["4.bias"][1, 2:] += 1e6
    assert here.sound(run).tolist() == list(range(run.draws + 2))
    assert replace(here, counts=None).sound(run).tolist() == list(range(run.draws + 2))
