"""Memory stays bounded with long sequences, large vocabularies and wide convolutions: measured."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import natural_langevin
import natural_langevin.statistics.moments as library
from natural_langevin import likelihoods
from natural_langevin.statistics import Gradients, Network
from natural_langevin.statistics.requests import Group
from natural_langevin.statistics.rules import base
from zoo import Apply

KEY, STEP = torch.zeros(1, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes, in numbers of memory (a view has none)."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                size = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.numbers = max(self.numbers, size)
        return result


def mean(axis: int) -> nn.Module:
    return Apply(lambda h: torch.tanh(h).mean(axis))


def pieces(model: nn.Module, x: Tensor, sharing: str) -> int:
    y = torch.arange(len(x)) % 3
    gradients = Gradients(
        Network(model), likelihoods.Categorical(), requests=("second", "cross"), sharing=sharing
    )
    params = {k: p.detach()[None] for k, p in model.named_parameters()}
    gradients.prepare(params, x)
    with Largest() as largest:
        found = gradients(params, {}, (x, y), chain_axis=False, key=KEY, step=STEP)
    assert all(torch.isfinite(s).all() for s in found.statistics.second.values())
    return largest.numbers


@pytest.mark.parametrize("sharing", ["exact", "expand"])
def test_long_sequences(sharing: str) -> None:
    """4096 positions of 8 samples: no outer product per position (33 million numbers) is built."""
    model = nn.Sequential(nn.Linear(32, 32), mean(1), nn.Linear(32, 3))
    x = torch.randn(8, 4096, 32)
    assert pieces(model, x, sharing) <= 2 * x.numel()  # [a^2, a] side by side


@pytest.mark.parametrize("sharing", ["exact", "expand"])
def test_large_vocabulary(sharing: str) -> None:
    """The table of 50,000 tokens, not one for every sample (25 million numbers)."""
    model = nn.Sequential(nn.Embedding(50_000, 16), mean(1), nn.Linear(16, 3))
    x = torch.randint(0, 50_000, (32, 20))
    assert pieces(model, x, sharing) <= 50_000 * 16


@pytest.mark.parametrize("sharing", ["exact", "expand"])
def test_chunks_respect_the_bound(sharing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches of a convolution, and per-sample gradients of a layer without a rule."""
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), Wide(8 * 16 * 16, 3))
    monkeypatch.setattr(base, "native", lambda *_: False)  # which makes no patches
    x = torch.randn(32, 8, 16, 16)
    patches, weights = 32 * 8 * 9 * 256, 32 * 3 * 2048
    free = pieces(model, x, sharing)
    assert free >= max(patches, weights)
    monkeypatch.setattr(library, "CHUNK_NUMBERS", 60_000)
    assert pieces(model, x, sharing) <= 3 * 60_000


class Wide(nn.Linear):
    """No rule: it is run again, sample by sample."""


def test_peak_memory_of_a_language_model() -> None:
    """A tied embedding of 20,000 tokens, 64 wide, 16 samples of 16 tokens, in a fresh process.

    Written out for the whole batch, per-sample gradients of the table and their squares would take
    2 x 82 MB, and the outer products of every position 1.3 GB."""
    program = """
import resource, torch
from torch import nn
from natural_langevin import likelihoods
from natural_langevin.statistics import Gradients, Network

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20_000, 64), nn.Linear(64, 20_000)
        self.head.weight = self.embed.weight
    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)))

def peak(*requests):
    model = Model()
    g = Gradients(Network(model), likelihoods.Categorical(), requests=requests)
    params = {k: p.detach()[None] for k, p in model.named_parameters()}
    x = torch.randint(0, 20_000, (16, 16))
    g.prepare(params, x)
    key, step = torch.zeros(1, 2, dtype=torch.int32), torch.zeros((), dtype=torch.int64)
    g(params, {}, (x, x), chain_axis=False, key=key, step=step)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

plain = peak()  # with the logits, their softmax and their gradients
print(peak("second", "cross") - plain)
"""
    environment = {"PYTHONPATH": str(Path(natural_langevin.__file__).parents[1]), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    # A chunk of 13 samples' gradients is 64 MB, its square as much; tables of 5 MB come on top.
    assert float(done.stdout) < 200, f"{done.stdout} MB more than a plain gradient"


def test_a_chunk_of_gradients_is_gone_before_the_next_one_is_made() -> None:
    made: list[weakref.ref[Tensor]] = []

    def dense(part: slice) -> dict[str, Tensor]:
        assert all(gone() is None for gone in made)
        values = torch.arange(part.start, part.stop).float()[:, None]
        made.append(weakref.ref(values))
        return {"w": values}

    asked = [Group("w", (), frozenset({"first"}))]
    found = library.dense_moments(dense, asked, library.Averaging(6, numbers=2), 1)
    assert len(made) == 3
    assert found["first"]["w"].item() == 2.5
