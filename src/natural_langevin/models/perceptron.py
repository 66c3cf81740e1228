"""The paper's network: ReLU 784-400-400-10, and its initialisation N(0, 1/fan_in), zero biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from natural_langevin import random


def mlp(
    inputs: int = 784,
    outputs: int = 10,
    hidden: Sequence[int] = (400, 400),
    *,
    activation: type[nn.Module] = nn.ReLU,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Sequential:
    """A feedforward network ending in a linear layer; the defaults are the paper's.

    >>> sum(p.numel() for p in mlp().parameters())
    478410
    """
    sizes = [inputs, *hidden, outputs]
    layers: list[nn.Module] = []
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        layers.append(_empty_linear(fan_in, fan_out))
        if index < len(hidden):
            layers.append(activation())
            if dropout:
                layers.append(nn.Dropout(dropout))
    network = nn.Sequential(*layers)
    start = fan_in_init(
        dict(network.named_parameters()), chain=torch.zeros(1, dtype=torch.int64), seed=seed
    )
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(start[name][0])
    return network


def _empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer whose numbers are still to be written: the global generator is left alone. (torch's
    skip_init does the same, and loads its distributed tensors for it, which takes a second.)"""
    layer = nn.Linear(inputs, outputs, device="meta")
    layer.weight = nn.Parameter(torch.empty(outputs, inputs))
    layer.bias = nn.Parameter(torch.empty(outputs))
    return layer


def fan_in_init(params: dict[str, Tensor], *, chain: Tensor, seed: int) -> dict[str, Tensor]:
    """N(0, 1/fan_in) for tensors of two and more dimensions, zero for biases, for every chain.

    fan_in is the product of all dimensions but the first. Other one-dimensional tensors (the
    scales of normalisation layers) keep their values. Shapes (*shape) become (chain, *shape).
    """
    key = random.stream(random.origin(seed, random.INIT, chain), 0)
    sizes = [p.numel() for p in params.values()]
    draws = random.normal(key, sum(sizes)).split(sizes, dim=1)
    start = {}
    for (name, p), z in zip(params.items(), draws, strict=True):
        if p.ndim >= 2:
            scale = 1 / math.sqrt(math.prod(p.shape[1:]))
            start[name] = (z * scale).reshape(-1, *p.shape).to(p.dtype)
        elif name.rsplit(".", 1)[-1] == "bias":
            start[name] = torch.zeros(len(chain), *p.shape, dtype=p.dtype, device=p.device)
        else:
            start[name] = p.detach().expand(len(chain), *p.shape).clone()
    return start
