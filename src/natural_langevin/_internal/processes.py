"""The processes of a run as one of them sees them, and the run of one process.

``distributed.ProcessMesh`` is the same for several processes that ``torchrun`` started. Whoever
works with chains (the run loop, a posterior, checkpoints) asks these and need not know which it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor


class Processes(Protocol):
    """Process ``rank`` of ``world``, which has the chains ``own`` (their numbers) of ``chains``.

    All processes call the same methods in the same order."""

    rank: int
    world: int
    chains: int
    own: range
    #: Whom this process shares minibatches with (``statistics.data_parallel``); None: nobody.
    data: Any

    @property
    def first(self) -> bool:
        """Whether this is the process that shows progress and does what is done once."""

    @property
    def writes(self) -> bool:
        """Whether this process writes its chains: one of those that share them does."""

    def exchange(self, label: str, value: str = "") -> list[str]:
        """Every process's ``value``, a short text, by rank; also a barrier called ``label``."""

    def agree(self, label: str, settings: Mapping[str, Any]) -> None:
        """An error at every process unless all have the same settings."""

    def together(self, label: str) -> AbstractContextManager[None]:
        """A block that succeeds at all processes or fails at all: what one raises, all raise."""

    def waiting(self, label: str) -> AbstractContextManager[None]:
        """A block that may wait for other processes: the error names one that does not arrive."""

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is True at any process."""

    def gather_chains(self, values: Tensor) -> Tensor:
        """One row per own chain -> one row per chain."""

    def all_rows(self, values: Tensor) -> Tensor:
        """Everybody's rows, in the order of the chains, any number of them."""

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over the groups of chains."""

    def from_owner(self, chain: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """``values`` as the process that has ``chain`` has them; elsewhere their shapes count."""


class SingleProcess(Processes):
    """A run of one process, which has all ``chains``."""

    rank, world, first, writes, data = 0, 1, True, True, None

    def __init__(self, chains: int) -> None:
        self.chains, self.own = chains, range(chains)

    def exchange(self, label: str, value: str = "") -> list[str]:
        return [value]

    def agree(self, label: str, settings: Mapping[str, Any]) -> None:
        pass

    def together(self, label: str) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    waiting = together

    def any(self, flags: Sequence[bool]) -> list[bool]:
        return list(flags)

    def gather_chains(self, values: Tensor) -> Tensor:
        return values

    all_rows = add_up = gather_chains

    def from_owner(self, chain: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return values
