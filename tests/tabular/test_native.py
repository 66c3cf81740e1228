"""The recipe's runs go by the native engine, and it takes the steps of the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from natural_langevin.execution import engine as engines
from natural_langevin.execution.kernels.native.planner import agrees, plan_native
from natural_langevin.tabular.crossvalidation import TableFit, split
from natural_langevin.tabular.inputs import plain_inputs
from natural_langevin.tabular.outcome import Outcome
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.views import View

OUTCOMES = {
    "classes": Outcome("classification", "categorical", classes=3),
    "constant": Outcome("regression", "constant"),
    "varying": Outcome("regression", "varying"),
    "two targets": Outcome("regression", "varying", mean=(0.0, 0.0), scale=(1.0, 1.0)),
    "poisson": Outcome("count", "poisson", mean=(0.5,)),
}


def small_fit(kind: str, activation: str) -> tuple[TableFit, View]:
    outcome = OUTCOMES[kind]
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(60, 3))).float()
    y = x[:, : len(outcome.mean)] + 0.1 * torch.tensor(rng.normal(size=(60, 1))).float()
    if outcome.classes:
        y = torch.tensor(rng.integers(3, size=60))
    elif outcome.task == "count":
        y = torch.tensor(rng.poisson(2.0, size=(60, 1))).float()
    settings = Settings(
        hidden=(5, 4), steps=20, chains=2, activation=activation, precision="float32",
        prior_variance="fan_in", step_size=0.001,
    ).of_rows(60)  # fmt: skip
    folds = split(60, 3, 0, y.numpy() if outcome.classes else None)
    return TableFit(x, y, settings, folds), View(outcome, plain_inputs(3), settings)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        pytest.param(kind, one, marks=() if (k + a) % 2 == 0 else pytest.mark.thorough)
        for k, kind in enumerate(OUTCOMES)
        for a, one in enumerate(["relu", "tanh"])
    ],
)
def test_folds_are_native_chains(kind, activation, monkeypatch):
    """One step of folds, and of all rows, equals the reference's up to rounding, which a run of
    known networks does not check by itself."""
    plans = []

    def watched(dynamics, state, stream, rates, num_data):
        native = plan_native(dynamics, state, stream, rates, num_data)
        plans.append(not isinstance(native, str) and agrees(native, state))
        return native

    here, view = small_fit(kind, activation)
    plan = here.plan(view)
    monkeypatch.setattr(engines, "PLANNERS", [watched])
    trial = here.on_folds(view, plan)
    assert len(trial.folds) == 3
    run = here.on_all_rows(trial, 2)
    assert len(plans) >= 2
    assert all(plans)
    assert run.config["execution"] == "native"


def test_networks_that_ran_away_are_not_sound():
    here, view = small_fit("varying", "relu")
    run = here.on_all_rows(here.on_folds(view, here.plan(view)), 2)
    assert len(here.sound(view, run)) == 2 * run.draws
    run.samples["4.bias"][1, 2:] += 1e6
    assert here.sound(view, run).tolist() == list(range(run.draws + 2))
