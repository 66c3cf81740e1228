"""A run that ends when its target is reached, and says by what it ended."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

import small_run
from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.diagnostics import mixing
from natural_langevin.posterior.plan import Plan
from natural_langevin.recipe import decide, run_length
from natural_langevin.run import until

RUN = {"batch_size": 60, "burn_in": 100, "thin": 5, "progress": False}


def run(**options):
    sampler = small_run.sampler(step_size=0.05, prior=priors.Gaussian(0.5), chains=4)
    return sampler.sample(small_run.data(), **(RUN | options))


def ess(posterior, rows: int = 32) -> float:
    x = small_run.data()[0][:rows]
    return float(np.median(mixing(posterior.followed(x, None)).ess))


def test_it_ends_when_the_target_is_reached(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "natural_langevin"):
        found = run(steps=8000, until="ess:150")
    assert found.config["limit"] == "ess"
    assert 150 <= found.config["ess"] == pytest.approx(ess(found), rel=0.01)
    assert found.config["steps"] < 8000
    assert found.draws == (found.config["steps"] - 100) // 5
    assert torch.isfinite(found.samples["0.weight"]).all()
    assert f"after {found.config['steps']} of at most 8000 steps" in caplog.text
    # The same draws as a run of that length: stopping only stops.
    plain = run(steps=found.config["steps"])
    assert torch.equal(plain.samples["0.weight"], found.samples["0.weight"])
    assert plain.config["limit"] == "steps"
    more = run(steps=8000, until="ess:300")
    assert more.config["steps"] > found.config["steps"]


@pytest.mark.parametrize(
    ("options", "limit", "value"),
    [({"steps": 300}, "steps", "300"), ({"steps": 10**5, "seconds": 0.2}, "seconds", "0.2")],
)
def test_a_target_that_is_missed_is_said(
    caplog: pytest.LogCaptureFixture, options, limit: str, value: str
) -> None:
    found = run(until="ess:1e5", **options)
    assert found.config["limit"] == limit
    assert found.config["ess"] < 1e5
    [said] = [r.getMessage() for r in caplog.records if "below the target" in r.getMessage()]
    assert f"below the target 100000, when {limit}={value} was reached: give more {limit}" in said


def test_a_resumed_run_knows_that_it_was_done(tmp_path) -> None:
    options = {"steps": 8000, "until": "ess:150", "checkpoint": tmp_path / "run"}
    first, again = run(**options), run(**options)
    assert again.config["steps"] == first.config["steps"]
    assert torch.equal(first.samples["2.bias"], again.samples["2.bias"])


def test_draws_in_a_folder_are_cut_too(tmp_path) -> None:
    found = run(steps=8000, until="ess:150", store=tmp_path / "draws")
    assert torch.equal(found.samples["2.bias"], run(steps=8000, until="ess:150").samples["2.bias"])
    found.save(tmp_path / "posterior")
    assert type(found).load(tmp_path / "posterior", small_run.network()).draws == found.draws


def test_the_recipe_goes_on_beyond_its_usual_length() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(60, 1, generator=generator)
    sampler = Langevin(
        nn.Linear(2, 1), likelihoods.Gaussian(sigma=0.5), prior=priors.Gaussian(1.0), chains=2
    )
    usual = sampler.sample((x, y), progress=False)
    found = sampler.sample((x, y), until="ess:800", progress=False)
    assert found.config["limit"] == "ess"
    assert found.config["steps"] > usual.config["steps"]
    assert found.config["burn_in"] == usual.config["burn_in"]
    assert found.config["thin"] == usual.config["thin"]


def test_draws_that_would_not_fit_are_thinned() -> None:
    plan = Plan("auto", "", "", "", batch_size=1, steps=1)
    usual = run_length.Length(2000, 600, 7, None, "")
    assert decide.extended(plan, usual, None, None, 1000, 10)[:3] == (20_000, 600, 7)
    large = decide.extended(plan, usual, None, None, 2**20, 10)
    assert (large.steps - 600) // large.thin * 2**20 <= until.MOST_BYTES
    assert decide.extended(plan, usual, 5000, 7, 2**20, 10)[:3] == (5000, 600, 7)


@pytest.mark.parametrize(
    "nonsense", ["ess", "ess:", "ess:-4", "ess:0", "rhat:1.01", 400, "ess:nan"]
)
def test_nonsense_is_refused_with_the_remedy(nonsense) -> None:
    with pytest.raises(ValueError, match=r'such as until="ess:400", got'):
        run(steps=10, until=nonsense)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="With until=, steps is the upper limit"):
        run(until="ess:100")
    two = small_run.sampler(temperature=torch.tensor([1.0, 0.5]))
    with pytest.raises(ValueError, match="chains of one posterior"):
        two.sample(small_run.data(), 20, until="ess:10", batch_size=20)


def test_seconds_are_named_as_the_limit() -> None:
    assert run(seconds=0.2, burn_in=0).config["limit"] == "seconds"
