"""Small networks, one for every situation that a layer may be put into."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Apply(nn.Module):
    """A function in a Sequential."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def pooled(*layers: nn.Module, features: int, channels_first: bool = True) -> nn.Module:
    """Layers, tanh, the mean over all positions, and a linear head with three outputs."""

    def mean(h: Tensor) -> Tensor:
        h = torch.tanh(h)
        return h.flatten(2).mean(2) if channels_first else h.reshape(len(h), -1, features).mean(1)

    return nn.Sequential(*layers, Apply(mean), nn.Linear(features, 3))


def scaled(module: nn.Module) -> nn.Module:
    """Gains and running statistics that are not all ones and zeros."""
    generator = torch.Generator().manual_seed(5)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = 0.5 + torch.rand(tensor.shape, generator=generator)
    return module


def thresholds(module: nn.Module) -> nn.Module:
    """Gains of both signs, and thresholds that some of the outputs are below."""
    generator = torch.Generator().manual_seed(6)
    for tensor in module.parameters():
        tensor.data = torch.randn(tensor.shape, generator=generator)
    return module


class PositionTable(nn.Module):
    """A parameter of a module's own, and one that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(0.1 * torch.randn(4, 3))
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x + self.position)) * self.gain


class LearnedPositions(nn.Module):
    """An embedding of 0, 1, 2, ...: its output is shared by all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        return self.head(torch.tanh(h).mean(1))


class TiedHead(nn.Module):
    """Embedding = output head; predicts something of every position."""

    def __init__(self, *, functional: bool = False) -> None:
        super().__init__()
        self.functional = functional
        self.embed = nn.Embedding(6, 4, padding_idx=2)
        self.mix = nn.Linear(4, 4)
        if not functional:
            self.head = nn.Linear(4, 6)
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.mix(self.embed(x)))
        h = h + h.mean(1, keepdim=True)
        logits = F.linear(h, self.embed.weight) if self.functional else self.head(h)
        return logits.mean(1)[:, :3]


class TiedLinear(nn.Module):
    """Decoder weight = encoder weight: one parameter, two layers, two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x)))


class Shared(nn.Module):
    """One submodule under two names, with a residual branch and in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.LayerNorm(4))
        self.first, self.head, self.second = nn.Linear(3, 4), nn.Linear(4, 3), block
        self.third = block

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.second(h)
        h = self.third(h).add_(h)
        return self.head(h.relu_())


class BatchSecond(nn.Module):
    """Works on (time, batch, feature) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x.transpose(0, 1))).mean(0)


class Folded(nn.Module):
    """Frames of a clip folded into the batch axis; in the other order, for ``inside_out``."""

    def __init__(self, *, inside_out: bool = False) -> None:
        super().__init__()
        self.inside_out = inside_out
        self.conv, self.norm = nn.Conv1d(2, 3, 3), nn.GroupNorm(1, 3)
        self.table, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, frames = x.shape[:2]
        x = x.transpose(0, 1) if self.inside_out else x
        h = torch.tanh(self.norm(self.conv(x.flatten(0, 1)))).mean(-1)
        h = torch.tanh(self.table(h))
        if self.inside_out:
            return self.head(h.unflatten(0, (frames, batch)).mean(0))
        return self.head(h.unflatten(0, (batch, frames)).mean(1))


class Scale(nn.Module):
    """A layer of somebody else's, without a rule, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor, *, sign: float = 1.0) -> Tensor:
        return sign * (self.weight * x + self.bias)


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = Scale(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.scale(x, sign=-1.0))
        return self.head(torch.tanh(self.scale(h)).mean(1))


class Doubled(nn.Linear):
    """A subclass that computes something else than its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[0].register_forward_hook(lambda m, a, output: 3 * output)
    model[2].register_forward_pre_hook(lambda m, a: (a[0] + 1,))
    return model


def patched() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.square(), self.bias)

    model[0].forward = types.MethodType(forward, model[0])
    return model


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.both = nn.Linear(3, 2), nn.Bilinear(2, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(torch.tanh(self.left(x)), x)


class Queries(nn.Module):
    """A linear map of a parameter: nothing in it depends on the sample."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.project = nn.Parameter(torch.randn(2, 3)), nn.Linear(3, 3)
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.project(self.query).T))


class Attend(nn.Module):
    """Self-attention, or attention to another sequence of another length and width."""

    def __init__(self, *, cross: bool = False, time_first: bool = False, **options: object) -> None:
        super().__init__()
        self.cross, self.time_first = cross, time_first
        self.attention = nn.MultiheadAttention(4, 2, batch_first=not time_first, **options)
        if cross:  # a bias of the keys would have no effect
            self.key = nn.Linear(4, options.get("kdim", 4), bias=False)
            self.value = nn.Linear(4, options.get("vdim", 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.time_first else x
        if self.cross:
            other = x[:2] if self.time_first else x[:, :2]
            key, value = self.key(other), self.value(other)
        else:
            key = value = x
        length = x.shape[0] if self.time_first else x.shape[1]
        hidden = torch.zeros(length, 2 if self.cross else length, dtype=torch.bool, device=x.device)
        hidden[0, 1] = True
        h, weights = self.attention(x, key, value, attn_mask=hidden)
        outputs = self.head(torch.tanh(h).mean(0 if self.time_first else 1))
        return outputs * weights.square().sum((1, 2))[:, None]


class Recurrent(nn.Module):
    """A recurrent layer; its output at all times and its last state are both used."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(features, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.layer.batch_first else x.transpose(0, 1)
        output, state = self.layer(x)
        h = state[0] if isinstance(state, tuple) else state
        c = state[1] if isinstance(state, tuple) else state
        mean = output.mean(1 if self.layer.batch_first else 0)
        return self.head(torch.tanh(mean)) * (h.sum((0, 2)) + c.square().sum((0, 2)))[:, None]


class Cells(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Block(nn.Module):
    """Causal attention by scaled_dot_product_attention, as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(4),
            nn.Linear(4, 12, bias=False),
            nn.Linear(4, 4),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return self.head(x[:, -1])


class Bags(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(6, 3, **options), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.bag(x)))


def encoder(**options: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.1, batch_first=True, **options)
    return pooled(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        features=4,
        channels_first=False,
    )


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = (
            nn.Embedding(5, 4),
            nn.TransformerDecoderLayer(4, 2, 5, batch_first=True),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        mask = nn.Transformer.generate_square_subsequent_mask(
            x.shape[1], dtype=h.dtype, device=x.device
        )
        return self.head(self.inner(h, h[:, :2], tgt_mask=mask, tgt_is_causal=True).mean(1))


class Menagerie(nn.Module):
    """One of every kind of layer, and of every way to per-sample gradients.

    Norms of a few numbers are ill-conditioned in float32, hence their large eps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=2)
        self.position = nn.Parameter(0.1 * torch.randn(3, 4))
        self.conv, self.group = nn.Conv1d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4, eps=0.1)
        self.up, self.batch = nn.ConvTranspose1d(4, 4, 2), scaled(nn.BatchNorm1d(4)).eval()
        self.attention, self.norm = nn.MultiheadAttention(4, 2), nn.LayerNorm(4, eps=0.1)
        self.instance = nn.InstanceNorm1d(4, affine=True, eps=0.1)
        self.gru, self.rms = (
            nn.GRU(4, 2, bidirectional=True, batch_first=True),
            nn.RMSNorm(4, eps=0.1),
        )
        self.bilinear, self.scale = nn.Bilinear(4, 4, 3), Scale()
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = (self.embed(x) + self.position).mT
        h = self.batch(torch.tanh(self.up(self.group(torch.tanh(self.conv(h))))))
        h = self.instance(torch.tanh(h)).mT
        t = self.norm(h).transpose(0, 1)
        h = h + self.attention(t, t, t, need_weights=False)[0].transpose(0, 1)
        h = self.rms(self.gru(h)[0])
        logits = self.scale(self.bilinear(h.mean(1), h[:, 0]))
        return logits + F.scaled_dot_product_attention(h, h, self.head(h)).mean(1)[:, :3]


class Compact(nn.Module):
    """A tied embedding, positions that all chains share, a convolution, a norm and a foreign
    layer: quick to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 3, padding_idx=2), nn.Linear(3, 6)
        self.head.weight = self.embed.weight
        self.position = nn.Embedding(3, 3)
        self.conv, self.norm, self.scale = nn.Conv1d(3, 3, 2), nn.LayerNorm(3), Scale()

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand_as(x)
        h = self.embed(x) + self.position(places)
        h = self.scale(self.norm(torch.tanh(self.conv(h.mT)).mT))
        return self.head(h).mean(1)[:, :3]
