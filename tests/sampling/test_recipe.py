"""The recipe: what a run leaves open is chosen, said, and right on problems with known answers."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import (
    Langevin,
    likelihoods,
    models,
    preconditioners,
    priors,
    random,
    schedules,
)
from natural_langevin.data.loaders import SharedBatches
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import Overdamped, Underdamped
from natural_langevin.dynamics.base import State
from natural_langevin.execution.engine import Engine
from natural_langevin.posterior.plan import Descent, OpenEnd, Plan
from natural_langevin.recipe import (
    cost,
    open_settings,
    prior_trial,
    run_length,
    step_size,
)
from natural_langevin.recipe import rules as recipe
from natural_langevin.recipe.curvature import steepest
from natural_langevin.recipe.settings import Trial
from natural_langevin.run import descent, run, until
from natural_langevin.run.kept_draws import phases
from natural_langevin.run.problem import starts
from natural_langevin.run.time_limit import NO_LIMIT
from short_recipe import SHORT, USUAL, changed

TRIAL, FRICTION = USUAL.prior, USUAL.step_size.friction
#: Runs of 4,000 steps, which nothing follows.
ONE_PART = changed(length={"most": 4000})


def line(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=generator)
    y = x @ torch.tensor([[1.0], [-0.5]]) + 0.3 * torch.randn(count, 1, generator=generator)
    return x, y


def linear(**options: object) -> Langevin:
    model = nn.utils.skip_init(nn.Linear, 2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return Langevin(model, likelihoods.Gaussian(sigma=0.3), **options)  # type: ignore[arg-type]


def test_a_posterior_in_closed_form_is_sampled_with_nothing_said() -> None:
    """Bayesian linear regression: mean and standard deviation of every weight."""
    x, y = line()
    posterior = linear(prior=priors.Gaussian(1.0), chains=8).sample((x, y), progress=False)
    design = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / 0.09 + torch.eye(3))
    mean = (covariance @ design.T @ y.double() / 0.09)[:, 0]
    draws = torch.cat([posterior.samples["weight"].flatten(2), posterior.samples["bias"]], 2)
    draws = draws.flatten(0, 1).double()
    sd = covariance.diagonal().sqrt()
    # 1,600 draws, thinned to about a relaxation time: at least 400 effective ones.
    assert ((draws.mean(0) - mean).abs() < 5 * sd / 20).all()
    assert ((draws.std(0) / sd - 1).abs() < 5 / (2 * 400) ** 0.5).all()
    assert posterior.plan.prior_scale is None  # the prior was given
    assert "baoab" in posterior.config["dynamics"]


@pytest.mark.parametrize("metric", [None, preconditioners.DiagonalFisher()])
def test_chains_that_begin_far_away_arrive(metric: preconditioners.Preconditioner | None) -> None:
    """The noise is a hundredth of the targets' size: Langevin steps alone, whose metric remembers
    the gradients of the way, left chains where they had begun."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, generator=generator)
    weights = torch.tensor([[1.0], [-2.0], [0.5], [3.0], [0.0]])
    y = x @ weights + 0.03 * torch.randn(300, 1, generator=generator)
    model = models.mlp(5, 1, (), seed=0)
    sampler = Langevin(
        model, likelihoods.Gaussian(sigma=0.03), preconditioner=metric, recipe=ONE_PART
    )
    posterior = sampler.sample((x, y), progress=False)
    assert posterior.plan.start == "fan_in"
    design = torch.cat([x, torch.ones(300, 1)], 1).double()
    covariance = torch.linalg.inv(design.T @ design / 0.03**2)
    mean = (covariance @ design.T @ y.double() / 0.03**2)[:, 0]
    draws = torch.cat([v.flatten(2) for v in posterior.samples.values()], 2).flatten(0, 1).double()
    sd = covariance.diagonal().sqrt()
    # About 200 effective draws, and the prior, whose variance is 50,000 times the posterior's.
    assert ((draws.mean(0) - mean).abs() < 5 * sd / 200**0.5).all()
    assert ((draws.std(0) / sd - 1).abs() < 5 / (2 * 200) ** 0.5).all()


def test_the_metric_follows_the_number_of_weights() -> None:
    """Few of them have a dense matrix, of a unit's weights where all layers are linear."""

    def chosen(model: nn.Module, likelihood: object = likelihoods.Gaussian(0.1)) -> object:
        return recipe.metric(model, likelihood, USUAL.metric)

    assert isinstance(chosen(nn.Linear(4, 2)), preconditioners.UnitFisher)
    assert isinstance(chosen(nn.Linear(40, 1)), preconditioners.QuasiDiagonalFisher)
    labels = {
        likelihoods.Gaussian(0.1): "model",
        likelihoods.Scaled(likelihoods.Gaussian(0.1), (2.0,)): "model",
        likelihoods.Categorical(): "data",  # confident classes hardly draw a surprising label
        likelihoods.LogLoss(torch.sub): "data",  # which can draw none
        likelihoods.LogLoss(torch.sub, sample=torch.add): "model",
    }
    for likelihood, targets in labels.items():
        dense = chosen(nn.Conv1d(1, 2, 3), likelihood)
        assert isinstance(dense, preconditioners.FullFisher)
        assert dense.targets == targets, likelihood


def test_labels_are_drawn_where_an_engine_can() -> None:
    """Of real numbers, on a CPU: the native engine draws no counts, whole steps on a GPU none."""

    def chosen(likelihood: object, device: object = None) -> str:
        found = recipe.metric(nn.Linear(40, 1), likelihood, USUAL.metric, device)
        assert isinstance(found, preconditioners.QuasiDiagonalFisher)
        return found.targets

    drawn = (
        likelihoods.Gaussian(0.1), likelihoods.Gaussian("rmse"), likelihoods.StudentT(),
        likelihoods.HeteroscedasticGaussian(),
    )  # fmt: skip
    others = (
        likelihoods.Gaussian(priors.HalfNormal(1.0)), likelihoods.Poisson(), likelihoods.Hurdle(),
        likelihoods.NegativeBinomial(), likelihoods.Categorical(), likelihoods.Bernoulli(),
    )  # fmt: skip
    assert {chosen(one) for one in drawn} == {"model"}
    assert {chosen(one) for one in others} == {"data"}
    assert chosen(drawn[0], "cpu") == "model"
    assert chosen(drawn[0], torch.device("cuda", 0)) == "data"


def test_a_model_that_fits_a_little_is_where_chains_start() -> None:
    """A fifth of the variance explained: shuffled inputs raise the loss by a few per cent, but
    random weights, of targets that are not scaled, several times."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, generator=generator)
    y = 87 + 9 * x + 18 * torch.randn(300, 1, generator=generator)
    fitted, fresh = nn.Linear(1, 1), nn.Linear(1, 1)
    with torch.no_grad():
        fitted.weight.fill_(9.0)
        fitted.bias.fill_(87.0)
    for model, start in ((fitted, "model"), (fresh, "fan_in")):
        sampler = Langevin(model, likelihoods.Gaussian(sigma=18.0))
        assert starts.better(sampler.problem, (x, y), USUAL.start)[0] == start


def test_curvature_is_that_of_the_dense_matrix() -> None:
    """A linear model: H = x x^T / (N sigma^2) + 1 / (N variance), C from the sampler's metric."""
    x, y = line()
    sampler = linear(prior=priors.Gaussian(1.0), chains=2, step_size=1e-3)
    engine, state = sampler.prepare((x, y), steps=5, batch_size=60)
    state, _ = engine.run(state, 0, 5)
    found = steepest(sampler.frame, state, (x, y), 60, USUAL.pilot.iterations)
    design = torch.cat([x, torch.ones(60, 1)], 1)
    hessian = design.T @ design / 60 / 0.09 + torch.eye(3) / 60
    factor = sampler.frame.factor(state.metric, state.params, 60)
    columns = []
    for k in range(3):
        unit = torch.eye(3)[k].expand(2, 3)
        moved = factor.forward({"weight": unit[:, None, :2], "bias": unit[:, 2:]})
        columns.append(torch.cat([moved["weight"][:, 0], moved["bias"]], 1))
    a = torch.stack(columns, 2)
    largest = torch.linalg.eigvalsh(a.mT @ hessian @ a)[:, -1]
    assert (found <= largest * 1.001).all()
    assert found.max() > largest.max() * 0.9  # the largest of several starts is what is used


def test_the_prior_is_chosen_on_held_out_rows() -> None:
    """A function far steeper than the default prior wants a wider one; the run says so."""
    x = torch.linspace(-1, 1, 80)[:, None]
    y = torch.sin(9 * x)
    sampler = Langevin(
        models.mlp(1, 1, (16,), activation=nn.Tanh), likelihoods.Gaussian(sigma=0.1), chains=2
    )
    posterior = sampler.sample((x, y), 300, progress=False)
    assert posterior.plan.prior_scale > 1
    assert "held-out" in posterior.plan.reasons["prior"]
    variance = posterior.prior["0.weight"].variance  # type: ignore[index]
    assert float(variance) == pytest.approx(2 * posterior.plan.prior_scale)


def folds(count: int, seed: int, chains: int = 1) -> prior_trial.Folds:
    return prior_trial.folds(count, seed, chains, TRIAL.folds, len(TRIAL.scales), TRIAL)


def test_every_row_is_held_out_once_for_every_scale() -> None:
    rows = folds(30, seed=1)
    assert len(rows.inside) == len(TRIAL.scales) * TRIAL.folds
    for inside, outside in zip(rows.inside, rows.outside, strict=True):
        assert sorted([*inside.tolist(), *outside.tolist()]) == list(range(30))
    held_out = rows.outside[: TRIAL.folds].flatten().tolist()
    assert sorted(held_out) == list(range(30))


def test_several_chains_of_a_scale_have_the_same_fold() -> None:
    one, three = folds(30, seed=1), folds(30, seed=1, chains=3)
    for many, single in zip(three, one, strict=True):
        assert torch.equal(many, single.repeat_interleave(3, 0))


@pytest.mark.parametrize(("lowest", "expected"), [(8.0, 8.0), (3.0, 5.0), (2.0, 2.0)])
def test_the_chosen_scale_lies_where_the_parabola_is_lowest(lowest: float, expected: float) -> None:
    """Of the best scale and the wider ones: a trial speaks against these."""
    scores = {s: 0.1 * math.log(s / lowest) ** 2 + 7.0 for s in TRIAL.scales}
    tried, scale, why = prior_trial.best_scale(scores, TRIAL)
    assert tried == (1 if lowest == 2 else 5)
    assert scale == pytest.approx(expected)
    assert "held-out" in why


def test_a_scale_beside_one_that_diverged_is_taken_as_it_was_tried() -> None:
    scores = {0.2: 2.0, 1.0: 1.0, 5.0: math.inf, 25.0: math.inf}
    assert prior_trial.best_scale(scores, TRIAL)[:2] == (1.0, 1.0)
    assert prior_trial.best_scale(scores | {0.2: 0.5}, TRIAL)[:2] == (0.2, 0.2)
    assert prior_trial.best_scale(dict.fromkeys(scores, math.inf), TRIAL)[:2] == (1.0, 1.0)


def test_outliers_do_not_choose_the_prior() -> None:
    """A row that one scale in three predicts badly, and no other well."""
    usual = torch.linspace(0.0, 1.0, 50).double()
    scores = torch.stack([usual + 0.5, usual, usual + 1.0])
    scores[:, 7] = torch.tensor([100.0, 900.0, 2000.0])
    found = prior_trial.means(scores, TRIAL)
    assert found.index(min(found)) == 1
    assert max(found) < 1.5 + (TRIAL.most_above + 1) / 50
    scores[1, 3] = math.inf
    assert prior_trial.means(scores, TRIAL)[1] == math.inf
    assert prior_trial.means(torch.full((2, 3), math.inf), TRIAL) == [math.inf] * 2


def test_a_row_without_a_density_is_an_outlier_and_no_verdict_on_a_scale() -> None:
    """Rows of which networks say nothing, -inf or NaN, in the scale that is otherwise the best."""
    usual = torch.linspace(0.0, 1.0, 50).double()
    scores = torch.stack([usual + 0.5, usual, usual + 1.0])
    scores[1, 3] = math.nan
    found = prior_trial.means(scores, TRIAL)
    assert found.index(min(found)) == 1
    assert found[1] == pytest.approx(0.5 + TRIAL.most_above / 50, abs=0.02)
    assert prior_trial.near_best(scores, TRIAL) == [0, 1]
    assert prior_trial.means(torch.full((2, 3), math.nan), TRIAL) == [math.inf] * 2

    class Found:
        healthy: ClassVar = [0, 1]

        def log_likelihood(self, x: torch.Tensor, y: torch.Tensor, chains: list[int]) -> Any:
            of_row = torch.tensor([-1.0, -math.inf, math.nan, math.inf])
            return of_row.expand(len(chains), 2, 4)

    rows, data = torch.arange(4).expand(3, 4), (torch.zeros(4, 1), torch.zeros(4, 1))
    table = prior_trial.held_out_nll(Found(), data, rows, 1)
    assert table[:2, 0].tolist() == [1.0, 1.0]
    assert bool(table[:2, 1:].isnan().all())
    assert bool((table[2] == math.inf).all()), "a chain that was lost is one"


def test_a_run_whose_chains_disagree_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a part five times as long while they do and steps are left; which it was, is said."""
    x, y = line(150)
    short = dataclasses.replace(USUAL.cost.usual, relaxations=1)
    net = models.mlp(2, 1, (32,), activation=nn.Tanh)
    settings = changed(
        dataclasses.replace(USUAL, cheap=None), cost={"usual": short}, end={"first_steps": 100},
        length={"fewest": 200, "most": 1000, "unmixed": 2},
    )  # fmt: skip
    sampler = Langevin(
        net, likelihoods.Gaussian(0.3), prior=priors.Gaussian(1.0), chains=2, recipe=settings
    )
    noise, prepared = [], run._prepared
    monkeypatch.setattr(
        run, "_prepared",
        lambda *asked: noise.append((out := prepared(*asked))[1].dynamics.noise) or out,
    )  # fmt: skip
    for whys, before, last, ended in (
        (["R-hat"] * 3, 600, 1400, "no steps are left: R-hat"),
        (["R-hat", "few draws", ""], 600, 1400, "its chains agree"),
        (["few draws", ""], 100, 500, "its chains agree"),
        ([""], 0, 100, "its chains agree"),
    ):
        monkeypatch.setattr(until, "too_short", lambda *_, whys=whys: whys.pop(0))
        found = sampler.sample((x, y), progress=False)
        assert found.config.get("steps_before", 0) == before
        assert found.config["steps"] == last
        assert found.config["ended"] == ended
        assert not whys
    # A part's first step is the one after the last of the part before.
    assert torch.equal(random.stream(noise[1], 3), random.stream(noise[0], 103))
    given = sampler.sample((x, y), steps=200, progress=False)
    assert "ended" not in given.config


def test_chains_that_agree_are_told_from_those_that_do_not() -> None:
    """By what ``diagnose`` says at some rows: a linear model, long enough, and far too short."""
    x, y = line(40)
    sampler = Langevin(nn.Linear(2, 1), likelihoods.Gaussian(0.3), prior=priors.Gaussian(1.0))
    stream = sampler.problem.on((x, y)).stream(40)
    long = sampler.sample((x, y), steps=3000, progress=False)
    assert until.too_short(long, stream, USUAL.end) == ""
    starts = [{"weight": torch.full((1, 2), v), "bias": torch.zeros(1)} for v in (0.0, 1.0, 2.0)]
    slow = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(0.3), prior=priors.Gaussian(1.0), init=starts,
        chains=3, step_size=1e-6,
    ).sample((x, y), steps=60, burn_in=0, thin=1, progress=False)  # fmt: skip
    assert "R-hat is up to" in until.too_short(slow, stream, USUAL.end)
    more = dataclasses.replace(USUAL.end, ess=math.inf)  # as many as so few draws can show
    few = sampler.sample((x, y), steps=400, burn_in=100, thin=1, progress=False)
    assert "effective draws" in until.too_short(few, stream, more)
    assert until.too_short(few, stream, USUAL.end) == ""


def test_minibatches_of_a_descent_are_small_but_make_some_epochs() -> None:
    rule = USUAL.descent
    assert [rule.rows_of_batch(n, 500) for n in (2000, 20_000, 60_000)] == [100, 200, 500]
    assert rule.rows_of_batch(50, 50) == 50
    assert dataclasses.replace(rule, batch=None).rows_of_batch(2000, 400) == 400


def open_plan(steps: int, most: int) -> Plan:
    end = OpenEnd(of=steps, most=most, rule=USUAL.end)
    return Plan("auto", prior="", metric="", dynamics="", batch_size=1, steps=steps, end=end)


def test_a_run_of_open_length_is_made_of_parts() -> None:
    """Of which each is the last unless its chains disagree."""
    steps = lambda plan: [phase.steps for phase in phases(plan)]  # noqa: E731
    assert steps(open_plan(2700, most=50_000)) == [2000, 10_000, 38_000]
    assert steps(open_plan(12000, most=50_000)) == [3000, 15_000, 32_000]
    assert steps(open_plan(12000, most=12_000)) == [3000, 9000]
    assert steps(open_plan(4900, most=4900)) == [2000, 2900]
    assert steps(open_plan(3900, most=3900)) == [3900]  # too short for parts
    assert steps(open_plan(40_000, most=50_000)) == [10_000, 40_000]
    given = dataclasses.replace(open_plan(8000, 8000), end=None, burn_in=10, thin=7)
    assert given.lengths() == [(8000, 10, 7)]
    # A length that somebody changes is run as it is.
    assert steps(dataclasses.replace(open_plan(12000, 50_000), steps=9000)) == [9000]
    for phase in phases(open_plan(12000, 50_000)):
        assert phase.burn_in == (phase.steps // 5 if phase.spent else 1000)
        assert 200 <= (phase.steps - phase.burn_in) // phase.thin < 400


def test_a_part_that_goes_on_is_the_last() -> None:
    """With its burn-in, and about as many draws."""
    plan = open_plan(12000, most=50_000)
    first = phases(plan)[0]
    given = dataclasses.replace(plan, steps=9000)
    assert given.open_end is None
    assert given.longer(0, 18_000).lengths() == [(18_000, *given.lengths()[0][1:])]
    assert [phase.steps for phase in phases(plan)] == [3000, 15_000, 32_000]
    longer = plan.longer(1, 12_000)
    assert [phase.steps for phase in phases(longer)] == [3000, 12_000]
    assert longer.longer(1, 14_000).extended == (0, 14_000)
    assert [phase.steps for phase in phases(longer.longer(1, 80_000))] == [3000, 80_000]
    assert Plan.from_json(longer.to_json()) == longer
    for steps in range(3000, 12_000, 500):
        phase = phases(plan.longer(0, steps))[0]
        assert phase.burn_in == first.burn_in
        assert phase.thin % first.thin == 0
        assert 140 <= phase.draws <= 283
        assert phase.continues(first) == (steps > 3000)


def test_minibatches_of_a_trial_are_as_small_as_their_heat_allows() -> None:
    """At the trial's friction; not where steps are operator calls, whatever their rows."""
    x, y = line(150)
    motion = Langevin(nn.Linear(2, 1), likelihoods.Gaussian(0.3)).motion
    costs = cost.of_problem(motion.problem.on((x, y)), x, USUAL)
    search = cost.Search(motion, True, 400, costs, NO_LIMIT)

    def rows(heat: float, way: str = "native", friction: float = 0.1) -> int:
        usual = recipe.Choice(1e-3, 100.0, 0.0, "", way)
        return prior_trial.rows_of_batch(
            search, [usual, dataclasses.replace(usual, heat=heat, friction=friction)]
        )

    assert [rows(h) for h in (0.01, 0.05, 0.1)] == [100, 200, 400]
    assert rows(0.1, friction=0.05) == 200  # half the heat at twice the friction
    assert rows(0.01, way="eager") == 400
    assert rows(0.0) == 400  # of full batches


def test_scales_that_are_clearly_behind_are_not_tried_on() -> None:
    g = torch.Generator().manual_seed(0)
    rows = torch.rand(200, generator=g).double()
    behind = torch.tensor([0.5, 0.0, 0.01, 0.05]).double()[:, None]
    scores = rows + behind + 0.1 * torch.randn(4, 200, generator=g).double()
    assert prior_trial.near_best(scores, TRIAL) == [1, 2]  # an error is .01: .05 is clear
    assert prior_trial.near_best(rows + behind, TRIAL) == [1, 2]
    assert prior_trial.near_best(rows + 10 * behind, TRIAL) == [1]
    scores[3, 7] = scores[2, 5] = math.inf
    assert prior_trial.near_best(scores, TRIAL) == [1]
    assert prior_trial.near_best(torch.full((2, 3), math.inf), TRIAL) == []


def test_a_dear_trial_has_fewer_chains_or_is_left_out() -> None:
    trial = Trial(steps=100, chains=4, draws=10, folds=3)
    assert trial.affordable(1.0, 400) == trial
    assert trial.affordable(2.0, 400) == dataclasses.replace(trial, steps=50)
    assert trial.affordable(4.0, 400) == dataclasses.replace(trial, steps=50, chains=2)
    assert trial.affordable(9.0, 400) is None
    twice = dataclasses.replace(trial, rounds=2)
    assert twice.affordable(1.0, 400) == trial


def test_of_many_rows_few_are_held_out_and_all_others_learned_from() -> None:
    few, many = folds(301, 0), folds(10_000, 0)
    assert (few.outside.shape[1], few.inside.shape[1]) == (100, 200)  # a third, of all but one
    assert many.outside.shape[1] == TRIAL.most_held_out
    assert many.inside.shape[1] == 9_999 - TRIAL.most_held_out
    for inside, outside in zip(many.inside, many.outside, strict=True):
        assert not set(inside.tolist()) & set(outside.tolist())


def test_the_recipes_metric_counts_its_own_batch_while_it_is_averaged() -> None:
    """In burn-in a batch unlike all before it makes no longer step than it bears by itself."""
    metric = recipe.averaged(preconditioners.QuasiDiagonalFisher())
    assert metric.counts_own_batch(settles=True)
    assert not metric.counts_own_batch(settles=False)
    given = preconditioners.DiagonalFisher(decay=0.1)  # a user's own rate: all is theirs
    assert recipe.averaged(given) is given


def test_heat_is_that_of_the_weights_that_data_inform() -> None:
    """Nine hundred weights of rare inputs do not cool the hundred that matter."""
    sampler = Langevin(nn.Linear(1000, 1, bias=False), likelihoods.Gaussian(1.0), chains=1,
                       num_data=1000)  # fmt: skip
    engine, state = sampler.prepare(
        (torch.randn(1000, 1000), torch.randn(1000, 1)), steps=1, batch_size=100, step_size=0.0
    )
    moves = engine.dynamics
    damping = moves.damping({"weight": torch.ones(1, 1, 1000)}, 1000)["weight"]
    informed = torch.zeros(1, 1, 1000)
    informed[..., :100] = 99 * float(torch.as_tensor(damping).flatten()[0])  # J / (J + eps) = .99
    state = state._replace(metric={"second": {"weight": informed}})
    found = float(step_size._heat(moves, state, 1000, 100, FRICTION))
    assert found == pytest.approx(1000 * 0.99 / (2 * 100 * FRICTION) * 0.9, rel=1e-4)


def test_the_way_down_ends_before_a_network_learns_its_noise() -> None:
    """A network of 600 weights can fit 60 rows exactly, and a noise that is learned goes to zero
    with the residuals: to 1e-8 by the loss of the rows themselves."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 10, generator=g)
    y = 3 * torch.sin(x[:, :1]) + 0.5 * torch.randn(60, 1, generator=g)
    sampler = Langevin(
        models.mlp(10, 1, (50,)), likelihoods.Gaussian("rmse"), chains=3, init="fan_in"
    )
    engine, state = sampler.prepare((x, y), steps=1, batch_size=60, step_size=0.0)
    assert isinstance(engine.stream, InMemory)
    end = descent.descend(sampler.frame, state, engine.stream, 60, USUAL.descent, mode="auto")
    assert (end.likelihood["variance"] > 0.5 * 0.5**2).all()
    apart = (end.params["0.weight"] - end.params["0.weight"][:1]).abs().amax((1, 2))
    assert (apart[1:] > 0).all()  # every chain its own way


def _descended(rule: Descent, **options: Any) -> tuple[Langevin, State, State]:
    """A sampler of three chains, their start, and where they come to."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=g)
    y = 100 * x[:, :1] + 0.1 * torch.randn(80, 1, generator=g)
    prior = recipe.prior(torch.tensor([1e-3, 1e2, 1e2]))
    sampler = Langevin(
        models.mlp(3, 1, (6,)),
        likelihoods.Gaussian(sigma=0.1),
        prior=prior,
        chains=3,
        init="fan_in",
    )
    engine, state = sampler.prepare((x, y), steps=1, batch_size=20, step_size=0.0)
    assert isinstance(engine.stream, InMemory)
    end = descent.descend(sampler.frame, state, engine.stream, 80, rule, mode="auto", **options)
    return sampler, state, end


def test_chains_whose_loss_falls_no_more_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []
    run = Engine.run

    def counted(self: Engine, state: State, start: int, count: int) -> Any:
        ran.append((state.chains, count))
        return run(self, state, start, count)

    # The second chain alone has a loss, which falls in two rounds.
    losses = iter([torch.tensor([torch.inf, 9.0, torch.nan]), torch.tensor([8.0])])
    rule = dataclasses.replace(USUAL.descent, rounds=(30, 60), looks=1)
    monkeypatch.setattr(descent, "losses", lambda *_: next(losses))
    monkeypatch.setattr(Engine, "run", counted)
    _, start, end = _descended(rule)
    assert ran == [(3, 30), (1, 60)]
    for k, v in end.params.items():
        moved = (v != start.params[k]).flatten(1).any(1)
        assert moved.tolist() == [False, True, False]


def test_a_chain_goes_down_as_it_does_alone() -> None:
    """To the same weights, whichever others there are, and however long those go on."""
    rule = dataclasses.replace(USUAL.descent, rounds=(60, 120))
    _, _, together = _descended(rule)
    _, _, alone = _descended(rule, pattern=torch.tensor([1, 1, 1]))
    for k, v in alone.params.items():
        torch.testing.assert_close(v[0], together.params[k][1], rtol=1e-5, atol=1e-6)
        assert torch.equal(v[0], v[1])
        assert torch.equal(v[0], v[2])


def test_rows_are_held_out_of_each_chains_own() -> None:
    rows = torch.stack([torch.arange(20), torch.arange(20, 40)])
    whole = InMemory(
        torch.zeros(40, 1), torch.zeros(40), batch_size=20, chain=torch.arange(2), seed=0,
        device=torch.device("cpu"), rows=rows,
    )  # fmt: skip
    inside, held_out = whole.parted(0.2, most=100, batch=whole.batch_size)
    assert held_out.shape == (2, 4)
    assert inside.batch_size == 16
    for chain in range(2):
        seen = inside.order(0)[chain]
        both = torch.cat([seen, held_out[chain]]).sort().values
        assert torch.equal(both, rows[chain])


def test_a_trained_network_is_where_the_run_starts() -> None:
    x, y = line()
    trained = linear(chains=2)
    with torch.no_grad():
        trained.problem.template.weight.copy_(torch.tensor([[1.0, -0.5]]))
    at = Langevin(trained.problem.template, likelihoods.Gaussian(sigma=0.3), chains=2)
    assert at.sample((x, y), 100, progress=False).config["init"] == "model"
    assert linear(chains=2).sample((x, y), 100, progress=False).config["init"] == "fan_in"


def test_a_step_size_of_ones_own_is_the_paper() -> None:
    sampler = linear(step_size=1e-3)
    assert isinstance(sampler.dynamics, Overdamped)
    assert isinstance(linear().dynamics, Underdamped)
    with pytest.raises(ValueError, match="steps is required"):
        sampler.sample(line())


def test_seconds_in_place_of_steps() -> None:
    posterior = linear(chains=2).sample(line(), seconds=0.05, progress=False)
    assert posterior.config["steps"] >= 10
    with pytest.raises(ValueError, match="seconds must be positive"):
        linear(chains=2).sample(line(), seconds=-1, progress=False)


def test_arrays_loaders_and_tensors_are_the_same_data() -> None:
    x, y = line()
    options = {"steps": 60, "batch_size": 20, "progress": False}
    tensors = linear(chains=2).sample((x, y), **options)  # type: ignore[arg-type]
    arrays = linear(chains=2).sample((x.double().numpy(), np.asarray(y)), **options)  # type: ignore[arg-type]
    assert torch.equal(tensors.samples["weight"], arrays.samples["weight"])
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    from_loader = linear(chains=2).sample(loader, steps=60, progress=False)
    assert from_loader.config["num_data"] == 60


OPEN: dict[str, Any] = {"steps": None, "burn_in": None, "thin": None}


@pytest.mark.parametrize(("units", "where"), [(20, "cheap"), (200, "dear")])
def test_runs_of_cheap_steps_are_exact(units: int, where: str) -> None:
    x = torch.linspace(-1, 1, 120)[:, None]
    model = nn.Sequential(nn.Linear(1, units), nn.Tanh(), nn.Linear(units, 1))
    sampler = Langevin(model, likelihoods.Gaussian(0.1), prior=priors.FanIn(1.0), recipe=USUAL)
    plan = sampler.plan((x, x.square()))
    usual, exact = USUAL, USUAL.where_cheap(discrete=False)
    expected = exact if where == "cheap" else usual
    assert plan.end is not None
    assert plan.end.rule.ess == expected.end.ess
    assert plan.step_size is not None
    steep = plan.step_size * plan.measured["curvature"]
    assert steep == pytest.approx(expected.step_size.steepness, rel=0.1)


def test_lengths_follow_the_step_size_and_the_cost() -> None:
    slow = recipe.Choice(1e-4, 1000.0, 0.0, "", "native")
    quick = recipe.Choice(1e-2, 10.0, 0.0, "", "native")
    options = {"settings": USUAL, "budget": USUAL.cost.usual}
    assert run_length.choose(slow, work=1e6, **options, **OPEN).steps == USUAL.length.most
    found = run_length.choose(quick, work=4e5, **options, **OPEN)
    assert found.end is not None
    assert found.end.most == 5 * USUAL.length.most  # where chains do not agree
    for way, most in (("whole triton steps", 50_000), ("native kernels", 4_000), ("eager", 4_000)):
        other = dataclasses.replace(quick, way=way)
        end = run_length.choose(other, work=1e6, **options, **OPEN).end
        assert end is not None
        assert (end.most, end.rule) == (most, USUAL.end)
        # Of few weights, whose curvatures are known, means are within a tenth of a deviation.
        end = run_length.choose(
            dataclasses.replace(other, slowest=0.1), work=4e5, **options, **OPEN
        ).end
        assert end is not None
        assert (end.most, end.rule.ess) == (5 * most, 400)
    exact = options | {"settings": USUAL.where_cheap(discrete=False)}
    end = run_length.choose(quick, work=4e5, **exact, **OPEN).end
    assert end is not None
    assert (end.most, end.rule.ess) == (9 * USUAL.length.most, 300)
    assert USUAL.where_cheap(discrete=True).end == USUAL.end  # probabilities are bounded
    tables = options | {"settings": open_settings.for_tables().where_cheap(discrete=False)}
    end = run_length.choose(quick, work=1e6, **tables, **OPEN).end
    assert end is not None
    assert (end.most, end.rule) == (USUAL.length.most, USUAL.end)
    assert (found.steps, found.burn_in, found.thin) == (2000, None, None)  # a third, and 200 draws
    assert run_length.choose(slow, work=1e12, **options, **OPEN).steps == USUAL.length.fewest
    given = run_length.choose(quick, steps=90, burn_in=10, thin=2, work=1e6, **options)
    assert (given.steps, given.burn_in, given.thin) == (90, 10, 2)


def test_what_a_run_chose_is_in_its_plan() -> None:
    """The step size and the batch size: for a probe, for an engine."""
    x, y = line(300)
    sampler = linear(prior=priors.Gaussian(1.0), chains=2, num_data=300)
    posterior = sampler.sample((x, y), 200, progress=False)
    chosen = posterior.plan.step_size
    engine, _ = sampler.prepare((x, y), steps=5, plan=posterior.plan)
    assert engine.rates.step_size.unique().tolist() == pytest.approx([chosen])
    assert len(engine.stream.example()[0]) == posterior.config["batch_size"] == 100
    found = sampler.effective_temperature((x, y), posterior=posterior, steps=40)
    assert not found.wrong
    state, _ = sampler.step(sampler.init(), (x[:10], y[:10]))
    assert int(state.step) == 1


def test_before_a_run_the_recipe_chooses_at_once() -> None:
    x, y = line()
    sampler = linear(prior=priors.Gaussian(1.0), chains=2)
    engine, state = sampler.prepare((x, y), steps=5)
    assert 0 < float(engine.rates.step_size.max()) <= USUAL.step_size.largest
    assert not torch.equal(state.params["weight"][0], state.params["weight"][1])
    own = linear(dynamics=Overdamped(), step_size="auto")
    with pytest.raises(ValueError, match="call it first"):
        own.prepare((x, y), steps=5, batch_size=20)


def test_a_metric_of_ones_own_is_averaged_over_the_burn_in_too() -> None:
    """Frozen at its last few batches, it made eight schools' tau many times too wide. A rate that
    is given stays, and so does everything where the step size is given."""
    model, gaussian = nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0)
    average, own = schedules.polynomial_average(), preconditioners.FullFisher(ema_rate=0.1)
    assert Langevin(
        model, gaussian, preconditioner=preconditioners.FullFisher()
    ).preconditioner.decay == average  # fmt: skip
    assert Langevin(model, gaussian, preconditioner=own).preconditioner is own
    plain = preconditioners.FullFisher()
    assert Langevin(model, gaussian, preconditioner=plain, step_size=0.1).preconditioner is plain


def test_learned_noise_of_twenty_rows_is_not_that_of_a_network_which_meets_them_all():
    """The way down leaves rows out, of so few too: otherwise chains begin where the residuals, and
    the noise with them, are zero, and stay there (sigma 1e-6, 4e10 nats per row)."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(120, 3, generator=draw)
    y = x @ torch.tensor([1.0, 2.0, -1.0]) + 0.1 * torch.randn(120, generator=draw)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1))
    sampler = Langevin(network, likelihoods.Gaussian(sigma="rmse"), recipe=ONE_PART)
    scores = sampler.sample((x[:20], y[:20]), progress=False).evaluate(x[20:], y[20:])
    assert scores.nll < scores.blind_nll


def test_a_loader_has_the_prior_and_the_calibration_of_its_rows() -> None:
    """It lends rows to choose by: where these are all, it is the plan of these rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 2, generator=generator)
    y = (x[:, 0] + torch.randn(150, generator=generator) > 0).long()
    sampler = Langevin(nn.Linear(2, 2), likelihoods.Categorical(), chains=2, recipe=SHORT)
    loader = DataLoader(TensorDataset(x, y), batch_size=50)
    plan, of_tensors = sampler.plan(loader), sampler.plan((x, y), batch_size=50)
    assert "held-out NLL" in plan.reasons["prior"]
    assert plan.prior_scale == of_tensors.prior_scale
    assert plan.calibration == of_tensors.calibration


def test_the_batches_of_a_loader_are_those_that_are_planned_for() -> None:
    """Small ones heat more, which bounds the step size: with 8 of 4,000 rows in a batch the weights
    of a linear model were 2.3 times as wide as their posterior, by steps for 400."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    y = (x[:, 0] + torch.randn(600, generator=generator) > 0).long()
    model, one = models.mlp(2, 2, (16,)), likelihoods.Categorical()
    sampler = Langevin(model, one, prior=priors.Gaussian(1.0), chains=2, recipe=SHORT)
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    of_tensors = sampler.plan((x, y), batch_size=10)
    for options in ({}, {"batch_size": 50}):  # what a loader makes is not to be decided
        plan = sampler.plan(loader, **options)
        assert plan.batch_size == of_tensors.batch_size == 10
        assert plan.measured["heat"] == of_tensors.measured["heat"] > 0
        assert plan.step_size == of_tensors.step_size < sampler.plan((x, y)).step_size
    assert sampler.sample(loader, plan=plan, steps=60, progress=False).config["batch_size"] == 10
    given = Langevin(model, one, step_size=1e-3)
    for data in (loader, SharedBatches(loader)):
        assert given.plan(data, steps=60).batch_size == 10
    assert given.plan(DataLoader(TensorDataset(x, y), batch_size=999), steps=60).batch_size == 600


def test_every_line_of_a_plan_has_a_reason_and_names_what_was_changed() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 100 * torch.randn(150, 2, generator=generator)
    model, one = nn.Linear(2, 1), likelihoods.Gaussian("rmse")
    sampler = Langevin(model, one, recipe=SHORT)
    plan = sampler.plan((x, x.sum(1)), batch_size=30, keep=7)
    given = Langevin(model, one, step_size=1e-3).plan((x, x.sum(1)), steps=50)
    for said in (str(plan), str(given)):
        for line in said.splitlines()[1:]:
            assert line[40:].strip(), line
    rows = dict(re.findall(r"^  (\w+) {2,}(\S+)", str(plan), re.MULTILINE))
    assert rows["steps"] == str(plan.lengths()[0][0])  # of the first part, as is its burn-in
    assert int(rows["burn_in"]) < int(rows["steps"])
    assert re.search(r"batch_size +30 +given", str(plan))
    assert re.search(r"keep +7 +given", str(plan))
    changed = str(dataclasses.replace(plan, steps=70, batch_size=20, prior_scale=3.0))
    assert re.search(rf"steps +70 +was {rows['steps']}\n", changed)
    assert re.search(r"batch_size +20 +was 30\n", changed)
    assert re.search(r"burn_in +23 +a third of the steps\n", changed)
    assert "was N(0, " in changed
    assert "was " not in str(plan)
    assert Plan.from_json(plan.to_json()) == plan
    assert re.search(r"metric +QuasiDiagonalFisher +the paper's: Quasi", str(given))
    assert re.search(r"start +model +the paper's\n", str(given))


@pytest.mark.parametrize("prior", [None, priors.Gaussian(1.0)])
def test_a_step_size_beside_the_recipe_changes_the_step_size_and_nothing_else(prior: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    data, model = (x, x.sum(1, keepdim=True)), models.mlp(2, 1, (16,))
    options: dict[str, Any] = {"chains": 2, "prior": prior}

    def plan(**more: Any) -> Plan:
        sampler = Langevin(model, likelihoods.Gaussian(0.1), **options, **more)
        return sampler.plan(data, steps=100)

    usual, given = plan(recipe=SHORT), plan(recipe=SHORT, step_size=1e-3)
    assert isinstance(usual.step_size, float)
    assert given.measured["heat"] == pytest.approx(
        usual.measured["heat"] * 1e-3 / usual.step_size, rel=1e-6
    )
    apart = {"step_size", "reasons", "decided", "measured"}
    for name in {f.name for f in dataclasses.fields(usual)} - apart:
        assert getattr(usual, name) == getattr(given, name), name
