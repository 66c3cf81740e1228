"""In C numbers below the smallest normal one are zero, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from native_engines import engines
from natural_langevin import likelihoods, preconditioners
from natural_langevin.execution.kernels.native.build import library

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")

#: Below the smallest normal number of single precision, 1.2e-38.
SMALL = 1e-40


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_squares_of_a_sure_network_are_zero() -> None:
    """Its gradients are e^-50: their squares, 4e-44, would each take a hundred times as long."""
    network = nn.Linear(2, 2)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([50.0, 0.0]))
    given = torch.randn(50, 2), torch.zeros(50, dtype=torch.long)
    metric = preconditioners.DiagonalFisher(damping=0.1, fresh=True, decay=1.0)
    reference, native, state = engines(
        network, likelihoods.Categorical(), given, dtype=torch.float32, preconditioner=metric,
        step_size=0.0,
    )  # fmt: skip
    wanted = float(reference.run(state, 0, 1)[0].metric["second"]["bias"].max())
    assert 0 < wanted < SMALL
    state, _ = native.run(state, 0, 1)
    assert native.way == "native"
    assert not state.metric["second"]["bias"].any()


@pytest.mark.usefixtures("threads")
def test_small_numbers_are_themselves_outside() -> None:
    given = torch.randn(50, 2), torch.zeros(50, dtype=torch.long)
    _, native, state = engines(
        nn.Linear(2, 2), likelihoods.Categorical(), given, dtype=torch.float32
    )
    native.run(state, 0, 5)
    assert native.way == "native"
    assert float(torch.tensor(SMALL) * 0.5) > 0
