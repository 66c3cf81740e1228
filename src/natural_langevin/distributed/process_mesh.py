"""The process mesh: the chains of a process, and its communication with others.

Only small data are exchanged: a number per chain, predictions, single networks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from natural_langevin._internal.processes import Processes
from natural_langevin.distributed.group import Group, GroupError
from natural_langevin.distributed.join import join, launched
from natural_langevin.distributed.layout import Layout, chosen, mesh_of, own_chains
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.statistics import Part

log = logging.getLogger("natural_langevin")


class _Rank(logging.Filter):
    """``%(rank)s`` for a format of one's own; where nobody set up logging, the message says it."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = self.rank
        if not (log.handlers or logging.getLogger().handlers):
            record.msg = f"rank {self.rank}: {record.msg}"
        return True


def name_rank(rank: int) -> None:
    """Adds the rank to every log record from now on; calling it again changes nothing."""
    if not any(isinstance(one, _Rank) for one in log.filters):
        log.addFilter(_Rank(rank))


def find_processes(parallel: Any, *, chains: int, device: torch.device) -> Processes:
    """The processes of a run of ``chains`` chains; a single one unless several were launched.

    ``parallel``: "auto", None, a ``Layout``, or a device mesh with axes "chains" and "data"."""
    if parallel is None:
        return Processes(chains)
    if not (parallel == "auto" or isinstance(parallel, Layout | DeviceMesh)):
        raise ValueError(
            'parallel must be "auto", None, a distributed.Layout or a DeviceMesh, got '
            f"{parallel!r}: use Layout(chains=2, data=2), for example"
        )
    if not launched():
        if parallel != "auto":
            raise GroupError(
                f"{parallel} is for several processes: start the script with torchrun, or leave "
                "parallel= out"
            )
        return Processes(chains)
    group = join(device)
    if group.world > 1:
        name_rank(group.rank)
    group.agree("the layout", {"chains": chains, "parallel": str(parallel)})
    layout = chosen(parallel, group, chains)
    mesh = parallel if isinstance(parallel, DeviceMesh) else mesh_of(layout, device.type)
    return ProcessMesh(group, mesh, layout, chains, explicit=parallel != "auto")


class ProcessMesh(Processes):
    """``Processes`` that torchrun started. A row of the layout has chains of its own; the processes
    of a row share their minibatches."""

    def __init__(
        self, group: Group, mesh: DeviceMesh, layout: Layout, chains: int, *, explicit: bool = False
    ) -> None:
        self.layout, self.chains, self.device = layout, chains, group.device
        self.rank, self.world, self.first = group.rank, group.world, group.first
        self.exchange, self.agree = group.exchange, group.agree  # type: ignore[method-assign]
        self.together, self.waiting = group.together, group.waiting  # type: ignore[method-assign]
        names = mesh.mesh_dim_names or ()
        row = mesh.get_local_rank("chains") if "chains" in names else 0
        column = mesh.get_local_rank("data") if "data" in names else 0
        self.own = own_chains(chains, layout.chains, row)
        self._column_group = mesh.get_group("chains") if "chains" in names else None
        if "data" in names and (layout.data > 1 or (explicit and group.world == 1)):
            self.data = DataGroup(mesh.get_group("data"), rank=column, size=layout.data)
        self.writes = column == 0

    def any(self, flags: Sequence[bool]) -> list[bool]:
        found = torch.tensor(flags, dtype=torch.int32, device=self.device)
        with self.waiting("synchronising between steps"):
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in found.tolist()]

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Everybody's rows in the order of the chains: (own, ...) -> (all, ...).

        ``counts`` says how many each group of chains has, which may be none."""
        if self.layout.chains == 1:
            return rows
        shape = (max(counts), *rows.shape[1:])
        padded = torch.zeros(shape, dtype=rows.dtype, device=self.device)  # NCCL wants it there
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with self.waiting("gathering results of the chains"):
            dist.all_gather(parts, padded, group=self._column_group)
        cut = [part[:count] for part, count in zip(parts, counts, strict=True)]
        return torch.cat(cut).to(rows.device)

    def chain_counts(self) -> list[int]:
        """How many chains every group has."""
        rows = self.layout.chains
        return [len(own_chains(self.chains, rows, row)) for row in range(rows)]

    def gather_chains(self, values: Tensor) -> Tensor:
        return self.gather(values, self.chain_counts())

    def all_rows(self, values: Tensor) -> Tensor:
        count = torch.tensor([len(values)], device=self.device)
        counts = self.gather(count, [1] * self.layout.chains).tolist()
        return self.gather(values, counts)

    def add_up(self, values: Tensor) -> Tensor:
        if self.layout.chains == 1:
            return values
        total = values.to(self.device, copy=True)
        with self.waiting("summing results of the chains"):
            dist.all_reduce(total, group=self._column_group)
        return total.to(values.device)

    def same_everywhere(self, values: Tensor) -> bool:
        """Whether the processes that share minibatches have the same numbers."""
        if self.data is None:
            return True
        both = torch.stack([values, -values])
        with self.waiting("checking that the processes agree"):
            dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self.data.group)
        return bool((both[0] == -both[1]).all())

    def from_owner(self, chain: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.layout.chains == 1:
            return values
        (row,) = (
            r
            for r in range(self.layout.chains)
            if chain in own_chains(self.chains, self.layout.chains, r)
        )
        sent = {k: v.to(self.device, copy=True).contiguous() for k, v in values.items()}
        with self.waiting(f"sending a network of chain {chain}"):
            for value in sent.values():
                dist.broadcast(value, group=self._column_group, group_src=row)
        return {k: v.to(values[k].device) for k, v in sent.items()}


def shard_posterior(posterior: Posterior, mesh: ProcessMesh) -> Posterior:
    """The posterior of this process's chains becomes that of all chains.

    One number per chain (when it diverged, what its likelihood learned, its losses) goes to every
    process; ``samples``, ``mean`` and ``last`` stay where they are. Processes that share
    minibatches must have the same last iterates: they compare sums of them."""
    sums = torch.stack(
        [v.double().reshape(len(v), -1).sum(1) for v in posterior.last.values()]
    ).nan_to_num()
    if not mesh.same_everywhere(sums):
        log.warning(
            "processes that share minibatches now hold different parameters: are their devices "
            "of different types? Use Layout(chains=...), so that only equal devices share "
            "minibatches"
        )
    posterior.diverged = mesh.gather_chains(posterior.diverged)
    posterior.learned = {k: mesh.gather_chains(v) for k, v in posterior.learned.items()}
    steps, losses = posterior.trace[:, :1], posterior.trace[:, 1:].T.contiguous()
    posterior.trace = torch.cat([steps, mesh.gather_chains(losses).T], dim=1)
    posterior.processes = mesh
    return posterior


class DataGroup:
    """The processes that share minibatches, this one number ``rank`` of ``size``.

    Loss, gradient, second moments and bias rows travel in one flat buffer, whatever the number of
    layers. Gloo and NCCL both add each number up at one process and hand the sum to all, so every
    process goes on with the same bits. The functional form of the collective is what
    ``torch.compile`` can trace: eager or compiled, a step is the same function."""

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
        found: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            chosen = [index for index, leaf in enumerate(leaves) if leaf.dtype == dtype]
            flat = torch.cat([leaves[index].reshape(-1) for index in chosen])
            under_way = self._functional.all_reduce(flat, "sum", self.group)
            total = self._functional.wait_tensor(under_way)
            parts = total.split([leaves[index].numel() for index in chosen])
            for index, part in zip(chosen, parts, strict=True):
                found[index] = part.view(leaves[index].shape)
        return pytree.tree_unflatten([found[k] for k in range(len(leaves))], structure)
