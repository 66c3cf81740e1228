"""What is being trained: a network and synthetic data in memory.

The data are seeded noise with labels that a random linear map gives them: the time of a step does
not depend on what the numbers mean, and nothing has to be downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from natural_langevin.cli.experiments.bench_networks import CLASSES, Task, task

#: Small networks, as people have them for tables: one output is a regression.
SMALL = {"2-32-2": (2, 32, 2), "13-50-1": (13, 50, 1), "8-50-50-1": (8, 50, 50, 1)}
#: Measured where they are named alone: a step of them is long.
LARGE = ("lstm", "resnet18", "gpt")
USUAL = ("mlp", *SMALL, "cnn", "transformer")
NETWORKS = (*USUAL, *LARGE)


@dataclass(frozen=True)
class Problem:
    """A network, N data on a device, and a batch size."""

    name: str
    build: Callable[[], nn.Module]  # on the device, the same weights every time
    x: Tensor
    y: Tensor
    batch_size: int
    seed: int

    @property
    def device(self) -> torch.device:
        """Where its data are."""
        return self.x.device

    @property
    def num_data(self) -> int:
        """N, the number of data."""
        return len(self.x)

    @property
    def parameters(self) -> int:
        """Number of weights of its network."""
        return sum(p.numel() for p in self.build().parameters())

    @property
    def regression(self) -> bool:
        """Whether y are numbers, N(f(x), ``SIGMA``^2), rather than classes."""
        return self.y.is_floating_point()

    @property
    def chain_counts(self) -> dict[str, tuple[int, ...]]:
        """Numbers of chains at which it is measured, by kind of device."""
        if self.name in SMALL:
            return {"cpu": (1, 16, 256), "cuda": (1, 256, 4096)}
        if self.name in LARGE:
            return {"cpu": (1,), "cuda": (1, 4)}
        return {"cpu": (1, 4), "cuda": (1, 12, 64, 256)}

    @property
    def task(self) -> Task:
        """The same as ``natural-langevin bench`` has it."""
        return Task(self.build, self.x, self.y, self.batch_size)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The minibatch's mean log-loss, constants left out."""
        return self.task.loss(outputs, y)


def problem(
    name: str,
    *,
    device: str | torch.device,
    seed: int = 0,
    batch_size: int = 100,
    num_data: int = 10_000,
    inputs: int = 784,
    hidden: Sequence[int] = (400, 400),
) -> Problem:
    """One of ``NETWORKS``. "mlp" is the paper's 784-400-400-10; its size can be changed."""
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}: choose among {', '.join(NETWORKS)}")
    widths = (inputs, *hidden, CLASSES) if name == "mlp" else SMALL.get(name)
    known = name if widths is None else "-".join(map(str, widths))
    of = task(known, rows=num_data, device=str(device), seed=seed)
    return Problem(name, of.build, of.x, of.y, batch_size, seed)
