"""Steps that are too large: how the recipe avoids them, and what it does where it has not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, models, priors
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.recipe import cost, prior_trial
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.settings import Settings, Trial
from natural_langevin.run.look import Look
from natural_langevin.run.loop import DivergenceError
from natural_langevin.run.time_limit import NO_LIMIT
from short_recipe import USUAL, changed


def wave(count: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=generator)
    return x, torch.sin(x[:, :1]) + 0.3 * torch.randn(count, 1, generator=generator)


#: Runs of 200 steps, and 400 more.
SHORT = changed(
    end={"first_steps": 200}, length={"fewest": 600},
    cost={"usual": replace(USUAL.cost.usual, relaxations=1)},
)  # fmt: skip


def sampler(settings: Settings = SHORT) -> Langevin:
    net = models.mlp(2, 1, (32,), activation=nn.Tanh, seed=0)
    prior = priors.Gaussian(1.0)
    return Langevin(net, likelihoods.Gaussian(0.3), prior=prior, chains=2, recipe=settings)


def test_chains_that_a_step_throws_away_end_the_run_by_name() -> None:
    plan = sampler().plan(wave(), 200)
    with pytest.raises(DivergenceError, match="step size is most likely too large"):
        sampler().sample(wave(), plan=replace(plan, step_size=50.0), progress=False)


#: Runs of at most 2,000 steps; and with eta lambda = 4, at the edge of what is stable.
BRIEF = replace(changed(SHORT, length={"unmixed": 1, "most": 2000}), cheap=None)
WILD = changed(BRIEF, step_size={"steepness": 4.0, "largest": 100.0, "heat": 100.0})


def wild(**options: object) -> Langevin:
    """Of a network that does not bound what a large step does."""
    net = models.mlp(2, 1, (32, 32), seed=0)
    given = {"prior": priors.Gaussian(1.0), "chains": 2, "recipe": WILD} | options
    return Langevin(net, likelihoods.Gaussian(0.3), **given)


def test_a_run_that_loses_chains_begins_again_with_smaller_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usual = wild(recipe=BRIEF).sample(wave(), progress=False)
    with caplog.at_level("INFO", logger="natural_langevin"):
        found = wild().sample(wave(), progress=False)
    assert "a chain became non-finite at step" in caplog.text
    assert not any(record.levelname == "WARNING" for record in caplog.records)
    assert found.healthy == [0, 1]
    plan = found.plan
    assert plan.attempts < WILD.length.attempts
    assert plan.step_size * plan.measured["curvature"] < 1.1
    assert "since chains were lost with" in str(plan)
    x, y = wave(1000)
    assert found.evaluate(x, y).nll < usual.evaluate(x, y).nll + 0.1
    again = wild().sample(wave(), plan=plan, progress=False)
    on_disk = wild().sample(wave(), store=tmp_path / "draws", progress=False)
    for name, draws in found.samples.items():
        assert torch.equal(draws, again.samples[name])
        assert torch.equal(draws, on_disk.samples[name])
    assert len(list((tmp_path / "draws").glob("*.safetensors"))) == 1


class KilledError(BaseException):
    """In place of a signal."""


def test_one_that_was_killed_after_it_began_again_goes_on(tmp_path: Path) -> None:
    plan = wild().plan(wave())
    whole = wild().sample(wave(), plan=plan, progress=False)
    assert whole.plan.attempts < plan.attempts
    losses: list[int] = []

    def kill(look: Look) -> None:
        losses.append(look.step)
        if losses.count(look.step) > plan.attempts - whole.plan.attempts and look.step >= 100:
            raise KilledError

    folder = tmp_path / "run"
    arguments = {"plan": plan, "checkpoint": folder, "every": 50, "progress": False}
    with pytest.raises(KilledError):
        wild().sample(wave(), callback=kill, **arguments)
    found = wild().sample(wave(), **arguments)
    assert found.plan == whole.plan
    for name, draws in whole.samples.items():
        assert torch.equal(draws, found.samples[name])


def test_a_step_size_of_ones_own_is_run_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("INFO", logger="natural_langevin"),
        pytest.raises(DivergenceError, match="try a tenth of it"),
    ):
        wild(step_size=50.0, recipe="auto").sample(wave(), 200, progress=False)
    assert "again, with" not in caplog.text


def test_the_metric_of_a_run_before_fades() -> None:
    """gamma_t = 4 / (t + 4) weighs a batch like t^3; the start then counts for 100 batches."""
    table = RatesTable.build(0.1, lambda t: 4 / (t + 4) if t < 5 else 0.0, stop=6, chains=2)
    table.remember(25)
    expected = [4 / (t + 104) for t in range(5)] + [0.0]
    assert table.values[:, -2].tolist() == pytest.approx(expected)
    assert (table.step_size == 0.1).all()


def test_chains_that_come_downhill_begin_with_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are fitted have no gradients, so the first metrics are far too wide: two chains of
    four went to tau = 200 in eight schools, and what the metric learned there kept them there."""
    table = RatesTable.build(0.1, lambda t: 0.5, stop=6, chains=2)
    table.rise(4)
    assert table.step_size[:, 1].tolist() == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])
    assert (table.values[:, -2] == 0.5).all()
    table.rise(0)
    assert table.step_size[0].tolist() == pytest.approx([0.025, 0.025])

    asked: list[int] = []
    monkeypatch.setattr(RatesTable, "rise", lambda _, steps: asked.append(steps))
    plan = replace(sampler().plan(wave(40), 24), descent=None)
    sampler().sample(wave(40), plan=plan, progress=False)
    assert not asked
    sampler().sample(wave(40), plan=replace(plan, descent=USUAL.descent), progress=False)
    assert asked == [2]


class Found:
    """Where the chains of a trial have come to."""

    def __init__(self) -> None:
        self.last = {"w": torch.arange(48.0)[:, None]}
        self.learned = {"s": torch.arange(48.0)}


def chosen(monkeypatch: pytest.MonkeyPatch, scores: torch.Tensor) -> recipe.Choice:
    """By a trial with these -ln densities, (scale, row)."""
    scales = (0.2, 1.0, 5.0, 25.0)
    choices = [recipe.Choice(0.1 / k, k, 0.0, f"{k}") for k in (10.0, 900.0, 50.0, 2000.0)]
    run = prior_trial.Compared(
        scales, choices, USUAL.prior.native, Found(), wave(), torch.zeros(4, 1), scores
    )
    piloted = dict(zip(scales, choices, strict=True))
    monkeypatch.setattr(prior_trial, "_compare", lambda *_: (piloted, [run]))
    costs = cost.Costs(1.0, USUAL.cost.usual, USUAL)
    search = cost.Search(sampler().motion, False, 100, costs, NO_LIMIT)
    found = prior_trial.choose(search, wave())
    assert found is not None
    assert found.prior_scale is not None
    return found


def test_a_wider_prior_is_taken_to_be_as_steep_as_a_narrower_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One chain of a pilot may end where it is flat: what a narrower scale found is a limit too."""
    scores = torch.tensor([[1.0], [0.9], [0.5], [0.8]]).double().expand(4, 50)
    found = chosen(monkeypatch, scores)
    assert found.curvature == 900.0
    assert 1.0 < found.prior_scale < 25.0


@pytest.mark.parametrize(
    ("rows", "wide", "narrow"), [(16, 1.0, False), (400, 1.0, True), (400, 4.0, False)]
)
def test_narrower_than_usual_only_where_all_others_are_clearly_behind(
    monkeypatch: pytest.MonkeyPatch, rows: int, wide: float, narrow: bool
) -> None:
    """Few labels: networks that say the same of all rows are a little ahead, by chance; and a prior
    whose rows differ ``wide`` may not be clearly behind where the usual one is."""
    noise = torch.randn(4, rows, generator=torch.Generator().manual_seed(0)).double()
    noise[2] *= wide
    scores = torch.tensor([[2.3], [2.6], [2.7], [4.0]]).double() + noise
    assert (chosen(monkeypatch, scores).prior_scale < 1.0) == narrow


def test_the_next_scale_begins_where_the_widest_ended() -> None:
    """``end`` of the widest, twice: chains of both on the same folds from the same weights."""
    trial = Trial(300, 2, 10, folds=3)
    run = prior_trial.Compared(
        (0.2, 1.0, 5.0, 25.0), [], trial, Found(), wave(), torch.zeros(1), torch.zeros(1)
    )
    found, learned = run.end((25.0, 25.0))
    assert found["w"].flatten().tolist() == [*range(18, 24)] * 2
    assert learned["s"].tolist() == [*range(18, 24)] * 2
