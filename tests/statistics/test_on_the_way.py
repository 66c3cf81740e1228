"""Statistics that are formed while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import likelihoods
from natural_langevin.statistics import Evaluation, Gradients, Network, one_chain, prepare_model
from natural_langevin.statistics.moments import Moments
from natural_langevin.statistics.statistics import LayerStatistics

KEY, STEP = torch.zeros(1, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)


def evaluate(model: nn.Module, x: Tensor, **options: torch.dtype) -> Evaluation:
    prepare_model(model)
    gradients = Gradients(
        Network(model, **options), likelihoods.Categorical(), requests=("second", "cross")
    )
    params = {k: p.detach()[None] for k, p in model.named_parameters()}
    gradients.prepare(params, x)
    batch = x, torch.arange(len(x)) % 3
    return gradients(params, {}, batch, chain_axis=False, key=KEY, step=STEP)


class Unused(nn.Module):
    """A layer whose output no loss depends on, and one whose output is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)
        self.left_out, self.head = nn.Linear(16, 5), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).flatten(1)
        self.left_out(h)
        return self.head(h) + self.head(h.relu())


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
def test_the_same_as_from_a_tape(
    autocast: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Unused(), torch.randn(6, 2, 4, 4)
    options = {} if autocast is None else {"autocast": autocast}
    expected = evaluate(model, x, **options)
    monkeypatch.setattr(one_chain, "_at_once", lambda x: True)
    found = evaluate(model, x, **options)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(vars(found.statistics), vars(expected.statistics))
    assert not found.statistics.second["left_out.weight"].any()


def test_no_layer_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer's statistics are formed, no other's output gradient is held."""
    monkeypatch.setattr(one_chain, "_at_once", lambda x: True)
    held: list[int] = []
    ruled = LayerStatistics.ruled

    def watched(self: LayerStatistics, layers: Sequence[str]) -> Moments:
        held.append(len(self.recorded.deltas))
        return ruled(self, layers)

    monkeypatch.setattr(LayerStatistics, "ruled", watched)
    blocks = [m for _ in range(4) for m in (nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh())]
    evaluate(nn.Sequential(*blocks, nn.Linear(4, 3)), torch.randn(5, 4))
    assert held == [1] * 9


def test_outputs_that_depend_on_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_chain, "_at_once", lambda x: True)

    class Constant(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3]

    found = evaluate(nn.Sequential(Constant(4, 3)), torch.randn(5, 4))
    assert not found.gradient["0.weight"].any()
    assert not found.statistics.second["0.weight"].any()
