"""The recipe of runs whose length and step size are left open, in a fraction of its time: for tests
of what is done with such runs, and not of how good they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from natural_langevin.recipe import open_settings
from natural_langevin.recipe.settings import Settings, Trial

USUAL = Settings()


def changed(settings: Settings = USUAL, **parts: dict[str, Any]) -> Settings:
    """The settings with other constants: ``changed(pilot={"steps": (1, 20)})``."""
    new = {name: replace(getattr(settings, name), **values) for name, values in parts.items()}
    return replace(settings, **new)


#: Every part is there, and short: the way down, the trial of priors, the pilot, the run.
SHORT = changed(
    cost={
        "usual": replace(
            USUAL.cost.usual, work=0.03 * USUAL.cost.usual.work,
            trial=0.03 * USUAL.cost.usual.trial, fewest=120,
        ),
        "most_draws": 24,
    },
    length={"fewest": 120, "most": 600, "unmixed": 1},
    end={"first_steps": 120},
    pilot={"steps": (1, 20)},
    prior={"native": Trial(40, 2, 5, folds=3, rounds=2), "eager": Trial(24, 1, 6, folds=3)},
    descent={"rounds": (40, 80)},
    step_size={"most_weights": 20},
)  # fmt: skip


def shorten(patch: pytest.MonkeyPatch, settings: Settings = SHORT) -> None:
    """For code that names no recipe: pages, examples, experiments, files of many samplers. Others
    are given their ``recipe=``."""
    patch.setattr(open_settings, "DEFAULT", settings)
