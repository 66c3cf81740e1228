"""Curvature of all chains in one call is that of every chain by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods
from natural_langevin.recipe import curvature


def test_all_chains_at_once_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    sampler = Langevin(model, likelihoods.Gaussian(sigma="rmse"), step_size=1e-3, chains=3)
    engine, state = sampler.prepare((x, x[:, :2].sin()), steps=10, batch_size=10)
    state, _ = engine.run(state, 0, 10)
    asked = sampler.frame, state, (x, x[:, :2].sin()), 40.0, 8
    together = curvature.steepest(*asked)
    monkeypatch.setattr(curvature, "SMALL", 0)
    one_by_one = curvature.steepest(*asked)

    def refused(*args: object, **options: object) -> None:
        raise RuntimeError("vmap: no batching rule")

    monkeypatch.setattr(curvature, "SMALL", 1 << 16)
    monkeypatch.setattr(curvature, "vmap", refused)
    torch.testing.assert_close(together, one_by_one, rtol=1e-4, atol=0.0)
    assert torch.equal(curvature.steepest(*asked), one_by_one), "what vmap cannot take"
    assert bool((together > 0).all())
