"""The layout: which chains a process advances, and with whom it shares their minibatches.

The processes of a run form a grid, ``chains`` x ``data``. A row of it holds some of the chains;
the processes of a row hold the same chains, and each takes a part of their minibatches. Rank r
stands in row r // data and column r % data, so that a row, which talks at every step, lies on one
node wherever it can.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from natural_langevin.distributed.group import Group, GroupError

NAMES = ("chains", "data")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """``chains`` groups of processes, each with chains of its own and ``data`` processes that
    share their minibatches. They need chains * data processes.

    >>> Layout(chains=2, data=4).processes
    8
    """

    chains: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        for name in NAMES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Layout {name} must be a positive integer, got {value!r}")

    @property
    def processes(self) -> int:
        """How many processes such a layout takes."""
        return self.chains * self.data


def automatic(processes: int, chains: int) -> Layout:
    """As many groups of chains as divide the processes evenly; the rest shares minibatches.

    Chains are independent, so spreading them costs nothing; sharing a minibatch costs an exchange
    at every step.

    >>> automatic(4, chains=6), automatic(4, chains=3)
    (Layout(chains=4, data=1), Layout(chains=2, data=2))
    """
    groups = max(k for k in range(1, processes + 1) if processes % k == 0 and k <= chains)
    return Layout(chains=groups, data=processes // groups)


def chosen(parallel: Any, group: Group, chains: int) -> Layout:
    """The argument ``parallel=`` as a layout of these processes and chains."""
    if isinstance(parallel, DeviceMesh):
        layout = of_mesh(parallel)
    else:
        layout = automatic(group.world, chains) if parallel == "auto" else parallel
    if layout.processes != group.world:
        raise GroupError(
            f"{layout} needs {layout.processes} processes and there are {group.world}: start the "
            f'script with torchrun --nproc-per-node {layout.processes}, or use parallel="auto"'
        )
    if layout.chains > chains:
        raise GroupError(
            f"{layout} has more groups than the {chains} chains: use "
            f"Layout(chains={chains}, data=...), or more chains"
        )
    return layout


def of_mesh(mesh: DeviceMesh) -> Layout:
    """A mesh of the user's: its axes are called "chains" and "data", or it has one of them."""
    names = mesh.mesh_dim_names or ()
    if not names or not set(names) <= set(NAMES):
        raise GroupError(
            f'the axes of the device mesh must be called "chains" and "data", got {names}: use '
            'init_device_mesh(..., mesh_dim_names=("chains", "data"))'
        )
    return Layout(**{name: mesh.size(axis) for axis, name in enumerate(names)})


def own_chains(chains: int, rows: int, row: int) -> range:
    """The chains of one row: consecutive, the first rows have one more where it does not divide.

    >>> [list(own_chains(5, 3, row)) for row in range(3)]
    [[0, 1], [2, 3], [4]]
    """
    each, more = divmod(chains, rows)
    start = row * each + min(row, more)
    return range(start, start + each + (row < more))


def mesh_of(layout: Layout, device: str) -> DeviceMesh:
    """Torch's own mesh of the processes; one for each layout, however many samplers use it."""
    return _mesh(layout, device, dist.group.WORLD)


@functools.lru_cache(maxsize=8)
def _mesh(layout: Layout, device: str, world: Any) -> DeviceMesh:
    return init_device_mesh(device, (layout.chains, layout.data), mesh_dim_names=NAMES)
