"""Networks and data that are compared on; the last tenth of the training rows is for whoever holds
rows out, test rows are seen by nobody before the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lab.data import cifar10
from lab.defaults import dozen
from lab.fidelity import problem as fidelity
from lab.models import FilterResponseNorm
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
    reference: Tensor | None = None  # the posterior's test probabilities, where they are known
    prior: float = 1.0  # variance of the weights, for who is told

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
    digits = _digits()
    return Problem(
        lenet, (x[order] - mean) / deviation, y[order],
        (test_x[tests] - mean) / deviation, test_y[tests],
        None if digits is None else (digits[:rows].reshape(-1, 1, 28, 28) - mean) / deviation,
    )  # fmt: skip


class Residual(nn.Module):
    """norm(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.norm = body, shortcut, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x) + self.shortcut(x))


def _layer(inputs: int, outputs: int, side: int = 3, stride: int = 1, *, norm: bool = True,
           bias: bool = False) -> list[nn.Module]:  # fmt: skip
    conv = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=bias)
    return [conv, FilterResponseNorm(outputs)] if norm else [conv]


def _head(inputs: int, rate: float) -> list[nn.Module]:
    drop = [nn.Dropout(rate)] if rate else []
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *drop, nn.Linear(inputs, 10)]


def resnet7(rate: float) -> nn.Module:
    """ResNet-7 with filter response norms, as SMILE's code has it."""
    last = nn.Sequential(*_layer(128, 128, bias=True))
    return nn.Sequential(
        *_layer(3, 32, bias=True), *_layer(32, 64, bias=True), nn.MaxPool2d(2),
        *_layer(64, 64, bias=True), *_layer(64, 128, bias=True), nn.MaxPool2d(2),
        *_layer(128, 128, bias=True), nn.MaxPool2d(2), Residual(last, nn.Identity(), nn.Identity()),
        *_head(128, rate),
    )  # fmt: skip


def resnet18(rate: float) -> nn.Module:
    """ResNet-18 with filter response norms, as SMILE's code has it."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        body = [*_layer(inputs, outputs, 3, stride), *_layer(outputs, outputs, norm=False)]
        shortcut = _layer(inputs, outputs, 1, stride) if stride > 1 else [nn.Identity()]
        return Residual(nn.Sequential(*body), nn.Sequential(*shortcut), FilterResponseNorm(outputs))

    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [part for a, b, stride in stages for part in (block(a, b, stride), block(b, b, 1))]
    return nn.Sequential(*_layer(3, 64), nn.MaxPool2d(3, 2, 1), *blocks, *_head(512, rate))


def cifar(network: Callable[[float], nn.Module]) -> Callable[[Path, int | None], Problem]:
    """CIFAR-10, as it is, of a folder with its files; outside are MNIST's test digits, where they
    are at hand."""

    def made(path: Path, rows: int | None) -> Problem:
        found = cifar10(path)
        mean, deviation = found.train_x.mean((0, 1, 2)), found.train_x.std((0, 1, 2))

        def prepared(x: Tensor) -> Tensor:
            return ((x - mean) / deviation).movedim(-1, 1).contiguous()

        x, y, test_x, test_y = (
            v[:rows] for v in (found.train_x, found.train_y, found.test_x, found.test_y)
        )
        digits = _digits()
        return Problem(
            network, prepared(x), y, prepared(test_x), test_y,
            None if digits is None else prepared(fidelity.in_colour(digits)[:rows]),
        )  # fmt: skip

    return made


def resnet20(rate: float) -> nn.Module:
    """ResNet-20 of ``lab.models``, whose posterior is known."""

    def layer(inputs: int, outputs: int, side: int, stride: int) -> list[nn.Module]:
        pad = [nn.ZeroPad2d((0, 1, 0, 1))] if stride > 1 and side > 1 else []
        around = 0 if stride > 1 else side // 2
        return [*pad, nn.Conv2d(inputs, outputs, side, stride, around), FilterResponseNorm(outputs)]

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        body = [*layer(inputs, outputs, 3, stride), nn.SiLU(), *layer(outputs, outputs, 3, 1)]
        shortcut = layer(inputs, outputs, 1, stride) if stride > 1 else [nn.Identity()]
        return Residual(nn.Sequential(*body), nn.Sequential(*shortcut), nn.SiLU())

    stages = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
    blocks = [block(*shape) for a, b, s in stages for shape in ((a, b, s), (b, b, 1), (b, b, 1))]
    return nn.Sequential(*layer(3, 16, 3, 1), nn.SiLU(), *blocks, *_head(64, rate))


def hmc(path: Path, rows: int | None) -> Problem:
    """CIFAR-10 and ResNet-20 as ``lab.fidelity`` has them, with HMC's predictions."""
    found = fidelity.cifar(path)
    x, test_x = (v.movedim(-1, 1).contiguous()[:rows] for v in (found.x, found.test_x))
    return Problem(
        resnet20, x, found.y[:rows], test_x, found.test_y[:rows], None, found.reference[:rows],
        fidelity.PRIOR_VARIANCE,
    )  # fmt: skip


def _digits() -> Tensor | None:
    """MNIST's test digits, where they are at hand."""
    try:
        return data.mnist(download=False).test_x
    except (OSError, ValueError, RuntimeError):
        return None


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
    "resnet7": cifar(resnet7),
    "resnet18": cifar(resnet18),
    "hmc": hmc,
    "shakespeare": shakespeare,
    "small": small,
    "table": table,
}
