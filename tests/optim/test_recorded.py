"""What a GPU's optimizer records: a part of the step that is repeated from tensors in fixed places.

Here the recorder is a stand-in that runs the function again, so that everything but CUDA itself is
as on a GPU: what is copied in, what lies where, and when a recording no longer serves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin import dynamics, likelihoods, preconditioners
from natural_langevin._internal import cuda_graphs
from natural_langevin.execution import traced
from natural_langevin.optim import NaturalLangevin

OPTIONS: dict[str, dict[str, Any]] = {
    "QDOP": {},
    "every second step, BAOAB": {
        "preconditioner": preconditioners.QuasiDiagonalFisher(every=2),
        "dynamics": dynamics.Underdamped(integrator="baoab"),
    },
    "RMSProp": {"preconditioner": preconditioners.RMSProp()},
    "no kernels": {"dynamics": dynamics.Overdamped(correct_heat=True)},
    "by name": {"preconditioner": preconditioners.UnitFisher()},
}


class Recorder:
    """Recording runs nothing: what the function has changed is put back."""

    def __init__(self) -> None:
        self.kept: Callable[[], list[Tensor]] = list
        self.recorded = 0

    def __call__(self, function: Callable[[], Any], device: torch.device) -> Any:
        self.recorded += 1
        before = [(t, t.clone()) for t in self.kept()]
        result = function()
        for tensor, value in before:
            tensor.copy_(value)

        def replay() -> None:
            pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(function()), strict=True)
            for into, value in pairs:
                if into is not None:
                    into.copy_(value)

        return replay, result


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


class Opaque(nn.Module):
    """Layers that torch computes in one kernel, which are run again to look inside."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.states = nn.LSTM(4, 6, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.states(x.flatten(1, 2))
        mask = x[:, :, :, 0].flatten(1) > 1
        return self.head(self.attention(h, h, h, key_padding_mask=mask)[0].mean(1))


def run(
    options: dict[str, Any],
    recorder: Recorder | None = None,
    make: Callable[[], nn.Module] = network,
) -> list[Tensor]:
    model = make()
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=200, lr=1e-2, check_loss=False, **options
    )
    if recorder is not None:
        recorder.kept = lambda: [
            *(p.detach() for p in model.parameters()),
            *(t for _, u in optimizer._updates for t in pytree.tree_leaves(u._state)),
        ]
    generator = torch.Generator().manual_seed(1)
    for step in range(12):
        optimizer.zero_grad()
        for _ in range(2 if step in (8, 9) else 1):  # also a step from two passes
            x = torch.randn(6, 2, 4, 4, generator=generator)
            y = torch.randint(0, 5, (6,), generator=generator)
            F.cross_entropy(model(x), y).div(2 if step in (8, 9) else 1).backward()
        if step == 6:
            optimizer.param_groups[0]["lr"] = 3e-3
        if step == 10:  # other memory: nothing may be written to the old one
            for p in model.parameters():
                p.data = p.data.clone()
        optimizer.step()
    return [*model.parameters(), *optimizer.mean().values()]


@pytest.mark.parametrize("name", OPTIONS)
def test_recorded_steps_are_the_steps_themselves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(cuda_graphs, "has_graphs", lambda device: True)
    monkeypatch.setattr(cuda_graphs, "recordable", lambda on: False)
    expected = run(OPTIONS[name])
    monkeypatch.setattr(cuda_graphs, "recordable", lambda on: True)
    monkeypatch.setattr(cuda_graphs, "record", recorder)
    found = run(OPTIONS[name], recorder)
    assert recorder.recorded >= (2 if name == "QDOP" else 1)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "make", "kinds"),
    [
        ("QDOP", network, 1),
        ("every second step, BAOAB", network, 1),
        ("by name", network, 1),
        ("QDOP", Opaque, 3),
    ],
)
def test_traced_statistics_are_the_statistics_themselves(
    name: str, make: Callable[[], nn.Module], kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU they are traced and replayed, as is the second pass of opaque layers."""
    made = []
    trace = traced._traced
    monkeypatch.setattr(traced, "PATIENCE", math.inf)
    expected = run(OPTIONS[name], make=make)
    monkeypatch.setattr(traced, "PATIENCE", 0.0)
    monkeypatch.setattr(traced, "SEVERAL", 2)
    monkeypatch.setattr(traced, "_traced", lambda *given: made.append(trace(*given)) or made[-1])
    found = run(OPTIONS[name], make=make)
    assert len(made) >= kinds
    assert all(made)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_statistics_of_a_network_that_was_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices do not tell in which precision the gradients are that come back to them."""
    monkeypatch.setattr(traced, "PATIENCE", 0.0)
    monkeypatch.setattr(traced, "SEVERAL", 2)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=100, lr=1e-3,
        preconditioner=preconditioners.KroneckerFisher(),
    )  # fmt: skip
    for step in range(8):
        if step == 5:
            model.double()
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randint(10, (8, 3))), torch.arange(8) % 3).backward()
        optimizer.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_what_cannot_be_recorded_runs_as_it_did(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(function: Callable[[], Any], device: torch.device) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "has_graphs", lambda device: True)
    monkeypatch.setattr(cuda_graphs, "recordable", lambda on: False)
    expected = run({})
    monkeypatch.setattr(cuda_graphs, "recordable", lambda on: True)
    monkeypatch.setattr(cuda_graphs, "record", broken)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = run({})
    # Statistics of one pass and of several, and the step.
    assert caplog.text.count("no CUDA graph of") == 3
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
