"""Steps that are too large: how the recipe avoids them, and what it does where it has not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, models, priors
from natural_langevin._internal.processes import SingleProcess
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.posterior.plan import Plan
from natural_langevin.recipe import cost, prior_trial
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.settings import Settings, Trial
from natural_langevin.run.time_limit import NO_LIMIT
from natural_langevin.run.until import EssTarget
from natural_langevin.run.watching import ExplosionError, Watching
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


def test_a_run_that_explodes_begins_anew_with_smaller_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """eta lambda = 4 is at the edge of what is stable, and a run begins with four times that."""
    usual = sampler().sample(wave(), progress=False)
    wild = changed(SHORT, step_size={"steepness": 4.0, "largest": 100.0, "heat": 100.0})
    with caplog.at_level("INFO", logger="natural_langevin"):
        found = sampler(wild).sample(wave(), progress=False)
    assert "starting again" in caplog.text
    assert not any(record.levelname == "WARNING" for record in caplog.records)
    assert found.healthy == [0, 1]
    chosen = found.config["recipe"]
    assert "exploded" in chosen["reason"]
    assert chosen["step_size"] * chosen["curvature"] < 1.1
    x, y = wave(1000)
    assert found.evaluate(x, y).nll < usual.evaluate(x, y).nll + 0.1


def test_a_length_of_ones_own_is_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Plan, "schedule", lambda self, burn_in: 50.0)
    with caplog.at_level("INFO", logger="natural_langevin"), pytest.raises(RuntimeError):
        sampler().sample(wave(), 200, progress=False)
    assert "starting again" not in caplog.text


@pytest.mark.parametrize("numbers", [1, 100])
def test_a_loss_may_rise_by_as_much_for_every_number_of_a_target(numbers: int) -> None:
    """Of 100 numbers that are each .1 nats worse off, none has exploded."""
    data = torch.zeros(4, 2), torch.zeros(4, numbers)
    stream = InMemory(*data, batch_size=4, chain=torch.arange(2), seed=0, device="cpu")
    engine: Any = SimpleNamespace(stream=stream)
    watching = Watching(
        engine, SingleProcess(2), EssTarget(None, None, None), steps=9, breaks_off=True
    )

    def see(*losses: float) -> None:
        info: Any = SimpleNamespace(loss=torch.tensor(losses), diverged=torch.zeros(2).bool())
        watching.look(None, info, 1, 0)

    see(1.0 * numbers, 1.5 * numbers)
    see(1.6 * numbers, 6.4 * numbers)
    with pytest.raises(ExplosionError):
        see(1.0 * numbers, 6.6 * numbers)


def test_the_metric_of_a_run_before_fades() -> None:
    """gamma_t = 4 / (t + 4) weighs a batch like t^3; the start then counts for 100 batches."""
    table = RatesTable.build(0.1, lambda t: 4 / (t + 4) if t < 5 else 0.0, stop=6, chains=2)
    table.remember(25)
    expected = [4 / (t + 104) for t in range(5)] + [0.0]
    assert table.values[:, -2].tolist() == pytest.approx(expected)
    assert (table.step_size == 0.1).all()


def test_a_wider_prior_is_taken_to_be_as_steep_as_a_narrower_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One chain of a pilot may end where it is flat: what a narrower scale found is a limit too."""
    scales = (0.2, 1.0, 5.0, 25.0)
    choices = [recipe.Choice(0.1 / k, k, 0.0, f"{k}") for k in (10.0, 900.0, 50.0, 2000.0)]
    scores = torch.tensor([[1.0], [0.9], [0.5], [0.8]]).double().expand(4, 50)
    run = prior_trial.Compared(
        scales, choices, USUAL.prior.native, None, wave(), torch.zeros(4, 1), scores
    )
    monkeypatch.setattr(prior_trial, "_compare", lambda *_: [run])
    costs = cost.Costs(1.0, USUAL.cost.usual, USUAL)
    search = prior_trial.Search(sampler().motion, False, 100, costs, NO_LIMIT)
    found = prior_trial.choose(search, wave())
    assert found is not None
    assert found.curvature == 900.0
    assert found.prior_scale is not None
    assert 1.0 < found.prior_scale.value < 25.0


def test_the_next_scale_begins_where_the_widest_ended() -> None:
    """``end`` of the widest, twice: chains of both on the same folds from the same weights."""
    trial = Trial(300, 2, 10, folds=3)
    weights = {"w": torch.arange(4 * 6.0)[:, None]}

    class Found:
        last, learned = weights, {"s": torch.arange(4 * 6.0)}

    run = prior_trial.Compared(
        (0.2, 1.0, 5.0, 25.0), [], trial, Found(), wave(), torch.zeros(1), torch.zeros(1)
    )
    found, learned = run.end((25.0, 25.0))
    assert found["w"].flatten().tolist() == [*range(18, 24)] * 2
    assert learned["s"].tolist() == [*range(18, 24)] * 2
