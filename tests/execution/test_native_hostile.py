"""Data that change under the native engine, which reads the caller's memory: no write or read out
of bounds, and an error that names the row."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from natural_langevin import Langevin, likelihoods
from natural_langevin.execution.kernels.native.build import library

pytestmark = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")

ROW = 7


def problem() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(20, 3, generator=g), torch.randint(0, 3, (20,), generator=g)


def sampler(likelihood: Any = None, outputs: int = 3) -> Langevin:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))
    return Langevin(net, likelihood or likelihoods.Categorical(), step_size=1e-3, chains=2)


def run(x: Tensor, y: Tensor, change: Any, **options: Any) -> None:
    """A run whose callback changes the data once, at step 50."""
    sampler(**options).sample(
        (x, y), steps=200, batch_size=20, progress=False,
        callback=lambda look: change() if look.step == 50 else None,
    )  # fmt: skip


@pytest.mark.parametrize("label", [3, -1, 1000, 10**6, 10**12, -(10**12), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(
    "likelihood", [likelihoods.Categorical(), likelihoods.Ordinal(3)], ids=["classes", "levels"]
)
def test_a_class_that_does_not_exist_stops_the_run_with_its_row(likelihood, label):
    x, y = problem()
    outputs = 3 if isinstance(likelihood, likelihoods.Categorical) else 1
    with pytest.raises(ValueError, match=f"row {ROW} of the data has an unknown class"):
        run(x, y, lambda: y.__setitem__(ROW, label), likelihood=likelihood, outputs=outputs)


def test_a_thread_that_writes_into_labels_and_inputs_is_found_out():
    x, y = problem()
    stop = threading.Event()

    def write() -> None:
        k = 0
        while not stop.is_set():
            k += 1
            y[k % 20] = (-1) ** k * 10 ** (k % 16)
            x[k % 20] = float("nan")

    writer = threading.Thread(target=write)
    try:
        with pytest.raises(ValueError, match=r"row \d+ of the data has an unknown class"):
            run(x, y, writer.start)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("which", [0, 1])
def test_memory_that_was_moved_is_not_read(which):
    data = problem()
    engine, state = sampler().prepare(data, steps=20, batch_size=20)
    engine.run(state, 0, 5)
    data[which].resize_(100_000)
    with pytest.raises(RuntimeError, match="memory of x or y was replaced"):
        engine.run(state, 5, 5)


class Batches(IterableDataset):  # type: ignore[type-arg]
    """Batches of images, of which a later one has another shape, or none at all."""

    def __init__(self, later: tuple[int, ...]) -> None:
        self.later = later

    def __iter__(self):
        for shape in [(8, 1, 6, 6)] * 3 + [self.later]:
            yield torch.zeros(shape), torch.zeros(shape[0], dtype=torch.long)


@pytest.mark.parametrize("later", [(8, 1, 4, 9), (8, 1, 4, 4), (8, 1, 9, 9), (0, 1, 6, 6)])
def test_batches_of_another_shape_are_refused(later):
    """Pooled to one number, images of any size pass through the network."""
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)
    )
    one = Langevin(net, likelihoods.Categorical(), step_size=1e-3, chains=1, num_data=32)
    loader = DataLoader(Batches(later), batch_size=None)
    with pytest.raises(ValueError, match=r"does not fit rows of|empty batch"):
        one.sample(loader, steps=20, progress=False)
