"""Multi-head attention: four linear maps, of queries, keys and values and of the heads' outputs.

The first three are rows of one parameter, ``in_proj_weight``, or three of their own where keys and
values have other widths. A unit is one output of a projection with its bias; with separate weights
``in_proj_bias`` still is one parameter, so they have no bias row. The learned extra key and value
(``bias_k``, ``bias_v``) are parameters used directly. ``out_proj`` is a layer by itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin.statistics.rules.base import (
    Call,
    Outer,
    SampleGradient,
    Stacked,
    Sum,
    positions,
)
from natural_langevin.statistics.rules.rewritten import CallRecorder, RewrittenLayer, rewrites


@rewrites(nn.MultiheadAttention)
class MultiheadAttention(RewrittenLayer, nn.MultiheadAttention):
    """torch's attention from plain operations; the arguments mean the same."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint, which needs the mask as well
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True is a hint: give attn_mask as well")
        q, k, v = self._projections(query, key, value)
        batch, length, _ = q.shape
        heads = (batch, -1, self.num_heads, self.head_dim)
        q, k, v = (t.reshape(heads).transpose(1, 2) for t in (q, k, v))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        mask = self._mask(scores, attn_mask, key_padding_mask)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, self.embed_dim)
        unbatched = query.ndim == 2
        if unbatched:
            mixed = mixed[0]
        elif not self.batch_first:
            mixed = mixed.transpose(0, 1)
        if not need_weights:
            return self.out_proj(mixed), None
        shown = weights.mean(1) if average_attn_weights else weights
        return self.out_proj(mixed), shown[0] if unbatched else shown

    def _projections(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values after their linear maps: (B, T, E) each."""
        tap, same = CallRecorder(self), self._qkv_same_embed_dim
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if same else separate
        biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        found = []
        for a, weight, bias in zip((query, key, value), weights, biases, strict=True):
            projected = tap.add(a, F.linear(a, weight, bias))
            if query.ndim == 2:
                projected = projected[None]
            elif not self.batch_first:
                projected = projected.transpose(0, 1)
            found.append(projected)
        if self.bias_k is not None and self.bias_v is not None:
            for index, extra in ((1, self.bias_k), (2, self.bias_v)):
                row = tap.add(None, extra.expand(len(found[index]), -1, -1))
                found[index] = torch.cat([found[index], row], dim=1)
        tap.close()
        return found

    def _mask(
        self, scores: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """What is added to the scores (B, H, T, S); extra keys at the end are always seen."""
        total: Tensor | None = None
        batch, heads, length, keys = scores.shape
        if attn_mask is not None:
            attn_mask = _additive(attn_mask, scores)
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape(batch, heads, length, -1)
            total = F.pad(attn_mask, (0, keys - attn_mask.shape[-1]))
        if key_padding_mask is not None:
            padding = _additive(key_padding_mask, scores).reshape(batch, 1, 1, -1)
            padding = F.pad(padding, (0, keys - padding.shape[-1]))
            total = padding if total is None else total + padding
        return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)
    return mask.to(like.dtype)


def attention_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """Per-sample gradients of the projections of nn.MultiheadAttention."""
    deltas = [positions(d) for d in call.deltas]
    inputs = [positions(a) for a in call.inputs]
    outers = [
        Outer(a, d, (d.shape[-1], a.shape[-1])) for a, d in zip(inputs, deltas[:3], strict=True)
    ]
    found: dict[str, SampleGradient] = {
        "in_proj_weight": Stacked(tuple(outers)),
        "in_proj_bias": Stacked(tuple(Sum(d) for d in deltas[:3])),
    }
    if not module._qkv_same_embed_dim:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        found |= dict(zip(names, outers, strict=True))
    for name, d in zip(("bias_k", "bias_v"), deltas[3:], strict=False):
        found[name] = Sum(d[:, :, None, None])
    return found
