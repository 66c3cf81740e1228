"""PReLU: y = x where x > 0, and w x elsewhere, with one slope w, or one for every channel.

G_n[w] = sum_t min(x_nt, 0) delta_nt over the positions t that share the slope. No unit has a bias,
so the metric is diagonal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin.statistics.rules.base import Call, SampleGradient, Sum
from natural_langevin.statistics.rules.rewritten import rewrites


def prelu_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """Channels are the second axis: (B, C, ...) -> (B, T, C)."""
    products = call.input.clamp_max(0) * call.delta
    return {"weight": Sum(products.reshape(len(products), len(module.weight), -1).mT)}


@rewrites(nn.PReLU)
class PReLU(nn.PReLU):
    """From plain operations: the gradient of torch's own fails in vmap over chains and samples."""

    def forward(self, input: Tensor) -> Tensor:
        after = (1,) * (input.ndim - 2)
        return torch.where(input > 0, input, self.weight.reshape(-1, *after) * input)
