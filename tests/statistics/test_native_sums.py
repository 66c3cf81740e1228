"""Sums over samples of per-sample gradients by the native library, against G_n written out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import warm
from natural_langevin import likelihoods
from natural_langevin.statistics import Evaluation, Gradients, Network, prepare_model
from natural_langevin.statistics.rules import RULES, Call, Outer, base
from zoo import Apply

#: Widths of no whole vector, of one row, of more than a piece of work.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "positions": (lambda: nn.Linear(7, 5), (9, 6, 7)),
    "wide": (lambda: nn.Linear(83, 79), (3, 2, 83)),
    "two axes of positions": (lambda: nn.Linear(16, 1), (4, 3, 2, 16)),
    "padded": (lambda: nn.Conv2d(3, 5, 3, padding=1), (9, 3, 8, 8)),
    "few inputs": (lambda: nn.Linear(3, 70), (9, 6, 3)),
    "wide patches": (lambda: nn.Conv2d(35, 35, 3), (2, 35, 4, 5)),
    "around a circle": (
        lambda: nn.Conv2d(3, 5, 3, padding=1, stride=2, padding_mode="circular"), (17, 3, 9, 7)
    ),
    "one axis, dilated": (lambda: nn.Conv1d(3, 5, 3, dilation=2), (5, 3, 19)),
    "three axes": (lambda: nn.Conv3d(2, 5, 2, padding=1), (5, 2, 3, 4, 2)),
    "transposed": (
        lambda: nn.ConvTranspose2d(3, 5, 3, stride=2, padding=1, output_padding=1), (5, 3, 6, 4)
    ),
}  # fmt: skip


def form(layer: nn.Module, x: Tensor, delta: Tensor) -> Outer:
    found = RULES[type(layer)].gradients(layer, Call((x,), (delta,)))["weight"]
    assert isinstance(found, Outer)
    return found


def sums(one: Outer, bias: Tensor | None, *, total: bool = True) -> tuple[Tensor, ...]:
    made = one.square_sums()
    assert made is not None
    return made(bias, total)


def layer_call(kind: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer, x = make().to(dtype), torch.randn(shape, dtype=dtype)
    delta = torch.randn_like(layer(x).detach())
    return layer, x, delta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*LAYERS])
def test_sums_are_those_of_gradients_written_out(kind: str, dtype: torch.dtype) -> None:
    layer, x, delta = layer_call(kind, dtype)
    one = form(layer, x, delta)
    G = one.dense(slice(0, len(x)))
    bias = torch.randn(len(x), one.shape[0], dtype=dtype)
    by_unit = bias.reshape(*bias.shape, *(1,) * (G.ndim - 2))
    expected = G.square().sum(0), G.sum(0), (by_unit * G).sum(0)
    size = (
        {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    )
    for found, exact in zip(sums(one, bias), expected, strict=True):
        torch.testing.assert_close(found, exact, **size)
    assert len(sums(one, None, total=False)) == 1
    square, row = sums(one, bias, total=False)
    torch.testing.assert_close(square, expected[0], **size)
    torch.testing.assert_close(row, expected[2], **size)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["positions", "padded", "transposed"])
def test_chains_together_have_the_bits_of_each_alone(kind: str, shared: bool) -> None:
    """``shared``: all of them have the same inputs, as the first layer does."""
    layer, x, delta = layer_call(kind, torch.float32)
    inputs = x if shared else torch.stack([x, -2 * x, x + 1], 1)
    deltas = torch.stack([delta, 3 - delta, delta.square()])
    bias = torch.randn(3, len(x), form(layer, x, delta).shape[0])

    def one(x: Tensor, delta: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return sums(form(layer, x, delta), bias)

    together = vmap(one, in_dims=(None if shared else 1, 0, 0))(inputs, deltas, bias)
    for k in range(3):
        alone = one(inputs if shared else inputs[:, k], deltas[k], bias[k])
        for found, expected in zip(together, alone, strict=True):
            assert torch.equal(found[k], expected)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(64, 60), (60, 21, 64)),
        (nn.Linear(6, 200), (90, 41, 6)),
        (nn.Conv2d(8, 20, 3), (31, 8, 12, 12)),
    ],
)
def test_the_same_bits_by_several_threads(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, before, found = torch.randn(shape), torch.get_num_threads(), []
    delta = torch.randn_like(layer(x).detach())
    bias = torch.randn(len(x), len(layer.weight))
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(sums(form(layer, x, delta), bias))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


FORK = """
import os, time, torch
from natural_langevin.execution.kernels import cpu_sums
torch.set_num_threads(2)
a, delta = torch.randn(1, 60, 40 * 64), torch.randn(1, 60, 40, 64)
expected = cpu_sums._sample_sums(a, delta, None, None)
child = os.fork()
if child == 0:
    same = torch.equal(cpu_sums._sample_sums(a, delta, None, None), expected)
    os._exit(0 if same else 1)
deadline, ended = time.monotonic() + 60, 0
while not ended and time.monotonic() < deadline:
    ended, status = os.waitpid(child, os.WNOHANG)
    time.sleep(0.01)
if not ended:
    os.kill(child, 9)
    os.waitpid(child, 0)
print(status if ended else "hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_wait_for_its_parents_threads(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORK)
    assert warm.run([script]).strip() == "0"


class Attentive(nn.Module):
    """Attention of a sequence to itself, its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.mixed(x, x, x, need_weights=False)[0]
        return found.mean(1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "norms": (
        lambda: nn.Sequential(
            nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), Apply(lambda h: h.mean(1))
        ), (9, 4, 8),
    ),
    "attention": (lambda: nn.Sequential(Attentive(), nn.Linear(8, 3)), (9, 4, 8)),
    "recurrent": (
        lambda: nn.Sequential(nn.LSTM(8, 6, batch_first=True), Apply(lambda o: o[0][:, -1]),
                              nn.Linear(6, 3)), (9, 4, 8),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(),
            nn.Conv2d(6, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3),
        ), (9, 2, 5, 5),
    ),
    "a weight used twice": (
        lambda: nn.Sequential(*[nn.Linear(8, 8)] * 2, Apply(lambda h: h.mean(1)), nn.Linear(8, 3)),
        (9, 4, 8),
    ),
}  # fmt: skip


def evaluated(model: nn.Module, x: Tensor, targets: Any, chains: int = 2) -> Evaluation:
    prepare_model(model)
    gradients = Gradients(
        Network(model), likelihoods.Categorical(), requests=("second", "cross"), targets=targets
    )
    generator = torch.Generator().manual_seed(1)
    params = {
        k: p.detach() + 0.1 * torch.randn(chains, *p.shape, generator=generator, dtype=p.dtype)
        for k, p in gradients.network.model.named_parameters()
    }
    gradients.prepare(params, x)
    key = torch.arange(2 * chains, dtype=torch.int32).reshape(chains, 2)
    y = torch.arange(len(x)) % 3
    return gradients(params, {}, (x, y), chain_axis=False, key=key, step=torch.tensor(0.0))


@pytest.mark.parametrize("targets", ["data", "model"])
@pytest.mark.parametrize("kind", [*NETWORKS])
def test_gradients_and_statistics_of_networks(
    kind: str, targets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[kind]
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)
    natively = evaluated(model, x, targets)
    monkeypatch.setattr(base, "native", lambda *_: False)
    monkeypatch.setattr(base.SampleGradient, "adds_up", False)
    for other in (base.Outer, base.Sum, base.Stacked):
        monkeypatch.setattr(other, "adds_up", False)
    expected = evaluated(model, x, targets)
    assert natively.gradient.keys() == expected.gradient.keys()
    for name, gradient in expected.gradient.items():
        torch.testing.assert_close(natively.gradient[name], gradient)
    for field in ("second", "cross"):
        torch.testing.assert_close(
            getattr(natively.statistics, field), getattr(expected.statistics, field)
        )


def test_sums_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every map of the network, and the gradients with them."""
    seen = []
    own = base._NATIVE[0]

    class Watched:
        def __call__(self, *given: Any) -> tuple[Tensor, ...]:
            seen.append(math.prod(given[1].shape[1:]))
            return own(*given)

        def serves(self, dtype: torch.dtype) -> bool:
            return own.serves(dtype)

    monkeypatch.setattr(base, "_NATIVE", [Watched()])
    torch.manual_seed(0)
    make, shape = NETWORKS["convolutions"]
    prepare_model(model := make())
    gradients = Gradients(Network(model), likelihoods.Categorical(), requests=("second", "cross"))
    params = {k: p.detach()[None] for k, p in gradients.network.model.named_parameters()}
    x = torch.randn(shape)
    gradients.prepare(params, x)
    assert gradients.summed == {"0.weight", "0.bias", "1.weight", "1.bias"}
    key, y = torch.zeros(1, 2, dtype=torch.int32), torch.arange(len(x)) % 3
    gradients(params, {}, (x, y), chain_axis=False, key=key, step=torch.tensor(0.0))
    assert seen == [6 * 25]  # groups of channels are torch's
