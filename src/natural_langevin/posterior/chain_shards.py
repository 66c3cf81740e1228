"""Chain shards: the chains of a posterior in this process, and access to the others.

Chains are known by their number in the run; those that a process holds are rows of its ``samples``,
``mean`` and ``last``, in the same order. With several processes every method is called by all of
them, in the same order, and gives all the same answer: predictions, function values and single
networks are exchanged; one process never holds all parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin._internal.processes import Processes
from natural_langevin._internal.whole_numbers import whole_number
from natural_langevin.posterior.prediction import Averager


class ChainShards:
    """The chains ``processes.own`` here, the rest at other processes, if any."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    @property
    def whole(self) -> bool:
        """Whether all chains are here."""
        return len(self.processes.own) == self.processes.chains

    def rows(self, chains: Sequence[int]) -> list[int]:
        """The rows, in tensors of the chains here, of those of ``chains`` that are here."""
        own = self.processes.own
        return [chain - own.start for chain in chains if chain in own]

    def here(self, values: Tensor) -> Tensor:
        """One value per chain -> those of the chains here."""
        return values[self.processes.own.start : self.processes.own.stop]

    def everywhere(self, rows: Tensor) -> Tensor:
        """One row per chain here -> one per chain."""
        return self.processes.gather_chains(rows)

    def one(self, chain: int, params: Callable[[int], Params]) -> Params:
        """The parameters ``params(row)`` of one chain."""
        own, chains, chain = self.processes.own, self.processes.chains, whole_number("chain", chain)
        if not -chains <= chain < chains:
            raise IndexError(f"there are {chains} chains, got chain={chain}")
        chain %= chains
        row = chain - own.start if chain in own else 0
        return self.processes.from_owner(chain, params(row))

    def mean(self, values: Tensor, chains: Sequence[int]) -> Tensor:
        """The mean over some chains of ``values``, one row per chain here."""
        return self.processes.add_up(values[self.rows(chains)].sum(0)) / len(chains)

    def pool(self, averager: Averager, empty: Callable[[], Tensor]) -> None:
        """Completes an averager that has seen the networks here; ``empty()`` is none of them."""
        if not self.whole:
            averager.add(empty())  # so that a process whose chains all diverged knows the shapes
            averager.pool(self.processes.add_up, self.processes.all_rows)

    def check_whole(self, what: str) -> None:
        """Refuses ``what`` where it would need all parameters at one process."""
        if not self.whole:
            raise ValueError(
                f"{what} needs the parameters of all chains in one process, and they are on "
                "several: posterior.save(folder) on all, then Posterior.load(folder, "
                f"model).{what}(...) in a single process"
            )
