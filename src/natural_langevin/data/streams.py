"""Batch streams: data in memory or a DataLoader -> one minibatch per step.

In-memory data gives every chain its own stream: chain c's epoch e is the random permutation
addressed by (seed, c, e), cut into whole batches (what is left over is dropped and reshuffled with
the rest). A batch is thus a pure function of (seed, chain, step): resuming needs no bookkeeping,
and adding chains never changes another chain's data. A DataLoader's batch is shared by all chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import random
from natural_langevin._internal.fingerprints import fingerprint

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subsets:
    """Data x (N, ...), y (N, ...) of which chain c sees the n rows ``rows[c]`` alone.

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


class InMemory:
    """Tensors x (N, ...) and y (N, ...) on the sampler's device.

    ``rows`` (chain, n): the rows that each chain sees; all of them where it is None."""

    chain_axis = True

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
    ) -> None:
        check_finite("x", x)
        check_finite("y", y)
        if len(x) != len(y):
            raise ValueError(f"x and y must have the same length, got {len(x)} and {len(y)}")
        if len(x) == 0:
            raise ValueError("the dataset is empty: give at least one sample")
        count = len(x) if rows is None else rows.shape[1]
        if not 1 <= batch_size <= count:
            raise ValueError(
                f"batch_size must be between 1 and the number of samples {count}, got {batch_size}"
            )
        self.x, self.y = x.to(device), y.to(device)
        self.rows = None if rows is None else rows.to(device)
        self.num_data, self.batch_size = count, batch_size
        self.batches_per_epoch = count // batch_size
        # A tensor: compiled code must not depend on how many data there are.
        self._batches = torch.tensor(self.batches_per_epoch, device=device)
        self._origin = random.origin(seed, random.DATA, chain.to(device))
        self._epoch, self._order = -1, torch.empty(0)

    @property
    def targets(self) -> Tensor:
        return self.y

    def example(self) -> Batch:
        """A batch without chain axis, for shapes and checks."""
        return self.x[: self.batch_size], self.y[: self.batch_size]

    def fingerprint(self) -> str:
        """SHA-256 of the data, to recognise them when a run is resumed."""
        own = {} if self.rows is None else {"rows": self.rows}
        return fingerprint({"x": self.x, "y": self.y} | own)

    def order(self, epoch: int) -> Tensor:
        """The chains' data in the order of this epoch: (chain, num_data)."""
        if epoch != self._epoch:
            order = random.permutation(random.stream(self._origin, epoch), self.num_data)
            self._order = order if self.rows is None else self.rows.gather(1, order)
            self._epoch = epoch
        return self._order

    def gather(self, order: Tensor, step: Tensor) -> Batch:
        """x (chain, B, ...) and y (chain, B, ...) of this step, given its epoch's ``order``.

        ``step`` stays on the device, so that a compiled or captured step can ask for its batch."""
        start = (step % self._batches) * self.batch_size
        index = order[:, start + torch.arange(self.batch_size, device=order.device)]
        if self.x is self.y:  # unsupervised: gather once
            y = self.y[index]
            return y, y
        return self.x[index], self.y[index]

    def batch(self, step: int) -> Batch:
        """The same, from the step's number alone."""
        order = self.order(step // self.batches_per_epoch)
        return self.gather(order, torch.tensor(step, device=order.device))


class Loader:
    """A DataLoader of (x, y) or of y alone, started again whenever it ends.

    ``check(x, y)``, where given, sees every batch on its way and may refuse it."""

    chain_axis = False

    def __init__(self, loader: DataLoader[Any], *, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._iterator: Iterator[Any] = iter(())
        self._first: Batch | None = None
        self.check: Callable[[Tensor, Tensor], None] | None = None
        self.num_data: int | None = _length_or_none(loader)

    @property
    def sampler(self) -> Any:
        """In which order the data come."""
        return self._loader.sampler

    @property
    def targets(self) -> Tensor:
        return self.example()[1]

    def example(self) -> Batch:
        if self._first is None:
            self._first = self._next()
        return self._first

    def fingerprint(self) -> None:
        """Unknown: the data are never all there."""

    def batch(self, step: int) -> Batch:
        if self._first is not None:  # hand out the batch that was peeked at
            first, self._first = self._first, None
            return first
        return self._next()

    def _next(self) -> Batch:
        item = next(self._iterator, None)
        if item is None:
            self._iterator = iter(self._loader)
            item = next(self._iterator, None)
            if item is None:
                raise ValueError("the DataLoader gave no batch: is its dataset empty?")
        x, y = split_pair(item)
        check_finite("x", x)
        check_finite("y", y)
        if len(x) != len(y):
            raise ValueError(f"x and y of a batch must have the same length: {len(x)}, {len(y)}")
        x_moved = x.to(self._device)
        y_moved = x_moved if y is x else y.to(self._device)
        if self.check is not None:
            self.check(x_moved, y_moved)
        return x_moved, y_moved


Stream = InMemory | Loader


def as_stream(
    data: Any, *, batch_size: int, chain: Tensor, seed: int, device: torch.device
) -> Stream:
    """Accepts (x, y), y alone, a TensorDataset, Subsets or a DataLoader."""
    if isinstance(data, DataLoader):
        return Loader(data, device=device)
    if isinstance(data, Subsets):
        return InMemory(
            data.x, data.y, batch_size=batch_size, chain=chain, seed=seed, device=device,
            rows=data.rows[chain.to(data.rows.device)].long(),
        )  # fmt: skip
    if isinstance(data, TensorDataset):
        data = data.tensors
    x, y = split_pair(data)
    return InMemory(x, y, batch_size=batch_size, chain=chain, seed=seed, device=device)


def split_pair(item: Any) -> tuple[Tensor, Tensor]:
    """(x, y); with y alone, (None, y) or (y,), the network sees y itself (unsupervised)."""
    if isinstance(item, Tensor):
        return item, item
    if isinstance(item, (tuple, list)):
        tensors = [part for part in item if part is not None]
        if len(tensors) in (1, 2) and all(isinstance(part, Tensor) for part in tensors):
            return tensors[0], tensors[-1]
    kind = type(item).__name__
    if isinstance(item, (tuple, list)):
        kind += f" of {[type(part).__name__ for part in item]}"
    raise TypeError(
        f"data must be a pair of tensors (x, y), a tensor y, a TensorDataset or a DataLoader of "
        f"those, got {kind}: use torch.as_tensor on arrays"
    )


def check_finite(name: str, value: Tensor) -> None:
    if value.is_floating_point() and not torch.isfinite(value).all():
        flat = torch.isfinite(value.reshape(len(value), -1)).all(1) if len(value) else value
        rows = (~flat).nonzero().flatten().tolist()
        raise ValueError(
            f"{name} holds NaN or infinite values in {len(rows)} of {len(value)} samples "
            f"(first: {rows[:5]}): remove or impute them"
        )


def _length_or_none(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return None
