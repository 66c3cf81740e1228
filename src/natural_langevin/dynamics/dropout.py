"""The baselines' loss: cross-entropy of ReLU perceptrons, with or without dropped units.

Inverted dropout on every hidden layer: h / keep where u <= keep, otherwise 0. The uniforms u are
counter-based like every other draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import Params


@dataclass(frozen=True, eq=False)
class PerceptronLoss:
    """Mean cross-entropy of every network on its minibatch, with its own dropout masks."""

    rate: Tensor  # (network,): the dropout rate
    origin: Tensor | None = None  # (network,): where the mask streams start, None: no dropout

    def __call__(self, params: Params, batch: tuple[Tensor, Tensor], step: Tensor) -> Tensor:
        """The losses, (network,), on x (network, B, D) and y (network, B)."""
        x, y = batch
        masks = None
        if self.origin is not None:
            count = hidden_units(params) * x.shape[1]
            masks = random.uniform(random.stream(self.origin, step), count)
        logits = forward(params, x, self.rate, masks)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return losses.reshape(y.shape).mean(1)


def forward(params: Params, x: Tensor, rate: Tensor, masks: Tensor | None) -> Tensor:
    """Logits of all networks, (network, B, classes), for x of (network, B, D) or (B, D).

    ``rate`` (network,) is the dropout rate; ``masks`` are uniforms (network, all hidden units of
    the batch), or None for the deterministic network.
    """
    names, used = layers(params), 0
    h = x
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


def layers(params: Params) -> list[str]:
    """Names of the linear layers in their order, as ``nn.Sequential`` numbers them."""
    return sorted({name.rsplit(".", 1)[0] for name in params}, key=int)


def hidden_units(params: Params) -> int:
    """Units of all layers but the last."""
    return sum(params[f"{name}.bias"].shape[1] for name in layers(params)[:-1])
