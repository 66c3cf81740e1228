"""A plan that was changed is run as it says, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods
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
    for wrong, said in (({"burn_in": 10**9}, "burn_in"), ({"thin": 0}, "thin")):
        with pytest.raises(ValueError, match=said):
            sampler.sample(data, plan=replace(plan, **wrong), progress=False)
