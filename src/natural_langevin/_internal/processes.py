"""The processes of a run as one of them sees them; here, a run of one process.

``distributed.ProcessMesh`` is the same for several processes that ``torchrun`` started. Whoever
works with chains (the run loop, a posterior, checkpoints) asks these and need not know which it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor


class Processes:
    """Process ``rank`` of ``world``, which has the chains ``own`` (their numbers) of ``chains``:
    this one has all of them. ``first``: whether it shows progress and does what is done once.
    ``writes``: whether it writes its chains, as one of those that share them does. ``data``: whom
    it shares minibatches with (``statistics.data_parallel``); None: nobody.

    All processes call the same methods in the same order."""

    rank, world, first, writes = 0, 1, True, True
    data: Any = None

    def __init__(self, chains: int) -> None:
        self.chains, self.own = chains, range(chains)

    @property
    def whole(self) -> bool:
        """Whether all chains are here."""
        return len(self.own) == self.chains

    def rows(self, chains: Sequence[int]) -> list[int]:
        """The rows, in tensors of the chains here, of those of ``chains`` that are here."""
        return [chain - self.own.start for chain in chains if chain in self.own]

    def here(self, values: Tensor) -> Tensor:
        """One value per chain -> those of the chains here."""
        return values[self.own.start : self.own.stop]

    def exchange(self, label: str, value: str = "") -> list[str]:
        """Every process's ``value``, a short text, by rank; also a barrier called ``label``."""
        return [value]

    def agree(self, label: str, settings: Mapping[str, Any]) -> None:
        """An error at every process unless all have the same settings."""

    def together(self, label: str) -> AbstractContextManager[None]:
        """A block that succeeds at all processes or fails at all: what one raises, all raise."""
        return contextlib.nullcontext()

    def waiting(self, label: str) -> AbstractContextManager[None]:
        """A block that may wait for other processes: the error names one that does not arrive."""
        return contextlib.nullcontext()

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is True at any process."""
        return list(flags)

    def gather_chains(self, values: Tensor) -> Tensor:
        """One row per own chain -> one row per chain."""
        return values

    def all_rows(self, values: Tensor) -> Tensor:
        """Everybody's rows, in the order of the chains, any number of them."""
        return values

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over the groups of chains."""
        return values

    def from_owner(self, chain: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """``values`` as the process that has ``chain`` has them; elsewhere their shapes count."""
        return values
