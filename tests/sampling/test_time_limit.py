"""``seconds`` are those of the whole call, by a clock that steps move: no machine is timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, langevin, likelihoods, models
from natural_langevin.dynamics import State
from natural_langevin.execution.engine import Engine
from natural_langevin.recipe import cost, prior_trial
from natural_langevin.run import descent, time_limit
from natural_langevin.run.look import Look
from natural_langevin.tabular.recipe import learn
from natural_langevin.tabular.settings import Settings
from short_recipe import SHORT, USUAL, changed

ROWS = 60


def data() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=g)
    return x, (x.mean(1) + 0.5 * torch.randn(ROWS, generator=g) > 0).long()


def sampler() -> Langevin:
    torch.manual_seed(0)
    network = models.mlp(3, 2, (8,), activation=nn.Tanh)
    return Langevin(network, likelihoods.Categorical(), chains=2)


class Clock:
    """Every chain-step takes ``price`` seconds, and nothing else any."""

    def __init__(self, price: float) -> None:
        self.now, self.price, self.steps = 0.0, price, Counter[int]()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found, real = Clock(0.01), Engine.run

    def run(self: Engine, state: Any, start: int, count: int) -> Any:
        chains = len(state.diverged)
        found.now += count * chains * found.price
        found.steps[chains] += count
        return real(self, state, start, count)

    costs = cost.of_problem
    monkeypatch.setattr(  # as without an engine
        cost, "of_problem", lambda *given: costs(*given)._replace(budget=USUAL.cost.eager)
    )
    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(time_limit, "clock", found)
    return found


def sampled(seconds: float, **options: Any) -> Any:
    return sampler().sample(data(), seconds=seconds, progress=False, **options)


@pytest.mark.parametrize("price", [2e-3, 1e-2])
def test_the_whole_call_takes_the_seconds_that_were_given(clock: Clock, price: float) -> None:
    """Search, pilot, way down and steps together."""
    clock.price = price
    posterior = sampled(12.0)
    assert 0.9 * 12 < clock.now < 1.1 * 12
    assert posterior.config["limit"] == "seconds"
    # A fifth of it at least is for the steps of the run.
    assert posterior.config["steps"] * 2 * price > 0.19 * 12


@pytest.mark.parametrize("changes_to", [0.8, 1.6])
def test_a_pace_that_changes_does_not_change_the_time(clock: Clock, changes_to: float) -> None:
    """The clock ends the run, with the draws that there are; one that may be gone on with from a
    checkpoint has its steps counted."""

    def slower(look: Look) -> None:
        clock.price = 2e-3 * changes_to

    clock.price = 2e-3
    posterior = sampled(12.0, callback=slower)
    assert 0.9 * 12 < clock.now < 1.1 * 12
    assert posterior.config["limit"] == "seconds"
    assert posterior.draws >= 50
    assert torch.isfinite(posterior.samples["0.weight"]).all()


def test_a_search_that_would_take_most_of_it_is_left_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    real = prior_trial.folds

    def folds(count: int, seed: int, chains: int, used: int, *rest: Any) -> prior_trial.Folds:
        tried.append((chains, used))
        return real(count, seed, chains, used, *rest)

    monkeypatch.setattr(prior_trial, "folds", folds)
    clock.price = 1e-2
    posterior = sampled(8.0)
    assert tried == []
    assert "prior" not in posterior.plan.reasons
    # With more time a cheaper one, and with enough the usual one.
    clock.price = 1e-3
    sampled(8.0)
    cheaper = tried.pop()
    assert not tried
    clock.price = 1e-5
    sampled(2.0)
    usual = tried[0]
    assert cheaper[0] * cheaper[1] < usual[0] * usual[1]


@pytest.mark.parametrize(("given", "expected"), [(None, 16), (2, None)])
def test_time_for_more_steps_than_chains_gain_by_buys_chains(
    clock: Clock, given: int | None, expected: int | None
) -> None:
    """Unless their number was given; and the plan is the run."""
    clock.price = 1e-3
    network = models.mlp(3, 2, (8,), activation=nn.Tanh)
    settings = changed(SHORT, length={"most": 150, "fewest": 100})
    free = Langevin(network, likelihoods.Categorical(), chains=given, recipe=settings)
    plan = free.plan(data(), seconds=12.0)
    assert plan.chains == expected
    count = expected or given
    found = free.sample(data(), plan=replace(plan, seconds=None, steps=60), progress=False)
    assert found.chains == count
    assert len(found.samples["0.weight"]) == count
    clock.now = 0.0
    assert free.sample(data(), seconds=12.0, progress=False).chains == count
    assert 0.9 * 12 < clock.now < 1.1 * 12


def test_without_seconds_the_clock_changes_nothing(clock: Clock) -> None:
    sampler().sample(data(), steps=50, progress=False)
    plain, clock.steps = clock.steps, Counter()
    clock.price = 100.0
    sampler().sample(data(), steps=50, seconds=1.0, progress=False)  # steps are what counts
    assert clock.steps == plain


def test_seconds_of_a_target_are_of_the_whole_call_too(clock: Clock) -> None:
    posterior = sampled(12.0, until="ess:100000", burn_in=10, thin=1)
    assert posterior.config["limit"] == "seconds"
    assert clock.now < 1.3 * 12


@pytest.mark.parametrize("price", [1e-3, 1e-2])
def test_seconds_of_a_target_are_kept_by_a_usual_burn_in_that_takes_longer(
    clock: Clock, price: float
) -> None:
    """Burn-in was that of the usual run: four times the seconds, and four draws."""
    clock.price = price
    posterior = sampled(4.0, until="ess:100000")
    assert posterior.config["limit"] == "seconds"
    assert clock.now < 1.1 * 4
    assert posterior.draws > 4


def test_a_table_ends_when_its_seconds_are_over(clock: Clock) -> None:
    """Descents on folds, the views' comparison and the last runs, each within its part."""
    x, y = data()
    clock.price = 4e-3
    learn(x.double(), y, "classification", Settings(hidden=(4,), seconds=12.0), classes=2)
    assert 0.9 * 12 < clock.now < 1.1 * 12


def test_seconds_beside_a_plan_end_it(clock: Clock) -> None:
    plan = sampler().plan(data(), steps=5000, burn_in=10, thin=5)
    clock.now, clock.price = 0.0, 1e-3
    found = sampler().sample(data(), plan=plan, seconds=5.0, progress=False)
    assert found.config["steps"] < plan.steps
    assert clock.now < 1.1 * 5


@pytest.mark.parametrize("seconds", [2.0, 8.0])
def test_the_clock_ends_a_plan_of_open_length_too(clock: Clock, seconds: float) -> None:
    """Its next part began when time was over, and its burn-in took as long as it takes; seconds
    that were changed in a plan were not looked at."""
    plan = sampler().plan(data())
    assert plan.open_end is not None
    for options in ({"plan": plan, "seconds": seconds}, {"plan": replace(plan, seconds=seconds)}):
        clock.now, clock.price = 0.0, 2e-2
        found = sampler().sample(data(), progress=False, **options)
        assert 0.85 * seconds < clock.now < 1.1 * seconds
        assert found.draws > 4  # as many as there are whatever the clock says
    again = sampler().sample(data(), plan=found.plan, seconds=100.0, progress=False)
    assert again.config["steps"] == found.plan.steps  # no more than the plan


def test_seconds_that_cannot_end_a_run(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They were ignored: beside a plan with a checkpoint, and beside steps."""
    plan = sampler().plan(data(), steps=60)
    for options in ({"plan": plan, "seconds": 1.0}, {"plan": replace(plan, seconds=1.0)}):
        with pytest.raises(ValueError, match="seconds=1 cannot end the run of a plan"):
            sampler().sample(data(), checkpoint=tmp_path, progress=False, **options)
    run = sampler().sample(data(), steps=60, seconds=1.0, progress=False)
    assert "seconds=1.0 is not used beside steps=60" in caplog.text
    assert (run.config["limit"], run.plan.seconds) == ("steps", None)


def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Where the runs begin, and how many chains the descents have, in their order."""
    found: list[Any] = []
    real, run = descent.descend, langevin.run

    def down(moves: Any, state: State, *rest: Any, **options: Any) -> State:
        found.append(state.chains)
        return real(moves, state, *rest, **options)

    def started(motion: Any, plan: Any, options: Any) -> Any:
        found.append(options.begin)
        return run(motion, plan, options)

    monkeypatch.setattr(descent, "descend", down)
    monkeypatch.setattr(langevin, "run", started)
    return found


def test_what_the_search_has_gone_down_is_where_the_run_begins(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains of a trial are those of the run; none goes down twice. Without a limit the plan alone
    says what is run."""
    found = begun(monkeypatch)
    clock.price = 1e-5
    sampled(2.0)
    *_, begin = found
    assert begin is not None
    assert len(begin[0]["0.weight"]) >= 2
    found.clear()
    sampler().sample(data(), steps=50, progress=False)
    assert None in found


def test_chains_that_have_no_time_to_go_down_are_left_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is time for the pilot's descent, and for no trial: the run has its chains."""
    found = begun(monkeypatch)
    clock.price = 1e-2
    network = models.mlp(3, 2, (8,), activation=nn.Tanh)
    rule = changed(SHORT, time={"search": 0.3})
    free = Langevin(network, likelihoods.Categorical(), recipe=rule)
    posterior = free.sample(data(), seconds=12.0, progress=False)
    assert posterior.chains < USUAL.chains
    assert "no time for 4 to go down" in str(posterior.plan)
    assert found[0] == posterior.chains  # those of the pilot; no other went down
    assert [len(begin[0]["0.weight"]) for begin in found[1:]] == [posterior.chains]
    assert 0.9 * 12 < clock.now < 1.2 * 12
