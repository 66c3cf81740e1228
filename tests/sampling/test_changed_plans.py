"""A plan that was changed is run as it says, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, Plan, likelihoods, priors
from short_recipe import SHORT


def test_burn_in_and_thinning_of_a_plan_of_open_length():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=g)
    data = x, (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    sampler = Langevin(model, likelihoods.Categorical(), recipe=SHORT, chains=2)
    plan = sampler.plan(data)
    assert plan.open_end is not None
    run = sampler.sample(data, plan=replace(plan, burn_in=90, thin=10), progress=False)
    assert (run.config["burn_in"], run.config["thin"]) == (90, 10)
    assert run.draws == (plan.steps - 90) // 10
    given = sampler.sample(data, plan=plan, burn_in=90, thin=10, progress=False)
    assert torch.equal(run.samples["0.weight"], given.samples["0.weight"])
    for wrong, said in (
        ({"burn_in": 10**9}, "burn_in must|than burn_in"), ({"thin": 0}, "thin >= 1"),
        ({"steps": -3}, "got steps=-3"), ({"steps": 0}, "got steps=0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            sampler.sample(data, plan=replace(plan, **wrong), progress=False)
    with pytest.raises(TypeError, match="steps must be an integer, got 'many'"):
        sampler.sample(data, plan=replace(plan, steps="many"), progress=False)


def test_what_a_sampler_was_given_is_not_overruled_by_anothers_plan():
    """Its prior is not: a plan that has chosen a scale is no plan of a sampler with a prior."""
    x = torch.linspace(-1, 1, 60)[:, None]
    data, one = (x, x.sin()), priors.Gaussian(variance=1.0)

    def sampler(**options):
        return Langevin(
            nn.Linear(1, 1), likelihoods.Gaussian(0.1), recipe=SHORT, chains=2, **options
        )

    of_given, chosen = sampler(prior=one).plan(data), sampler().plan(data)
    stepped = sampler(step_size=1e-3).plan(data)
    for options, plan, said in (
        ({"prior": one}, chosen, "was given there"),
        ({}, of_given, "was given there"),
        ({"prior": priors.Gaussian(variance=2.0)}, of_given, "prior is .* there"),
        ({}, stepped, "was given there"),
    ):
        with pytest.raises(ValueError, match=f"belongs to another sampler.*{said}"):
            sampler(**options).sample(data, plan=plan, progress=False)
    with pytest.raises(ValueError, match=r"prior is Laplace.* there"):  # it was ignored
        sampler().sample(data, plan=replace(chosen, prior="Laplace(scale=1.0)"), progress=False)
    own = sampler(prior=one).sample(data, plan=of_given, steps=40, progress=False)
    assert own.plan.prior == of_given.prior == "Gaussian(variance=1.0, mean=0.0)"


@pytest.mark.parametrize("keep", [1, 7, 8])
def test_few_draws_may_be_kept_of_a_run_of_open_length(keep):
    """By fewer than four chains cannot be compared, which was an error at the end of its first
    part: it has the length that the recipe wants then."""
    x = torch.linspace(-1, 1, 60)[:, None]
    sampler = Langevin(nn.Linear(1, 1), likelihoods.Gaussian(0.1), recipe=SHORT, chains=2)
    run = sampler.sample((x, x.sin()), keep=keep, progress=False)
    assert 1 <= run.draws <= keep
    assert (run.plan.open_end is None) == (keep < 8)
    assert keep == 8 or run.config["steps"] == run.plan.steps


def _grid():
    """A sampler of four chains, its data, and a plan of 40 steps."""
    x = torch.linspace(-1, 1, 60)[:, None]
    data = x, x.sin()
    sampler = Langevin(nn.Linear(1, 1), likelihoods.Gaussian(0.1), recipe=SHORT, chains=4)
    return sampler, data, replace(sampler.plan(data), steps=40)


def test_a_step_size_of_every_chain():
    """All chains had the first one's."""
    sampler, data, plan = _grid()
    sizes = (1e-6, 1e-3, 1e-3, 1e-2)
    plan = Plan.from_json(replace(plan, step_size=sizes).to_json())
    together = sampler.sample(data, plan=plan, progress=False)
    for chain, size in enumerate(sizes):
        alone = sampler.sample(data, plan=replace(plan, step_size=size), progress=False)
        for name, samples in together.samples.items():
            assert torch.equal(samples[chain], alone.samples[name][chain])
    with pytest.raises(ValueError, match="one value per chain"):
        sampler.sample(data, plan=replace(plan, step_size=(1e-3, 1e-3)), progress=False)


@pytest.mark.parametrize("keep", [None, 8])
def test_more_steps_of_a_plans_checkpoint(tmp_path, keep):
    """Refused as another run, with the burn-in and thinning of a longer one."""
    sampler, data, plan = _grid()
    plan = replace(plan, keep=keep)
    first = sampler.sample(data, plan=plan, checkpoint=tmp_path, progress=False)
    more = sampler.sample(data, plan=plan, steps=70, checkpoint=tmp_path, progress=False)
    _, burn_in, thin = plan.lengths()[0]
    longer = replace(plan, steps=70, burn_in=burn_in, thin=thin)
    whole = sampler.sample(data, plan=longer, progress=False)
    assert (first.config["steps"], more.config["steps"]) == (40, 70)
    assert all(torch.equal(v, more.samples[k]) for k, v in whole.samples.items())
    again = sampler.sample(data, plan=more.plan, checkpoint=tmp_path, progress=False)
    assert all(torch.equal(v, more.samples[k]) for k, v in again.samples.items())


def test_execution_start_and_counts_of_a_plan():
    """The first three were run as if nothing had been changed, the others failed obscurely."""
    sampler, data, plan = _grid()
    with pytest.raises(ValueError, match="init= of this sampler is no weights"):
        sampler.sample(data, plan=replace(plan, start="given"), progress=False)
    eager = sampler.sample(data, plan=replace(plan, execution="False"), progress=False)
    assert eager.config["execution"].startswith("eager")
    for name, wrong, said in (
        ("execution", "fast", "compile"), ("start", "modle", "start"),
        ("prior_scale", -1.0, "prior_scale"), ("chains", 0, "chains"), ("draws", 0, "draws"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{said} must be"):
            sampler.sample(data, plan=replace(plan, **{name: wrong}), progress=False)
