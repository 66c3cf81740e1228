"""Gradient accumulation: a minibatch in pieces, each with its sums, added up before dividing.

Means of pieces of n_1, n_2, ... samples are weighted by n_i / sum n, so that an uneven last piece
counts for what it is. The result is that of the whole minibatch up to the order of summation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def accumulated(means: Iterable[Any], sizes: list[int]) -> Any:
    """The weighted mean of trees of means, which are asked for one after the other."""
    total: Any = None
    for tree, size in zip(means, sizes, strict=True):
        weight = size / sum(sizes)
        share = pytree.tree_map(lambda mean, w=weight: mean * w, tree)
        total = share if total is None else pytree.tree_map(torch.add, total, share)
    return total


def joined(parts: list[Any]) -> Any:
    """Outputs of all pieces as those of one batch."""
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *parts)


def clipped(gradient: dict[str, Tensor], limit: float) -> dict[str, Tensor]:
    """One chain's gradient, scaled down to norm ``limit`` where it is longer."""
    norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
    scale = (limit / norm.clamp_min(1e-30)).clamp_max(1.0)
    return {name: g * scale for name, g in gradient.items()}
