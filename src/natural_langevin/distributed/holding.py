"""A posterior whose chains are on several processes: each has its own, and answers for all.

Predictions, function values and single networks that were asked for travel; all parameters never
come together at one process. Every method of such a posterior is called by every process, in the
same order, and gives every process the same answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from natural_langevin.distributed import saving
from natural_langevin.distributed.place import Place
from natural_langevin.posterior.networks import Params
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.prediction import Averager

log = logging.getLogger("natural_langevin")


class Spread:
    """The ``Holding`` of a posterior of which this process has the chains ``place.own``."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def rows(self, chains: Sequence[int]) -> list[int]:
        own = self.place.own
        return [chain - own.start for chain in chains if chain in own]

    def here(self, values: Tensor) -> Tensor:
        return values[self.place.own.start : self.place.own.stop]

    def everywhere(self, rows: Tensor) -> Tensor:
        return self.place.gather_chains(rows)

    def one(self, chain: int, params: Callable[[int], Params]) -> Params:
        if chain < 0:
            chain += self.place.chains
        if not 0 <= chain < self.place.chains:
            raise IndexError(f"there are {self.place.chains} chains, got chain={chain}")
        own = self.place.own
        return self.place.from_owner(chain, params(chain - own.start if chain in own else 0))

    def mean(self, values: Tensor, chains: Sequence[int]) -> Tensor:
        total = values[self.rows(chains)].sum(0)
        return self.place.add_up(total) / len(chains)

    def pool(self, averager: Averager, empty: Callable[[], Tensor]) -> None:
        averager.add(empty())  # so that a process whose chains all diverged knows the shapes
        averager.pool(self.place.add_up, self.place.all_rows)

    def check_whole(self, what: str) -> None:
        if self.place.layout.chains > 1:
            raise ValueError(
                f"{what} needs the parameters of all chains in one process, and they are on "
                f"{self.place.layout.chains}: posterior.save(folder) on all, then "
                f"Posterior.load(folder, model).{what}(...) in a process of its own"
            )

    def write(self, folder: Path, **parts: Any) -> None:
        saving.write(self.place, folder, **parts)


def spread(posterior: Posterior, place: Place) -> Posterior:
    """The posterior of this process's chains becomes that of all chains.

    One number per chain (when it diverged, what its likelihood learned, its losses) goes to every
    process; ``samples``, ``mean`` and ``last`` stay where they are. Processes that share
    minibatches must have the same last iterates: they compare sums of them."""
    sums = torch.stack([v.double().flatten(1).sum(1) for v in posterior.last.values()]).nan_to_num()
    if not place.same_everywhere(sums):
        log.warning(
            "processes that share minibatches have different parameters by now: are their devices "
            "of different kinds? Use Layout(chains=...) to share minibatches between equal ones"
        )
    posterior.diverged = place.gather_chains(posterior.diverged)
    posterior.learned = {k: place.gather_chains(v) for k, v in posterior.learned.items()}
    steps, losses = posterior.trace[:, :1], posterior.trace[:, 1:].T.contiguous()
    posterior.trace = torch.cat([steps, place.gather_chains(losses).T], dim=1)
    posterior.holding = Spread(place)
    return posterior
