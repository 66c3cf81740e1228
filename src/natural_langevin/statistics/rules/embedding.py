"""Embeddings: y = W[index]. No unit has a bias, so the metric is diagonal.

G_n[v] = sum of delta_nt over the positions with token v: the same token twice in a sample adds up
before it is squared. Memory is that of the tokens and of the table, never tokens times table.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin.statistics.rules.base import Call, SampleGradient, Scatter
from natural_langevin.statistics.rules.rewritten import rewrites


def embedding_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """nn.Embedding: index (B, ...), delta (B, ..., D); the padding token has no gradient."""
    index = call.input.reshape(call.input.shape[0], -1)
    delta = call.delta.reshape(*index.shape, -1)
    if module.padding_idx is not None:
        delta = delta * (index != module.padding_idx)[..., None]
    return {"weight": Scatter(index, delta, tuple(module.weight.shape))}


@rewrites(nn.Embedding)
class Embedding(nn.Embedding):
    """The table's rows by ``gather``, whose gradient is a scatter_add. That of torch's own lookup
    is an index_put, which inductor silently miscompiles under vmap where chains share indices."""

    def forward(self, input: Tensor) -> Tensor:
        if self.max_norm is not None:  # of a frozen table: others are refused
            return super().forward(input)
        return _rows(self.weight, input, self.padding_idx)


def _rows(table: Tensor, index: Tensor, padding_idx: int | None) -> Tensor:
    """table[index]: (..., D). The padding token has no gradient."""
    width = table.shape[1]
    places = index.reshape(-1, 1).expand(-1, width).long()
    found = table.gather(0, places).reshape(*index.shape, width)
    if padding_idx is None:
        return found
    return torch.where((index == padding_idx)[..., None], found.detach(), found)


@rewrites(nn.EmbeddingBag)
class EmbeddingBag(nn.EmbeddingBag):
    """Bags of equal length, (B, T) indices; torch's own has no batching rule."""

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        if offsets is not None or input.ndim != 2:
            raise TypeError(
                "an EmbeddingBag with offsets cannot be vectorised over chains: give indices of "
                "shape (batch, bag), filled up with padding_idx"
            )
        found = _rows(self.weight, input, self.padding_idx)
        counted = torch.ones_like(input, dtype=torch.bool)
        if self.padding_idx is not None:
            counted = input != self.padding_idx
        if self.mode == "max":
            found = found.masked_fill(~counted[..., None], -math.inf).amax(1)
            return torch.where(counted.any(1, keepdim=True), found, 0.0)
        share = counted.to(found.dtype)
        if self.mode == "mean":
            share = share / share.sum(1, keepdim=True).clamp_min(1)
        elif per_sample_weights is not None:
            share = share * per_sample_weights
        return (share[..., None] * found).sum(1)
