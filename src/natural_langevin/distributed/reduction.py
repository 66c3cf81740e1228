"""Sharing a minibatch: sums over the processes of a row, in flat buffers.

Loss, gradient, second moments and bias rows travel together: one buffer per dtype, one all-reduce,
whatever the number of layers. Gloo and NCCL both add each number up at one process and hand the
sum to all, so every process goes on with the same bits. The functional form of the collective is
what ``torch.compile`` can trace: eager or compiled, a step is the same function.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.gradients import Part


class DataGroup:
    """The processes that share minibatches, this one number ``rank`` of ``size``."""

    def __init__(self, group: dist.ProcessGroup, *, rank: int, size: int) -> None:
        from torch.distributed import _functional_collectives as functional  # slow to import

        self.group, self.rank, self.size = group, rank, size
        self._functional = functional

    def part(self, total: int) -> Part:
        """Consecutive samples, as evenly as possible.

        >>> [DataGroup(None, rank=r, size=3).part(8)[:2] for r in range(3)]
        [(0, 2), (2, 5), (5, 8)]
        """
        start, stop = (total * r // self.size for r in (self.rank, self.rank + 1))
        return Part(start, stop, total)

    def add_up(self, tree: Any) -> Any:
        """Every process's tree of tensors added up; the same bits everywhere."""
        leaves, structure = pytree.tree_flatten(tree)
        sums: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            chosen = [index for index, leaf in enumerate(leaves) if leaf.dtype == dtype]
            flat = torch.cat([leaves[index].reshape(-1) for index in chosen])
            total = self._functional.wait_tensor(
                self._functional.all_reduce(flat, "sum", self.group)
            )
            parts = total.split([leaves[index].numel() for index in chosen])
            sums |= {
                index: part.view(leaves[index].shape)
                for index, part in zip(chosen, parts, strict=True)
            }
        return pytree.tree_unflatten([sums[index] for index in range(len(leaves))], structure)
