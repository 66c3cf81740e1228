"""Rules: from a layer's inputs a and per-sample output gradients delta to Fisher statistics.

The statistics of a layer are means over samples n of products of its *per-sample* gradients
G_n = d loss_n / d parameter:

    second[p] = mean_n G_n[p]^2                     the diagonal J_ii
    cross[b][w] = mean_n G_n[b] G_n[w]              the bias row J_0i of the units with bias b

They do not depend on the batch size. A rule never builds the per-sample gradients when it need
not. A new layer is one new rule and one row in ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

#: Per-sample weight gradients are built in chunks of at most this many numbers.
CHUNK_NUMBERS = 1 << 24


class Call(NamedTuple):
    """One call of a layer: its input (B, ..., I) and its output's gradient (B, ..., O)."""

    input: Tensor
    delta: Tensor


class LayerStatistics(NamedTuple):
    """Statistics of one layer, keyed by the layer's own parameter names ("weight", "bias")."""

    second: dict[str, Tensor]
    cross: dict[str, dict[str, Tensor]]


class Rule(NamedTuple):
    """``units`` names the weights that belong to each bias; ``statistics`` computes the means."""

    units: Callable[[nn.Module], dict[str, tuple[str, ...]]]
    statistics: Callable[[nn.Module, Sequence[Call]], LayerStatistics]


def linear_units(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """A unit of a linear layer is one row of its weight and that row's bias."""
    return {"bias": ("weight",)} if module.bias is not None else {}


def linear_statistics(module: nn.Module, calls: Sequence[Call]) -> LayerStatistics:
    """Linear: G_n = sum_t delta_nt a_nt^T over positions t (of a sequence, or of several calls).

    One position per sample needs no G_n: J_ii = mean delta^2 a^2, J_0i = mean delta^2 a, and
    J_00 = mean delta^2. With [a^2, a] side by side the first two are one matrix product.
    """
    has_bias = module.bias is not None
    if len(calls) == 1 and calls[0].input.ndim == 2:
        a, delta = calls[0]
        d2 = delta.square()
        moments = torch.cat([a.square(), a], dim=1) if has_bias else a.square()
        products = d2.mT @ moments / a.shape[0]
        if not has_bias:
            return LayerStatistics({"weight": products}, {})
        weight, cross = products.split(a.shape[1], dim=1)
        return LayerStatistics({"weight": weight, "bias": d2.mean(0)}, {"bias": {"weight": cross}})
    return _linear_positions(calls, has_bias)


def _linear_positions(calls: Sequence[Call], has_bias: bool) -> LayerStatistics:
    """Exact statistics with several positions per sample: builds G_n, a chunk of n at a time."""
    a = torch.cat([_positions(call.input) for call in calls], dim=1)
    d = torch.cat([_positions(call.delta) for call in calls], dim=1)
    samples, outputs, inputs = a.shape[0], d.shape[-1], a.shape[-1]
    chunk = max(1, CHUNK_NUMBERS // (outputs * inputs))
    weight = cross = torch.zeros((), dtype=a.dtype, device=a.device)
    for start in range(0, samples, chunk):
        part = slice(start, start + chunk)
        gradient = d[part].mT @ a[part]
        weight = weight + gradient.square().sum(0)
        if has_bias:
            cross = cross + (gradient * d[part].sum(1)[..., None]).sum(0)
    if not has_bias:
        return LayerStatistics({"weight": weight / samples}, {})
    bias = d.sum(1).square().mean(0)
    second = {"weight": weight / samples, "bias": bias}
    return LayerStatistics(second, {"bias": {"weight": cross / samples}})


def _positions(value: Tensor) -> Tensor:
    """(B, ..., F) with all axes between sample and feature as one: (B, T, F)."""
    return value.reshape(value.shape[0], -1, value.shape[-1])


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(linear_units, linear_statistics),
}
