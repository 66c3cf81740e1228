"""The native engine by several threads: chains in turn, in pieces, or one chain by a team."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from native_engines import LIKELIHOODS, METRICS, STEPS, assert_same, data, engines, network
from natural_langevin import Langevin, dynamics, random
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics import RatesTable
from natural_langevin.execution.engine import Engine
from natural_langevin.execution.kernels.native.build import library
from natural_langevin.models import fan_in_init

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads: int) -> None:
    """Chains in turn, or one chain by a team: the network is large enough for one."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        reference, native, state = engines(
            network(60, 80, 2, activation=nn.ReLU), LIKELIHOODS["rmse"],
            data(LIKELIHOODS["rmse"], 60, 2, 120), batch_size=101, step_size=1e-3, chains=2,
            preconditioner=METRICS["quasi-diagonal"], temperature=0.0,
        )  # fmt: skip
        assert_same(reference, native, state, rtol=1e-9)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kept", [True, False])
def test_chains_in_pieces(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five chains by two threads, and by one: the same bits, whoever takes which piece of a chain,
    along several epochs, and with no room to keep their permutations in."""
    if not kept:
        monkeypatch.setattr("natural_langevin.execution.kernels.native.engine.MOST_KEPT", 0)
    given, before, ends = data(LIKELIHOODS["gaussian"], 4, 2), torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            model = network(4, 6, 2).double()
            sampler = Langevin(model, LIKELIHOODS["gaussian"], chains=5, step_size=1e-2)
            engine, state = sampler.prepare(given, steps=100, batch_size=16)
            for first, count in ((0, 1), (1, 59), (60, 40)):
                state, _ = engine.run(state, first, count)
        finally:
            torch.set_num_threads(before)
        assert engine.way == "native"
        ends.append(pytree.tree_leaves(state))
    assert float(state.params["0.weight"].std(0).min()) > 0
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rates", [(0.0, 0.3, 0.6), None])
def test_dropped_units(rates: tuple[float, ...] | None, threads: int) -> None:
    """Of several hidden layers, wide enough that threads share a step; each network its rate."""
    x, y = data(LIKELIHOODS["categorical"], 60, 3)
    chain = torch.arange(3)
    origin = random.origin(4, random.NOISE, chain)
    rate = torch.tensor(rates or (0.0,) * 3, dtype=torch.float64)
    own = network(60, 50, 21, 3, activation=nn.ReLU).double()
    params = {k: p.detach() for k, p in own.named_parameters()}
    weights = fan_in_init(params, chain=chain, seed=0)
    descent = dynamics.Descent.of(weights, rate, origin if rates else None, momentum=0.5)
    made = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for mode in ("eager", "auto"):
            stream = InMemory(x, y, batch_size=16, chain=chain, seed=0, device=x.device)
            table = RatesTable.build(0.1, stop=STEPS, chains=3, dtype=torch.float64)
            made.append(Engine(descent, stream, table, len(x), mode=mode))
        start = descent.init(weights)
        assert_same(made[0], made[1], start, rtol=1e-9)
    finally:
        torch.set_num_threads(before)
