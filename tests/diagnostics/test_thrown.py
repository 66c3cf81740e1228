"""A chain that a step threw out of the posterior for a while is named."""

from __future__ import annotations

import dataclasses

import torch

from natural_langevin import Langevin, likelihoods, models, priors
from natural_langevin.diagnostics import thrown


def test_the_furthest_look_after_burn_in_is_named() -> None:
    losses = 0.1 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    trace = torch.cat([torch.arange(1, 41)[:, None] * 50, losses], 1)
    trace[2, 1:] = 100.0  # in burn-in
    asked = {"burn_in": 500, "rows": 80, "weights": 10, "chains": [0, 2]}
    assert thrown(trace, **asked) is None
    trace[20, 2] = 7.0  # of a chain that is left out
    assert thrown(trace, **asked) is None
    trace[30, 3], trace[31, 1], trace[32, 1] = 5.0, 2.0, torch.nan
    found = thrown(trace, **asked)
    assert found is not None
    assert (found.chain, found.step) == (2, 1550)
    assert abs(found.nats - 400) < 20
    assert found.part == 2 / 60
    assert thrown(trace[:5], **asked) is None
    assert "Remedy: wait." in found.said("wait")


def test_a_run_says_so() -> None:
    x = torch.linspace(-1, 1, 30)[:, None]
    sampler = Langevin(
        models.mlp(1, 1, (4,)), likelihoods.Gaussian(0.3), prior=priors.Gaussian(1.0)
    )
    found = sampler.sample((x, x.sin()), steps=200, progress=False)
    assert found.diagnose(x).thrown is None
    found.trace[-1, 1] += 20.0
    said = found.diagnose(x)
    assert said.thrown is not None
    assert any("Chain 0 was thrown" in text for text in said.verdicts)
    found.config["likelihood_power"] = 0.5
    assert found.diagnose(x).thrown is None
    assert dataclasses.replace(said, thrown=None).thrown is None
