"""MC-dropout, the table's baseline beyond the paper: masks drawn at test time too."""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin.dynamics.dropout import forward, hidden_units
from natural_langevin.types import Params


def mc_dropout(params: Params, x: Tensor, rate: Tensor, origin: Tensor, samples: int) -> Tensor:
    """Probabilities averaged over dropout masks drawn at test time: (network, n, classes)."""
    total = torch.zeros(())
    for sample in range(samples):
        parts = []
        for index, part in enumerate(x.split(2000)):
            key = random.stream(origin, sample * 10_000 + index)
            masks = random.uniform(key, hidden_units(params) * len(part))
            parts.append(forward(params, part, rate, masks).softmax(-1))
        total = torch.cat(parts, dim=1) / samples + total.to(x.device)
    return total
