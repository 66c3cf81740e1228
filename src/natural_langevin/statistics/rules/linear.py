"""Linear maps: y = W a + b. A unit is one row of W with its bias.

G_n[W] = sum_t delta_nt a_nt^T and G_n[b] = sum_t delta_nt over the positions t of a sample, which
are all axes between the batch and the features (one position in an ordinary dense layer).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from natural_langevin.statistics.rules.base import Call, Outer, SampleGradient, Sum, positions
from natural_langevin.statistics.rules.rewritten import rewrites


def linear_gradients(module: nn.Module, call: Call) -> dict[str, SampleGradient]:
    """nn.Linear: a (B, ..., I) and delta (B, ..., O)."""
    shape = (call.delta.shape[-1], call.input.shape[-1])
    return affine(positions(call.input), positions(call.delta), shape)


def affine(a: Tensor, delta: Tensor, shape: tuple[int, ...]) -> dict[str, SampleGradient]:
    """The weight and the bias of one affine map, for a (B, T, I) and delta (B, T, O)."""
    return {"weight": Outer(a, delta, shape), "bias": Sum(delta)}


def bilinear_gradients(module: nn.Module, call: Call) -> dict[str, SampleGradient]:
    """nn.Bilinear: y_o = x1^T W_o x2 + b_o is linear in the products of its two inputs."""
    x1, x2 = (positions(x) for x in call.inputs)
    delta = positions(call.delta)
    products = (x1[..., :, None] * x2[..., None, :]).flatten(2)
    return affine(products, delta, (delta.shape[-1], x1.shape[-1], x2.shape[-1]))


@rewrites(nn.Bilinear)
class Bilinear(nn.Bilinear):
    """torch's own has no batching rule."""

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        products = torch.einsum("...i,oij,...j->...o", input1, self.weight, input2)
        return products if self.bias is None else products + self.bias
