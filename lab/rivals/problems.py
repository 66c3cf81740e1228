"""Networks and data that are compared on; the last tenth of the training rows is for whoever holds
rows out, test rows are seen by nobody before the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lab.defaults import dozen
from natural_langevin import data
from natural_langevin.cli.experiments.bench_networks import GPT

#: Characters that the transformer sees at once.
LENGTH = 64


@dataclass(frozen=True)
class Problem:
    """A network without and with dropped units (rate), and the rows."""

    network: Callable[[float], nn.Module]
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    outside: Tensor | None = None  # inputs of another kind

    def to(self, device: str) -> Problem:
        moved = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    @property
    def kept(self) -> int:
        """Rows that are learned from where a tenth is held out."""
        return len(self.x) - len(self.x) // 10

    @property
    def learned(self) -> tuple[Tensor, Tensor]:
        return self.x[: self.kept], self.y[: self.kept]

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        return self.x[self.kept :], self.y[self.kept :]


def lenet(rate: float) -> nn.Module:
    """LeNet-5 with GELU and mean pooling, as SMILE's configuration for Fashion-MNIST has it."""
    drop = [nn.Dropout(rate)] if rate else []
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.GELU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.GELU(),
        nn.AvgPool2d(2), nn.Flatten(), *drop, nn.Linear(400, 120), nn.GELU(), *drop,
        nn.Linear(120, 84), nn.GELU(), *drop, nn.Linear(84, 10),
    )  # fmt: skip


def fashion(path: Path, rows: int | None) -> Problem:
    """Fashion-MNIST of an .npz with x, y, xt, yt; outside are MNIST's test digits, where they are
    at hand."""
    found = np.load(path)
    x, test_x = (torch.from_numpy(found[k]).reshape(-1, 1, 28, 28) / 255.0 for k in ("x", "xt"))
    y, test_y = (torch.from_numpy(found[k]).long() for k in ("y", "yt"))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:rows]
    tests = torch.randperm(len(test_x), generator=torch.Generator().manual_seed(1))[:rows]
    mean, deviation = x[order].mean(), x[order].std()
    try:
        digits = data.mnist(download=False).test_x.reshape(-1, 1, 28, 28)
    except (OSError, ValueError, RuntimeError):
        digits = None
    return Problem(
        lenet, (x[order] - mean) / deviation, y[order],
        (test_x[tests] - mean) / deviation, test_y[tests],
        None if digits is None else (digits[:rows] - mean) / deviation,
    )  # fmt: skip


def small(path: Path, rows: int | None) -> Problem:
    """Digits of 8 x 8 pixels and a perceptron: in seconds on a CPU. Any path does."""
    found = data.digits()

    def network(rate: float) -> nn.Module:
        drop = [nn.Dropout(rate)] if rate else []
        return nn.Sequential(nn.Linear(64, 32), nn.GELU(), *drop, nn.Linear(32, 10))

    x, test_x = found.train_x.flatten(1), found.test_x.flatten(1)
    return Problem(
        network, x[:rows], found.train_y[:rows], test_x, found.test_y, torch.rand(300, 64)
    )


def table(path: Path, rows: int | None) -> Problem:
    """Eighteen columns and seven classes, drawn; for a CPU. Any path does."""
    found = dozen.problem("perceptron: 18 columns, 7 classes")

    def network(rate: float) -> nn.Module:
        drop = [nn.Dropout(rate)] if rate else []
        return nn.Sequential(
            nn.Linear(18, 64), nn.GELU(), *drop, nn.Linear(64, 64), nn.GELU(), *drop,
            nn.Linear(64, 7),
        )  # fmt: skip

    return Problem(network, found.x[:rows], found.y[:rows], found.x_test, found.y_test)


class Dropped(nn.Module):
    """A transformer whose last features are dropped at a rate."""

    def __init__(self, rate: float, vocabulary: int) -> None:
        super().__init__()
        self.gpt = GPT(4, 128, LENGTH, vocabulary, 4)
        self.gpt.norm = nn.Sequential(self.gpt.norm, nn.Dropout(rate))  # type: ignore[assignment]

    def forward(self, index: Tensor) -> Tensor:
        return self.gpt(index)


def shakespeare(path: Path, rows: int | None) -> Problem:
    """The next character of a text: its last tenth is the test."""
    text = path.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    place = {c: k for k, c in enumerate(alphabet)}
    index = torch.tensor([place[c] for c in text])
    cut = len(index) * 9 // 10

    def windows(part: Tensor) -> tuple[Tensor, Tensor]:
        count = (len(part) - 1) // LENGTH
        return (part[: count * LENGTH].reshape(count, LENGTH),
                part[1 : count * LENGTH + 1].reshape(count, LENGTH))  # fmt: skip

    (x, y), (test_x, test_y) = windows(index[:cut]), windows(index[cut:])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:rows]
    size = len(alphabet)

    def network(rate: float) -> nn.Module:
        return Dropped(rate, size) if rate else GPT(4, 128, LENGTH, size, 4)

    return Problem(network, x[order], y[order], test_x[:512], test_y[:512])


PROBLEMS: dict[str, Callable[[Path, int | None], Problem]] = {
    "fashion": fashion,
    "shakespeare": shakespeare,
    "small": small,
    "table": table,
}
