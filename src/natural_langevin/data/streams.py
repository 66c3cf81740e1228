"""Batch streams: data in memory or a DataLoader -> one minibatch per step.

In-memory data gives every chain its own stream: chain c's epoch e is the random permutation
addressed by (seed, c, e), cut into whole batches (what is left over is dropped and reshuffled with
the rest). A batch of all rows needs none: the rows come as they are. A batch is thus a pure
function of (seed, chain, step): resuming needs no bookkeeping, and adding chains never changes
another chain's data. For DataLoaders see ``loaders``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from natural_langevin import random
from natural_langevin._internal.chains import Batch
from natural_langevin._internal.fingerprints import fingerprint
from natural_langevin.data.checks import check_pair, split_pair
from natural_langevin.data.loaders import Loader, OwnOrders, SharedBatches, Split, stream_of


class InMemory:
    """Tensors x (N, ...) and y (N, ...) on the sampler's device.

    ``rows`` (chain, n): the rows that each chain sees; all of them where it is None. ``all_rows``:
    those of the whole run, where other processes have chains of it too."""

    chain_axis = True
    unknown = wrong = ""
    #: Whether epoch e is permutation number e of the chain's stream: other orders say False.
    shuffled = True

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        batch_size: int,
        chain: Tensor,
        seed: int,
        device: torch.device,
        rows: Tensor | None = None,
        all_rows: Tensor | None = None,
    ) -> None:
        check_pair(x, y)
        if len(x) == 0:
            raise ValueError("the dataset is empty: give at least one sample")
        count = len(x) if rows is None else rows.shape[1]
        if not 1 <= batch_size <= count:
            raise ValueError(
                f"batch_size must be between 1 and the number of samples {count}, got {batch_size}"
            )
        self.x, self.y = x.to(device), y.to(device)
        self.rows = None if rows is None else rows.to(device)
        self._all_rows = self.rows if all_rows is None else all_rows
        self.num_data, self.batch_size = count, batch_size
        self.batches_per_epoch = count // batch_size
        # A tensor: compiled code must not depend on how many data there are.
        self._batches = torch.tensor(self.batches_per_epoch, device=device)
        self.origin = random.origin(seed, random.DATA, chain.to(device))
        self._epoch, self._order = -1, torch.empty(0)

    @property
    def targets(self) -> Tensor:
        """All labels: (N, ...)."""
        return self.y

    def example(self) -> Batch:
        """A batch without chain axis, for shapes and checks."""
        return self.x[: self.batch_size], self.y[: self.batch_size]

    def fingerprint(self) -> str:
        """SHA-256 of the data, to recognise them when a run is resumed."""
        rows = {} if self._all_rows is None else {"rows": self._all_rows}
        return fingerprint({"x": self.x, "y": self.y} | rows)

    def drawn(self, epoch: Tensor | int) -> Tensor:
        """The chains' data in random order: (chain, num_data), or (chain, epoch, num_data) of
        several epochs (m,)."""
        origin = self.origin if isinstance(epoch, int) else self.origin[:, None]
        return self._own(random.permutation(random.stream(origin, epoch), self.num_data))

    def orders(self, epochs: Tensor | int) -> Tensor:
        """The chains' data in the order of these epochs, shaped as by ``drawn``."""
        if self.batch_size < self.num_data:
            return self.drawn(epochs)
        several = () if isinstance(epochs, int) else (len(epochs),)
        every = torch.arange(self.num_data, device=self.origin.device)
        return self._own(every.expand(len(self.origin), *several, -1))

    def order(self, epoch: int) -> Tensor:
        """The chains' data in the order of this epoch: (chain, num_data)."""
        if epoch != self._epoch:
            self._order, self._epoch = self.orders(epoch), epoch
        return self._order

    def _own(self, places: Tensor) -> Tensor:
        """The rows at these places of those that each chain sees."""
        if self.rows is None:
            return places
        rows = self.rows if places.ndim == self.rows.ndim else self.rows[:, None]
        return rows.expand_as(places).gather(-1, places)

    def gather(self, order: Tensor, step: Tensor | int) -> Batch:
        """x (chain, B, ...) and y (chain, B, ...) of this step, given its epoch's ``order``.

        A tensor stays on the device, so that a compiled or captured step can ask for its batch."""
        if isinstance(step, int):
            first = step % self.batches_per_epoch * self.batch_size
            index = order[:, first : first + self.batch_size]
        else:
            start = (step % self._batches) * self.batch_size
            index = order[:, start + torch.arange(self.batch_size, device=order.device)]
        if self.x is self.y:  # unsupervised: gather once
            y = self.y[index]
            return y, y
        return self.x[index], self.y[index]

    def parted(self, share: float, most: int, batch: int) -> tuple[InMemory, Tensor]:
        """The same data without a ``share`` of every chain's rows (at ``most`` so many), chosen at
        random, and the numbers of these: (chain, n). ``batch``: rows of a minibatch."""
        rows = self.drawn(-1)
        count = min(int(share * self.num_data), most)
        inside = InMemory(
            self.x, self.y, batch_size=min(batch, self.num_data - count),
            chain=torch.arange(len(rows)), seed=0, device=self.x.device, rows=rows[:, count:],
        )  # fmt: skip
        inside.origin = self.origin
        return inside, rows[:, :count]

    def of_chains(self, chains: Tensor) -> Self:
        """The same data for some of the chains, each in the order that it has here."""
        some = copy.copy(self)
        some.origin, some._epoch = self.origin[chains], -1
        some.rows = None if self.rows is None else self.rows[chains]
        return some

    def batch(self, step: int) -> Batch:
        """x and y of this step, (chain, B, ...), from its number alone."""
        order = self.order(step // self.batches_per_epoch)
        return self.gather(order, torch.tensor(step, device=order.device))


@dataclass(frozen=True)
class SymmetricSweeps:
    """Data x (N, ...), y (N, ...) whose minibatches come forwards and then backwards:
    ``sampler.sample(data.SymmetricSweeps(x, y), steps=..., batch_size=...)``.

        omega_1, ..., omega_m, omega_m, ..., omega_1

    and then another random partition of the data. The errors of a minibatch's gradient cancel over
    an epoch in any order. How they act on each other, eta^2 sum over pairs (i before j) of H_j g_i,
    depends on it; over a sweep and its mirror image every pair has come both ways (SMS-UBU, Paulin
    et al. 2024, arXiv 2410.19780). It costs nothing, and is for any dynamics.

    Every chain has its own orders. What is left over after whole minibatches is dropped for both
    sweeps. Fewest pairs are broken where ``steps`` is a multiple of two epochs."""

    x: Tensor
    y: Tensor


class SymmetricOrder(InMemory):
    """The stream of ``SymmetricSweeps``: epochs 2k and 2k + 1 are permutation k and its mirror."""

    shuffled = False

    def order(self, epoch: int) -> Tensor:
        """The chains' data in the order of this epoch: (chain, num_data)."""
        if epoch != self._epoch:
            sweep, backwards = divmod(epoch, 2)
            order = random.permutation(random.stream(self.origin, sweep), self.num_data)
            if backwards:
                used = self.batches_per_epoch * self.batch_size
                batches = order[:, :used].unflatten(1, (-1, self.batch_size))
                order = torch.cat([batches.flip(1).flatten(1), order[:, used:]], dim=1)
            self._order, self._epoch = order, epoch
        return self._order


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
    """Accepts (x, y), y alone, a Dataset, Subsets, SymmetricSweeps, a DataLoader or
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
    x, y = split(data)
    return InMemory(x, y, batch_size=batch_size, chain=chain, seed=seed, device=device)
