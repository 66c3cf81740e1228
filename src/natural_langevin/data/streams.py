"""Batch streams: data in memory or a DataLoader -> one minibatch per step.

In-memory data gives every chain its own stream: chain c's epoch e is the random permutation
addressed by (seed, c, e), cut into whole batches (what is left over is dropped and reshuffled with
the rest). A batch is thus a pure function of (seed, chain, step): resuming needs no bookkeeping,
and adding chains never changes another chain's data. For DataLoaders see ``loaders``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin._internal.chains import Batch
from natural_langevin.data.checks import check_pair, split_pair
from natural_langevin.data.loaders import Loader, OwnOrders, SharedBatches, Split, stream_of
from natural_langevin.data.memory import InMemory, SymmetricOrder, SymmetricSweeps

__all__ = [
    "Batch",
    "InMemory",
    "Loader",
    "OwnOrders",
    "SharedBatches",
    "Stream",
    "Subsets",
    "SymmetricSweeps",
    "as_stream",
    "check_pair",
    "split_pair",
]


@dataclass(frozen=True)
class Subsets:
    """Data x (N, ...), y (N, ...) of which chain c sees only the n rows ``rows[c]``.

    Cross-validation and bagging on the chain axis: the folds are the chains of one run, and a
    chain's posterior is that of its n data. ``rows``: (chain, n), integers."""

    x: Tensor
    y: Tensor
    rows: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x and y must have one length, got {len(self.x)} and {len(self.y)}")
        kind = f"{self.rows.dtype} of shape {tuple(self.rows.shape)}"
        if self.rows.dtype == torch.bool:
            raise ValueError(f"rows must be numbers of rows, got {kind}: use mask.nonzero()")
        if self.rows.ndim != 2 or self.rows.is_floating_point():
            raise ValueError(f"rows must be integers, (chain, n), got {kind}")
        if self.rows.numel() and not 0 <= int(self.rows.min()) <= int(self.rows.max()) < len(
            self.x
        ):
            raise ValueError(
                f"rows must be between 0 and {len(self.x) - 1}, got {int(self.rows.min())} to "
                f"{int(self.rows.max())}"
            )


Stream = InMemory | OwnOrders | Loader


def usual_batch(data: Any, *, most: float = 100) -> int:
    """The default number of rows of a minibatch: ``most``, or all if there are fewer.

    >>> usual_batch((torch.zeros(30, 2), torch.zeros(30))), usual_batch(torch.zeros(500, 2))
    (30, 100)
    """
    rows = data.rows[0] if isinstance(data, Subsets) else data
    rows = rows[-1] if isinstance(rows, tuple | list) and rows else rows
    return max(1, int(min(most, len(rows)))) if isinstance(rows, Tensor) else 100


def as_stream(
    data: Any,
    *,
    batch_size: int,
    chain: Tensor,
    seed: int,
    device: torch.device,
    split: Split = split_pair,
) -> Stream:
    """Accepts (x, y), y alone, a TensorDataset, Subsets, SymmetricSweeps, a DataLoader or
    SharedBatches; ``split`` makes (x, y) of a loader's batch, and of data in memory."""
    if isinstance(data, DataLoader | SharedBatches):
        return stream_of(data, chain=chain, seed=seed, device=device, split=split)
    if isinstance(data, Subsets):
        return InMemory(
            data.x, data.y, batch_size=batch_size, chain=chain, seed=seed, device=device,
            rows=data.rows[chain.to(data.rows.device)].long(), all_rows=data.rows,
        )  # fmt: skip
    if isinstance(data, SymmetricSweeps):
        return SymmetricOrder(
            data.x, data.y, batch_size=batch_size, chain=chain, seed=seed, device=device
        )
    if isinstance(data, TensorDataset):
        data = data.tensors
    x, y = split(data)
    return InMemory(x, y, batch_size=batch_size, chain=chain, seed=seed, device=device)
