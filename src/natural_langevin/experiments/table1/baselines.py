"""The table's baselines: SGD and Dropout, many networks at once (one per chain).

Plain minibatch gradient descent on the mean loss, the step size halved like the samplers'. The
dropout masks are counter-based like every other draw. Inverted dropout on every hidden layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from natural_langevin import random
from natural_langevin.dynamics.descent import Loss
from natural_langevin.types import Params


def forward(params: Params, x: Tensor, rate: Tensor, masks: Tensor | None) -> Tensor:
    """Logits of all networks, (network, B, classes), for x of (network, B, D) or (B, D).

    ``rate`` (network,) is the dropout rate; ``masks`` are uniforms (network, all hidden units of
    the batch), or None for the deterministic network.
    """
    names = sorted({name.rsplit(".", 1)[0] for name in params}, key=int)
    h, used = x, 0
    for index, name in enumerate(names):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        h = h @ weight.mT + bias[:, None]
        if index < len(names) - 1:
            h = F.relu(h)
            if masks is not None:
                size = h.shape[1] * h.shape[2]
                u = masks[:, used : used + size].reshape(h.shape)
                keep = 1 - rate[:, None, None]
                h = torch.where(u <= keep, h / keep, 0.0)
                used += size
    return h


def mean_loss(rate: Tensor, origin: Tensor | None) -> Loss:
    """Cross-entropy of every network on its minibatch, with dropout masks of its own.

    ``rate`` (network,) is the dropout rate; ``origin`` (network,) where the mask streams start,
    None: no dropout."""

    def loss(params: Params, batch: tuple[Tensor, Tensor], step: Tensor) -> Tensor:
        x, y = batch
        masks = None
        if origin is not None:
            count = hidden_units(params) * x.shape[1]
            masks = random.uniform(random.stream(origin, step), count)
        logits = forward(params, x, rate, masks)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return losses.reshape(y.shape).mean(1)

    return loss


def hidden_units(params: Params) -> int:
    """Units of all hidden layers: every layer but the last."""
    return (
        sum(p.shape[1] for name, p in params.items() if name.endswith("weight"))
        - ([p for name, p in params.items() if name.endswith("weight")][-1].shape[1])
    )


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
