"""What is being trained: a network and synthetic data in memory.

The data are seeded noise with labels that a random linear map gives them: the time of a step does
not depend on what the numbers mean, and nothing has to be downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import models
from natural_langevin.experiments.bench_networks import BUILT, CLASSES, LENGTH, SIGMA, TOKENS

#: One step size and prior for everybody, small enough that no metric's chains diverge.
STEP_SIZE, PRIOR_VARIANCE = 1e-4, 0.1
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

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The minibatch's mean log-loss, constants left out."""
        if self.regression:
            return F.mse_loss(outputs, y) / (2 * SIGMA**2)
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten()) * y[0].numel()


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
    generator = torch.Generator().manual_seed(seed)
    if name in SMALL:
        return _small(name, device, seed, batch_size, num_data, generator)
    if name == "transformer":
        x = torch.randint(TOKENS, (num_data, LENGTH), generator=generator)
        y = x.sum(1) % CLASSES
    elif name == "gpt":
        x = torch.randint(256, (num_data, 129), generator=generator)
        x, y = x[:, :-1].contiguous(), x[:, 1:].contiguous()
    elif name == "lstm":
        x = torch.randn(num_data, 16, 8, generator=generator)
        y = x.sum((1, 2)).abs().long() % CLASSES
    elif name == "resnet18":
        x = torch.randn(num_data, 3, 32, 32, generator=generator)
        y = x.sum((1, 2, 3)).abs().long() % CLASSES
    elif name in ("mlp", "cnn"):
        x = torch.rand(num_data, inputs, generator=generator)
        teacher = torch.randn(inputs, CLASSES, generator=generator)
        y = ((x - 0.5) @ teacher).argmax(1)
        if name == "cnn":
            x = x.reshape(num_data, 1, 28, 28)
    else:
        raise ValueError(f"unknown network {name!r}: choose among {', '.join(NETWORKS)}")

    def build() -> nn.Module:
        if name == "mlp":
            return models.mlp(inputs, CLASSES, hidden, seed=seed).to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return BUILT[name]().to(device)

    return Problem(name, build, x.to(device), y.to(device), batch_size, seed)


def _small(
    name: str,
    device: str | torch.device,
    seed: int,
    batch_size: int,
    num_data: int,
    generator: torch.Generator,
) -> Problem:
    inputs, *hidden, outputs = SMALL[name]
    x = torch.rand(num_data, inputs, generator=generator)
    teacher = torch.randn(inputs, outputs, generator=generator)
    signal = (x - 0.5) @ teacher
    noise = SIGMA * torch.randn(signal.shape, generator=generator)
    y = signal + noise if outputs == 1 else signal.argmax(1)
    build = lambda: models.mlp(inputs, outputs, hidden, seed=seed).to(device)  # noqa: E731
    return Problem(name, build, x.to(device), y.to(device), batch_size, seed)
