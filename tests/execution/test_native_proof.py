"""The native engine proves itself on real data before it takes a run, and leaves others alone."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from native_engines import LIKELIHOODS, METRICS, STEPS, assert_same, data, engines, network
from natural_langevin import dynamics, preconditioners
from natural_langevin.execution.kernels.native import planner
from natural_langevin.execution.kernels.native.build import library
from natural_langevin.execution.kernels.native.engine import NativeMLP

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")


def test_a_disagreement_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a trace has overlooked: a step that is not the reference's is not used."""
    found = planner.NativeMLP._describe_layers

    def wrong(self: NativeMLP, width: int) -> None:
        found(self, width)
        self._layers[0].activation = 3  # tanh, where the network has a ReLU

    monkeypatch.setattr(planner.NativeMLP, "_describe_layers", wrong)
    _, native, state = engines(
        network(4, 6, 2, activation=nn.ReLU), LIKELIHOODS["gaussian"],
        data(LIKELIHOODS["gaussian"], 4, 2),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        state, _ = native.run(state, 0, STEPS)
    assert "disagrees" in caplog.text
    assert native.way != "native"


def test_inputs_far_from_zero_are_no_disagreement(caplog: pytest.LogCaptureFixture) -> None:
    """J_ii - J_0i^2 / J_00 is rounding alone in float32 there, for the reference too; float64
    tells that the formulas are the same."""
    _, native, state = engines(
        network(1, 16, 1, activation=nn.Identity), LIKELIHOODS["gaussian"],
        (3000 + torch.rand(50, 1), torch.rand(50, 1)), dtype=torch.float32,
    )  # fmt: skip
    executor = NativeMLP(native.dynamics, state, native.stream, native.rates, native.num_data)
    assert not planner.agrees(executor, state)
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        native.run(state, 0, STEPS)
    assert native.way == "native"
    assert not caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hardly_any_dispersion_is_no_disagreement(dtype: torch.dtype) -> None:
    """Large counts of 1/a = 1e13: neither side may subtract numbers of that size."""
    model = network(4, 6, 2).to(dtype)
    with torch.no_grad():
        model[-1].bias.copy_(torch.tensor([2.0, -30.0]))
    x, y = data(LIKELIHOODS["negative-binomial"], 4, 2)
    reference, native, state = engines(
        model, LIKELIHOODS["negative-binomial"], (x.to(dtype), y), dtype=dtype, step_size=1e-3,
        preconditioner=METRICS["quasi-diagonal"], temperature=0.0,
    )  # fmt: skip
    assert_same(reference, native, state, rtol=1e-4 if dtype == torch.float32 else 1e-9)


def test_what_it_does_not_take_goes_the_general_way() -> None:
    full, other, state = engines(
        network(4, 3, 2), LIKELIHOODS["gaussian"], data(LIKELIHOODS["gaussian"], 4, 2),
        preconditioner=preconditioners.FullFisher(damping=0.1), temperature=0.0,
    )  # fmt: skip
    start = pytree.tree_map(torch.clone, state)
    wanted, _ = full.run(start, 0, STEPS)
    state, _ = other.run(state, 0, STEPS)
    assert other.way != "native"
    for k, p in wanted.params.items():
        torch.testing.assert_close(state.params[k], p)


def test_another_descent_is_for_the_general_step() -> None:
    class Other(dynamics.Descent):
        """Does the same today; what it does tomorrow nobody knows."""

    params = {"0.weight": torch.zeros(1, 3, 2), "0.bias": torch.zeros(1, 3)}
    descent = dynamics.Descent.of(params, torch.zeros(1))
    assert descent.kernels == {"mlp"}
    own = {f.name: getattr(descent, f.name) for f in dataclasses.fields(descent) if f.init}
    assert Other(**own).kernels == frozenset()
