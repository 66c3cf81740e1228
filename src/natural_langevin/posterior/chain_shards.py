"""Who holds which chains of a posterior: all of them this process, or several processes each some.

A posterior asks here for everything that concerns chains it may not hold. Chains are known by
their number in the run; those that a process holds are rows of its ``samples``, ``mean`` and
``last``, in the same order. ``distributed.holding`` answers for chains on several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from natural_langevin.posterior import storage
from natural_langevin.posterior.networks import Params
from natural_langevin.posterior.prediction import Averager


class Holding(Protocol):
    """What a posterior asks."""

    def rows(self, chains: Sequence[int]) -> list[int]:
        """Those of the chains that are here, as rows."""

    def here(self, values: Tensor) -> Tensor:
        """One value per chain -> those of the chains here."""

    def everywhere(self, rows: Tensor) -> Tensor:
        """One row per chain here -> one per chain."""

    def one(self, chain: int, params: Callable[[int], Params]) -> Params:
        """The parameters ``params(row)`` of one chain."""

    def mean(self, values: Tensor, chains: Sequence[int]) -> Tensor:
        """The mean over some chains of ``values``, one row per chain here."""

    def pool(self, averager: Averager, empty: Callable[[], Tensor]) -> None:
        """Completes an averager that has seen the networks here; ``empty()`` is none of them."""

    def check_whole(self, what: str) -> None:
        """Refuses ``what`` where it would need all parameters at one process."""

    def write(self, folder: Path, **parts: Any) -> None:
        """``storage.write`` of all chains."""


class AllHere:
    """One process holds all chains."""

    def rows(self, chains: Sequence[int]) -> list[int]:
        return list(chains)

    def here(self, values: Tensor) -> Tensor:
        return values

    def everywhere(self, rows: Tensor) -> Tensor:
        return rows

    def one(self, chain: int, params: Callable[[int], Params]) -> Params:
        return params(chain)

    def mean(self, values: Tensor, chains: Sequence[int]) -> Tensor:
        return values[list(chains)].mean(0)

    def pool(self, averager: Averager, empty: Callable[[], Tensor]) -> None:
        pass

    def check_whole(self, what: str) -> None:
        pass

    def write(self, folder: Path, **parts: Any) -> None:
        storage.write(folder, **parts)
