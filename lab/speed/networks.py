"""Networks as people have them: residual convolutions with GroupNorm, a GPT, an LSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
