"""Sharing a minibatch: sums over the processes of a row, in flat buffers.

Loss and gradient travel in one flat buffer, which is under way while the statistics are computed;
second moments and bias rows in a second one, whatever the number of layers. Gloo and NCCL both add
each number up at one process and hand the sum to all, so every process goes on with the same bits.
The functional form of the collective is what ``torch.compile`` can trace: eager or compiled, a step
is the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.statistics import Part


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
        return self.start(tree)()

    def start(self, tree: Any) -> Callable[[], Any]:
        """The same, under way while something else is computed; to be asked for afterwards."""
        leaves, structure = pytree.tree_flatten(tree)
        sums: list[tuple[list[int], Tensor]] = []
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            chosen = [index for index, leaf in enumerate(leaves) if leaf.dtype == dtype]
            flat = torch.cat([leaves[index].reshape(-1) for index in chosen])
            sums.append((chosen, self._functional.all_reduce(flat, "sum", self.group)))

        def finish() -> Any:
            found: dict[int, Tensor] = {}
            for chosen, under_way in sums:
                total = self._functional.wait_tensor(under_way)
                parts = total.split([leaves[index].numel() for index in chosen])
                for index, part in zip(chosen, parts, strict=True):
                    found[index] = part.view(leaves[index].shape)
            return pytree.tree_unflatten([found[k] for k in range(len(leaves))], structure)

        return finish
