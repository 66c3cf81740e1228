"""The recipe of runs whose length and step size are left open, in a fraction of its time: for tests
of what is done with such runs, and not of how good they are."""

from __future__ import annotations

import pytest

from natural_langevin.recipe import cost, prior_scale
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.prior_scale import Trial
from natural_langevin.run import descent


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Every part is there, and short: the way down, the trial of priors, the pilot, the run."""
    short = {"work": 0.03 * cost.USUAL.work, "trial": 0.03 * cost.USUAL.trial, "fewest": 120}
    patch.setattr(cost, "USUAL", cost.USUAL._replace(**short))
    patch.setattr(recipe, "FEWEST_STEPS", 120)
    patch.setattr(recipe, "FIRST_STEPS", 120)
    patch.setattr(recipe, "MOST_STEPS", 600)
    patch.setattr(cost, "MOST_DRAWS", 24)
    patch.setattr(recipe, "PILOT_STEPS", (1, 20))
    patch.setattr(prior_scale, "NATIVE", Trial(40, 2, 5, rounds=2))
    patch.setattr(prior_scale, "EAGER", Trial(24, 1, 6))
    patch.setattr(descent, "ROUNDS", (40, 80))
