"""Networks as people have them, with data to time their steps on: perceptrons by their widths, a
CNN, a transformer, an LSTM, ResNet-18 with GroupNorm, a GPT of 19 million weights.

The data are noise, with labels that follow from it: the time of a step does not depend on what the
numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import models

CLASSES, TOKENS, LENGTH, WIDTH = 10, 64, 32, 64
#: Of a regression's targets.
SIGMA = 0.5


class Residual(nn.Module):
    """Two convolutions with GroupNorm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(8, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.around(x))


def residual_network(widths: list[int], blocks: int, classes: int = 10) -> nn.Module:
    """``blocks`` residual blocks of every width; the first of each but the first halves pixels."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.GroupNorm(8, widths[0]), nn.ReLU(),
    ]  # fmt: skip
    before = widths[0]
    for index, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Residual(before, width, 2 if index and not block else 1))
            before = width
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    return nn.Sequential(*layers, *pool)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside a way around."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    """Tokens and places in, logits of the next token at every place out."""

    def __init__(self, depth: int, width: int, length: int, vocabulary: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, index: Tensor) -> Tensor:
        places = torch.arange(index.shape[1], device=index.device)
        return self.head(self.norm(self.blocks(self.tokens(index) + self.places(places))))


class LastOfLSTM(nn.Module):
    """Logits from an LSTM's last output."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, width, batch_first=True), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Tokens(nn.Module):
    """A small transformer that classifies sequences: embedding, two blocks, mean, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        # Positions for every sample: a layer's statistics are taken over the batch.
        place = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        h = self.embedding(x) + self.position(place)
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def convolutional() -> nn.Module:
    """28 x 28 images: two convolutions with pooling, one linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, CLASSES),
    )  # fmt: skip


#: By name.
BUILT: dict[str, Callable[[], nn.Module]] = {
    "cnn": convolutional,
    "transformer": Tokens,
    "lstm": lambda: LastOfLSTM(8, 32, CLASSES),
    "resnet18": lambda: residual_network([64, 128, 256, 512], 2, CLASSES),
    "gpt": lambda: GPT(6, 512, 128, 256, 8),
}


class Task(NamedTuple):
    """A network, the same weights every time, and rows to learn from; floating y: a regression."""

    build: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    batch_size: int

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The minibatch's mean log-loss, constants left out."""
        if y.is_floating_point():
            return F.mse_loss(outputs, y) / (2 * SIGMA**2)
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten()) * y[0].numel()


def task(name: str, *, rows: int, device: str, seed: int = 0) -> Task:
    """Of one of ``BUILT``, or of a perceptron by its widths, such as 784-400-400-10, with one
    output for a regression. ValueError: it is neither."""
    generator = torch.Generator().manual_seed(seed)
    widths, batch_size = name.split("-"), 100
    if name == "transformer":
        x = torch.randint(TOKENS, (rows, LENGTH), generator=generator)
        y = x.sum(1) % CLASSES
    elif name == "gpt":
        tokens = torch.randint(256, (rows, 129), generator=generator)
        x, y, batch_size = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), 32
    elif name in BUILT:
        shape = {"cnn": (1, 28, 28), "lstm": (16, 8), "resnet18": (3, 32, 32)}[name]
        x = torch.randn(rows, *shape, generator=generator)
        y = x.flatten(1).sum(1).abs().long() % CLASSES
    elif len(widths) > 1 and all(width.isdecimal() and int(width) for width in widths):
        inputs, outputs = int(widths[0]), int(widths[-1])
        x = torch.rand(rows, inputs, generator=generator)
        signal = (x - 0.5) @ torch.randn(inputs, outputs, generator=generator)
        noise = SIGMA * torch.randn(signal.shape, generator=generator)
        y = signal + noise if outputs == 1 else signal.argmax(1)
    else:
        raise ValueError(
            f"--network needs widths such as 784-400-400-10, or {', '.join(BUILT)}, got {name!r}"
        )

    def build() -> nn.Module:
        if name not in BUILT:
            inputs, *hidden, outputs = map(int, widths)
            return models.mlp(inputs, outputs, hidden, seed=seed).to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return BUILT[name]().to(device)

    return Task(build, x.to(device), y.to(device), batch_size)
