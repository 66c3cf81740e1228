"""How sharply classes are predicted, learned where the prior's scale is tried, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, Posterior, likelihoods, models, priors
from natural_langevin.posterior import calibration
from natural_langevin.recipe.settings import Trial
from short_recipe import SHORT as BRIEF
from short_recipe import USUAL, changed

RULE = USUAL.sharpness
CHOICE = {"deviation": RULE.deviation, "least_gain": RULE.least_gain}
#: A trial of a moment, in which every sharpness counts.
MOMENT = Trial(steps=40, chains=2, draws=5, folds=3)
SHORT = changed(prior={"native": MOMENT, "eager": MOMENT}, sharpness={"least_gain": -math.inf})


def unsure(rows: int, beta: float) -> tuple[Tensor, Tensor]:
    """Probabilities m, and labels drawn from m^beta."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((beta * logits).softmax(-1), 1, generator=generator).squeeze(1)
    return logits.softmax(-1), labels


def test_lowest_point_of_the_penalised_score() -> None:
    mixture, y = unsure(500, 1.5)
    grid = torch.linspace(0.5, 3.0, 2501, dtype=torch.float64)
    rows = (grid[:, None, None] * mixture.log()).log_softmax(-1)
    nats = -rows.gather(-1, y.expand(len(grid), -1)[..., None]).sum((1, 2))
    best = (nats + (grid.log() / RULE.deviation).square() / 2).argmin()
    beta, why = calibration.sharpness(mixture, y, **CHOICE)
    assert beta == pytest.approx(float(grid[best]), abs=0.006)  # three digits are kept
    gain = float(nats[(grid - 1).abs().argmin()] - nats[best])
    assert why == f"{gain:.3g} nats gained on 500 held-out labels"


@pytest.mark.parametrize(("rows", "beta"), [(20, 1.5), (500, 1.0)])
def test_one_where_labels_say_little(rows: int, beta: float) -> None:
    found, why = calibration.sharpness(*unsure(rows, beta), **CHOICE)
    assert found == 1.0
    assert f"on {rows} held-out labels: too few" in why


def test_never_wider_than_the_mixture() -> None:
    """A trial's chains are surer than the run's: what they ask for below 1 is no advice."""
    found, why = calibration.sharpness(*unsure(500, 0.5), **CHOICE)
    assert found == 1.0
    assert "favour 0.5" in why


def rows(count: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator)
    return x, (x.sum(1) > 0).long()


def run(likelihood: likelihoods.Likelihood, y: Tensor | None = None, **options: Any) -> Posterior:
    x, labels = rows()
    y = labels if y is None else y
    outputs = y.shape[1] if y.ndim > 1 else 2
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, outputs))
    recipe = None if "step_size" in options else SHORT
    sampler = Langevin(network, likelihood, **{"chains": 2, "recipe": recipe} | options)
    return sampler.sample((x, y), 40, progress=False)


def test_a_run_learns_it() -> None:
    posterior = run(likelihoods.Categorical())
    assert posterior.sharpness == posterior.plan.calibration.sharpness != 1
    assert "held-out labels" in posterior.plan.reasons["sharpness"]
    assert posterior.config["temperature"] == [1.0, 1.0]


def measured_by(trial: int, enough: int, compile: bool | str) -> Langevin:
    """Two chains after a trial of so many, where so many held-out rows are enough."""
    few = Trial(steps=40, chains=trial, draws=5, folds=3)
    recipe = changed(
        BRIEF,
        prior={"native": few, "eager": few, "enough_held_out": enough},
        sharpness={"least_gain": -math.inf},
    )
    network, likelihood = models.mlp(2, 2, (3,)), likelihoods.Categorical()
    return Langevin(network, likelihood, chains=2, recipe=recipe, compile=compile)


@pytest.mark.parametrize(
    ("trial", "steps", "enough", "labels"),
    [(1, 40, 20, 60), (2, 90, 20, 60), (1, 90, 21, 60)],
    ids=["too short a run", "as many chains", "too few rows"],
)
def test_a_trials_own_chains_where_the_runs_would_say_no_more(
    trial: int, steps: int, enough: int, labels: int
) -> None:
    plan = measured_by(trial, enough, compile=False).plan(rows(), steps=steps)
    assert f"on {labels} held-out labels" in plan.reasons["sharpness"]
    assert plan.calibration is not None


@pytest.mark.parametrize(
    ("compile", "labels"), [(False, 20), ("auto", 60)], ids=["as the run", "by an engine"]
)
def test_as_many_chains_as_the_run_has(compile: bool | str, labels: int) -> None:
    """Fewer are surer than the run: it is then measured by the run's own number of chains for as
    long as its burn-in, on the 20 of 60 rows that one of three folds holds out."""
    x, y = rows()

    def sampler() -> Langevin:
        return measured_by(1, 20, compile)

    plan = sampler().plan((x, y), steps=90)
    assert f"on {labels} held-out labels" in plan.reasons["sharpness"]
    assert plan.calibration is not None
    posterior = sampler().sample((x, y), plan=plan, progress=False)
    assert posterior.sharpness == plan.calibration.sharpness
    if compile:  # the same plan again, by the quicker way
        assert sampler().plan((x, y), steps=90) == plan


def test_every_label_counts_once() -> None:
    """Several labels of a row; positions without one do not count; rows held out are not new to
    every fold."""
    many = torch.stack([rows()[1], 1 - rows()[1]], 1).float()
    posterior = run(likelihoods.Bernoulli(), many)
    assert "on 120 held-out labels" in posterior.plan.reasons["sharpness"]
    some = rows()[1].where(torch.arange(60) % 3 > 0, -100)
    posterior = run(likelihoods.Categorical(ignore_index=-100), some)
    assert "on 40 held-out labels" in posterior.plan.reasons["sharpness"]
    sampler = Langevin.from_trained(
        models.mlp(2, 2, (3,)), likelihoods.Categorical(), held_out=rows(45, 1), chains=2,
        recipe=SHORT,
    )  # fmt: skip
    posterior = sampler.sample(rows(), 40, progress=False)
    assert "on 45 held-out labels" in posterior.plan.reasons["sharpness"]


@pytest.mark.parametrize(
    ("likelihood", "options"),
    [
        (likelihoods.Categorical(), {"prior": priors.FanIn(2**0.5)}),
        (likelihoods.Categorical(), {"step_size": 1e-2}),
        (likelihoods.Categorical(class_weights=(1.0, 2.0)), {}),
        (likelihoods.Categorical(), {"temperature": torch.tensor([1.0, 0.5])}),
    ],
)
def test_nothing_is_learned_otherwise(
    likelihood: likelihoods.Likelihood, options: dict[str, Any]
) -> None:
    posterior = run(likelihood, **options)
    assert posterior.sharpness == 1.0
    assert "sharpness" not in posterior.config
    assert "sharpness" not in posterior.plan.reasons


def test_too_few_rows_for_a_trial() -> None:
    x, y = rows(30)
    sampler = Langevin(models.mlp(2, 2, (3,)), likelihoods.Categorical(), chains=2)
    posterior = sampler.sample((x, y), 40, progress=False)
    assert posterior.sharpness == 1.0
