"""``step_size="auto"``: what the pilot measures, what it chooses, and what it must never do."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import small_run
from natural_langevin import (
    DivergenceError,
    Langevin,
    Posterior,
    dynamics,
    likelihoods,
    metrics,
    preconditioners,
    priors,
)
from natural_langevin.recipe import step_size
from natural_langevin.recipe.settings import Search
from natural_langevin.run.checkpoint import config_in
from natural_langevin.run.preparation import DEFAULT_STEP_SIZE

RUN = {"batch_size": 20, "burn_in": 10, "thin": 10, "progress": False}


def auto(chains: int = 2, **settings) -> Langevin:
    usual = {
        "step_size": "auto",
        "dynamics": dynamics.Overdamped(),
        "init": "fan_in",
        "preconditioner": preconditioners.QuasiDiagonalFisher(damping=0.1),
    }
    return small_run.sampler(chains, **usual | settings)


@pytest.fixture(scope="module")
def found() -> Posterior:
    return auto().sample(small_run.data(), 60, **RUN)


def test_scores_are_those_of_plain_runs_on_the_rest_of_the_data(found):
    """The oracle: Langevin itself, one chain at a fixed step size, on what was not held out."""
    table, steps = found.plan.measured["pilot"]["table"], found.plan.measured["pilot"]["steps"]
    assert steps == Search.fewest_steps == 50
    x, y = small_run.data()
    folds = [step_size.split(len(x), 5, Search(), part=k) for k in range(5)]
    for inside, outside in folds:
        assert sorted(torch.cat([inside, outside]).tolist()) == list(range(60))
    assert sorted(torch.cat([outside for _, outside in folds]).tolist()) == list(range(60))
    assert found.plan.measured["pilot"]["held_out"] == 60  # 12 rows alone would rank by chance
    iterates = sorted({50 - 25 * k // 20 for k in range(20)})  # 20 of the second half
    assert (len(iterates), iterates[0], iterates[-1]) == (20, 27, 50)
    for row in (table[0], table[-4]):
        plain, scores = auto(1, step_size=row["step_size"]), []
        for inside, outside in folds:
            run = plain.sample(
                (x[inside], y[inside]), steps, batch_size=20, burn_in=25, progress=False
            )  # the metric is frozen halfway, as in a run
            kept = run.predict(x[outside]).samples[[k - 26 for k in iterates]].mean(0)
            scores.append(metrics.nll(kept, y[outside]))
        assert sum(scores) / 5 == pytest.approx(row["nll"], rel=1e-5)


def test_it_takes_the_lowest_and_says_so(found):
    choice = found.plan.measured["pilot"]
    fine = [row for row in choice["table"] if not row["diverged"]]
    best = min(fine, key=lambda row: row["nll"])
    assert choice["step_sizes"] == [best["step_size"]]
    assert f"{best['nll']:.4g}" in choice["reason"]
    assert found.config["step_size"].startswith(
        f"polynomial(initial={best['step_size']}, offset=50"
    )


def test_where_there_is_something_to_learn_it_learns_it(network, classes):
    """A chain too slow for the pilot says about ln 3 of three classes; the chosen one does not."""
    sampler = Langevin(
        network,
        likelihoods.Categorical(),
        prior=priors.Gaussian(1.0),
        preconditioner=preconditioners.QuasiDiagonalFisher(damping=1 / 40),
        step_size="auto",
        dynamics=dynamics.Overdamped(),
        chains=1,
        init="fan_in",
    )
    choice = sampler.sample(classes, 20, batch_size=32, progress=False).plan.measured["pilot"]
    chosen = next(r for r in choice["table"] if r["step_size"] in choice["step_sizes"])
    assert chosen["nll"] < choice["table"][0]["nll"] - 0.2
    assert chosen["step_size"] > 30 * choice["table"][0]["step_size"]


def test_the_same_seed_chooses_the_same_and_touches_no_global_generator(found, caplog):
    sampler, before = auto(), torch.random.get_rng_state()
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        again = sampler.sample(small_run.data(), 60, **RUN)
    assert torch.equal(before, torch.random.get_rng_state())
    small_run.assert_same(found, again)
    assert again.plan.measured["pilot"] == found.plan.measured["pilot"]
    assert found.plan.measured["pilot"]["reason"] in caplog.text


def test_a_run_with_that_schedule_is_the_same_run(found):
    choice = found.plan.measured["pilot"]
    eta = found.plan.schedule()
    assert eta(0) == choice["step_sizes"][0]
    assert eta(7 * 50) == pytest.approx(eta(0) / 2)
    plain = auto(2, step_size=eta).sample(small_run.data(), 60, **RUN)
    small_run.assert_same(found, plain)


def test_divergence_keeps_a_notch_away():
    """A linear regression's curvature is its inputs' second moment: eta > 2 / 30^2 diverges."""
    generator = torch.Generator().manual_seed(0)
    x = 30 * torch.randn(100, 1, generator=generator)
    y = x + torch.randn(100, 1, generator=generator)
    sampler = Langevin(
        nn.Linear(1, 1),
        likelihoods.Gaussian(sigma=1.0),
        preconditioner=preconditioners.Euclidean(),
        prior=priors.Gaussian(1.0),
        step_size="auto",
        dynamics=dynamics.Overdamped(),
        chains=2,
    )
    posterior = sampler.sample((x, y), 300, batch_size=80, progress=False)
    choice = posterior.plan.measured["pilot"]
    edge = min(row["step_size"] for row in choice["table"] if row["diverged"])
    (eta,) = choice["step_sizes"]
    assert edge > 2 / 30**2 / 2
    assert eta < 0.4 * edge
    assert posterior.healthy == [0, 1]
    assert all((row["nll"] is None) == row["diverged"] for row in choice["table"])


@pytest.mark.parametrize(
    ("nll", "stable", "expected"),
    [
        ([3.0, 2.0, 1.0, 4.0], [1, 1, 1, 1], 2),
        ([3.0, 2.0, 1.0, 4.0], [1, 1, 1, 0], 1),  # the best is next to divergence
        ([3.0, 2.0, 1.0, 0.0], [1, 1, 0, 1], 0),  # beyond divergence luck does not count
        ([3.0, 2.0, 1.0, 0.0], [1, 0, 0, 0], 0),  # nothing smaller was tried
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1], 0),  # the smaller of equals
    ],
)
def test_which_candidate_is_chosen(nll, stable, expected):
    etas = torch.tensor([1e-4, 1e-3, 1e-2, 1e-1])
    best, why = step_size._best(etas, torch.tensor(nll), torch.tensor(stable).bool())
    assert best == expected
    assert f"{nll[expected]:.4g}" in why


def made_up(monkeypatch, loss, unstable_from: float = float("inf")) -> step_size.SearchResult:
    """The choice where a candidate's score is ``loss(eta)``."""
    setup: dict = {}

    def engine(settings, data, inside, rows, etas, *others):
        setup["etas"] = etas.repeat_interleave(len(inside))
        return None, None

    def score(*arguments):
        etas = setup["etas"]
        nll = torch.tensor([loss(float(eta)) for eta in etas], dtype=torch.float64)
        return nll[:, None], etas < unstable_from

    monkeypatch.setattr(step_size, "_engine", engine)
    monkeypatch.setattr(step_size, "_score", score)
    usual = preconditioners.QuasiDiagonalFisher()
    sampler = auto(1, preconditioner=usual, compile=False)
    found = sampler.plan(small_run.data(), 100, batch_size=20).measured["pilot"]
    return step_size.SearchResult(**found | {"step_sizes": tuple(found["step_sizes"])})


def test_a_best_candidate_at_the_edge_makes_the_grid_longer(monkeypatch, caplog):
    """The grid goes from 9.5e-5 to 0.3, and with damping="prior" the prior allows up to 1."""
    usual = made_up(monkeypatch, lambda eta: abs(math.log(eta / 1e-2)))
    assert (len(usual.table), usual.step_sizes[0]) == (8, 9.48e-3)
    low = made_up(monkeypatch, lambda eta: abs(math.log(eta / 3e-6)))
    assert low.step_sizes[0] == pytest.approx(3e-6, rel=0.01)
    assert len(low.table) == 12
    high = made_up(monkeypatch, lambda eta: -eta)
    assert high.step_sizes[0] == pytest.approx(0.948, rel=0.01)
    assert "another may be better" in high.reason
    assert caplog.text.count("another may be better") == 1
    far = made_up(monkeypatch, lambda eta: eta)
    assert len(far.table) == 8 + 4
    assert "another may be better" in far.reason
    beside = made_up(monkeypatch, lambda eta: -eta, unstable_from=0.1)
    assert len(beside.table) == 8
    assert "one step of the grid below divergence" in beside.reason


def test_nothing_stable_is_an_error_with_a_remedy():
    with pytest.raises(DivergenceError, match=r"no stable step size between 1e-05 .* more damping"):
        step_size._best(torch.tensor([1e-5, 1e-4]), torch.zeros(2), torch.zeros(2).bool())


def test_no_candidate_is_one_that_the_prior_alone_makes_unstable():
    """Damping 1e-4, 48 data and variance 0.1: eta / (damping N variance) < 1 means 4.8e-4."""
    usual = preconditioners.QuasiDiagonalFisher(damping=1e-4)
    posterior = auto(1, preconditioner=usual).sample(small_run.data(), 20, **RUN)
    sizes = [row["step_size"] for row in posterior.plan.measured["pilot"]["table"]]
    assert sizes == sorted(sizes)
    assert 4.7e-4 < sizes[-1] <= 4.8e-4


def test_chains_that_differ_choose_for_themselves():
    sampler = auto(3, temperature=torch.tensor([0.0, 1.0, 100.0]))
    posterior = sampler.sample(small_run.data(), 50, **RUN)
    choice = posterior.plan.measured["pilot"]
    assert len(choice["table"]) == 3 * 8
    for chain, eta in enumerate(choice["step_sizes"]):
        own = [row for row in choice["table"] if row["chain"] == chain and not row["diverged"]]
        assert eta == min(own, key=lambda row: row["nll"])["step_size"]
    assert len(choice["step_sizes"]) == 3


def test_chains_that_are_alike_share_a_choice():
    prior = priors.Gaussian(variance=torch.tensor([0.1, 1.0, 0.1]))
    posterior = auto(3, prior=prior, init="prior").sample(small_run.data(), 50, **RUN)
    choice = posterior.plan.measured["pilot"]
    assert {row["chain"] for row in choice["table"]} == {0, 1}
    assert len(choice["table"]) % 2 == 0
    assert len(choice["step_sizes"]) == 3
    assert choice["step_sizes"][2] == choice["step_sizes"][0]


def test_equal_values_for_every_chain_are_one_choice():
    sampler = auto(3, temperature=torch.ones(3), prior=priors.Gaussian(variance=torch.ones(3)))
    choice = sampler.sample(small_run.data(), 50, **RUN).plan.measured["pilot"]
    assert len(choice["table"]) >= 8
    assert len(choice["step_sizes"]) == 1


def test_a_learned_noise_level_and_other_kinds_of_data(regression):
    x, y = regression
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    searched = {"step_size": "auto", "dynamics": dynamics.Overdamped(), "init": "fan_in"}
    sampler = Langevin(model, likelihoods.Gaussian("rmse"), **searched)
    posterior = sampler.sample(TensorDataset(x, y), 20, batch_size=40, progress=False)
    assert all(row["nll"] is not None for row in posterior.plan.measured["pilot"]["table"])
    copier = Langevin(model, likelihoods.Gaussian(0.5), **searched)
    alone = copier.sample(x, 20, batch_size=40, progress=False)  # the network sees y itself
    assert len(alone.plan.measured["pilot"]["table"]) >= 8


class StopHereError(Exception):
    """In the place of a power cut."""


def test_a_resumed_run_keeps_the_choice_it_started_with(found, tmp_path, monkeypatch):
    options = RUN | {"checkpoint": tmp_path, "every": 20}
    with monkeypatch.context() as patch:
        patch.setattr("natural_langevin.run.collector.SampleCollector.look", _stop)
        with pytest.raises(StopHereError):
            auto().sample(small_run.data(), 60, **options)
    assert config_in(tmp_path)["plan"]["measured"]["pilot"] == found.plan.measured["pilot"]
    monkeypatch.setattr(step_size, "by_held_out_rows", _stop)  # it is not asked again
    resumed = auto().sample(small_run.data(), 60, **options)
    small_run.assert_same(found, resumed)


def _stop(*args, **kwargs):
    raise StopHereError


def test_a_folder_without_a_readable_checkpoint_tells_nothing(tmp_path):
    assert config_in(tmp_path / "nowhere") == {}
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nonsense")
    assert config_in(tmp_path) == {}


def test_a_saved_posterior_remembers_the_pilot(found, tmp_path):
    found.save(tmp_path)
    loaded = Posterior.load(tmp_path, small_run.network())
    assert loaded.plan.measured["pilot"] == found.plan.measured["pilot"]


def test_a_single_step_takes_the_default_schedule():
    """Nothing can be searched for in one batch."""
    samplers = [auto(num_data=60, step_size=size) for size in ("auto", DEFAULT_STEP_SIZE)]
    one, other = (sampler.step(sampler.init(), small_run.data())[0] for sampler in samplers)
    assert all(torch.equal(one.params[k], other.params[k]) for k in one.params)


def test_refusals_name_the_remedy():
    x, y = small_run.data()
    with pytest.raises(ValueError, match=r"DataLoader: give the tensors"):
        auto().sample(DataLoader(TensorDataset(x, y), batch_size=20), 20, progress=False)
    with pytest.raises(ValueError, match=r"only 9 .*give a number"):
        auto().sample((x[:9], y[:9]), 20, batch_size=9, progress=False)
    with pytest.raises(ValueError, match="same length"):
        auto().sample((x, y[:-1]), 20, batch_size=9, progress=False)
    with pytest.raises(TypeError, match="'fast'"):
        auto(step_size="fast")
