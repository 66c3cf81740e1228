"""Chains of convolutions one after the other: what ``vmap`` gives, but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, likelihoods
from natural_langevin._internal import cuda_graphs
from natural_langevin.statistics import in_turn


@pytest.mark.parametrize("given_axis", [False, True])
def test_the_same_step(given_axis: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
    ).double()
    x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.arange(6) % 3
    if given_axis:
        x, y = torch.stack([x, x + 1, x - 1]), torch.stack([y, y, y])
    found = {}
    for limit in (in_turn.ONE_BY_ONE, 1):
        monkeypatch.setattr(in_turn, "ONE_BY_ONE", limit)
        sampler = Langevin(model, likelihoods.Categorical(), chains=3, num_data=50, step_size=1e-4)
        state = sampler.init()
        for _ in range(3):
            state, info = sampler.step(state, (x, y), chain_axis=given_axis)
        found[limit] = (state.params, state.metric, info.loss)
    together, alone = found.values()
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    assert not torch.equal(alone[2][0], alone[2][1])


@pytest.mark.parametrize("shared", [False, True])
def test_one_chains_graph_is_replayed_for_all(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps with and without statistics have a graph each, and their bits are those without."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3))
    x, y = torch.randn(12, 2, 5, 5), torch.arange(12) % 3
    monkeypatch.setattr(in_turn, "ONE_BY_ONE", 1)
    replays = []

    def record(function: Callable[[], Any], device: torch.device) -> Any:
        result = function()

        def replay() -> None:
            replays.append(1)
            pytree.tree_map(lambda into, value: into.copy_(value), result, function())

        return replay, result

    found = []
    for recordings in (None, {}):
        sampler = Langevin(
            model, likelihoods.Categorical(), chains=4, step_size=1e-3, compile=False
        )
        data = DataLoader(TensorDataset(x, y), batch_size=6) if shared else (x, y)
        size = None if shared else 6
        engine, state = sampler.prepare(data, steps=8, burn_in=4, batch_size=size)
        engine.dynamics = replace(engine.dynamics, recordings=recordings)  # type: ignore[type-var]
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graphs, "recordable", lambda on: True)
            patch.setattr(cuda_graphs, "record", record)
            state, info = engine.run(state, 0, 8)
        found.append((state.params, state.metric, info.loss))
        assert engine.recorded == (0 if recordings is None else 2)
    # Two calls of each kind come before its recording.
    assert len(replays) == 8 * 4 - 2 * 2
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_the_same_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3))
    x, y = torch.randn(6, 2, 5, 5), torch.arange(6) % 3
    sampler = Langevin(model, likelihoods.Categorical(), chains=2, step_size=1e-3, compile=False)
    posterior = sampler.sample((x, y), 4, batch_size=6, progress=False)
    found = []
    for limit in (in_turn.ONE_BY_ONE, 1):
        monkeypatch.setattr(in_turn, "ONE_BY_ONE", limit)
        found.append((posterior.network_outputs(x), posterior.log_likelihood(x, y)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert not torch.equal(found[0][0][0], found[0][0][-1])


def test_by_shapes_alone() -> None:
    """Wide images are taken one by one; small ones, and what is no image, together."""
    convolution = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Flatten())
    own = dict(convolution.named_parameters())
    assert in_turn.one_by_one(convolution, own, torch.empty(100, 3, 32, 32))
    assert in_turn.one_by_one(convolution[0], ["weight"], torch.empty(100, 3, 32, 32))
    assert not in_turn.one_by_one(convolution, own, torch.empty(100, 3, 8, 8))
    assert not in_turn.one_by_one(convolution, own, torch.empty(100_000, 64))
    assert not in_turn.one_by_one(convolution, ["1.weight"], torch.empty(100, 3, 32, 32)), "shared"


@pytest.mark.parametrize(("layer", "times"), [(0, 3), (3, 1)])
def test_a_convolution_that_all_share_is_done_once(layer: int, times: int) -> None:
    convolution = nn.Conv2d(1, 64, 3)
    model = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2))
    x, name, done = torch.randn(20, 1, 32, 32), f"{layer}.weight", []
    convolution.register_forward_hook(lambda *_: done.append(1))
    own = {name: torch.randn(3, *model.get_parameter(name).shape)}
    found = in_turn.of_each(lambda w: functional_call(model, w, (x,)), model, x, own)
    assert len(done) == times
    for k in range(3):
        expected = functional_call(model, {name: own[name][k]}, (x,))
        torch.testing.assert_close(found[k], expected, rtol=1e-4, atol=1e-5)
