"""DataLoaders as batch streams: every chain in its own order, or one batch for all.

A batch that all chains share drives them by the same minibatch noise: their draws are correlated,
and C chains say less than C independent ones. So where the dataset can be indexed and the loader
has one of torch's own samplers, the rows that the sampler hands out are shuffled anew for every
chain by (seed, chain, epoch), as with data in memory; the loader's dataset, ``collate_fn`` and
workers read them. That is one batch per chain and step to read. ``SharedBatches(loader)`` asks for
the loader's own batches instead; iterable datasets and custom samplers always give those.

The data of an epoch are found from the loader's samplers, without reading any. The posterior is
that of N data which count alike. A minibatch's mean gradient stands for all of them if every datum
comes equally often, in batches of one size (or in a fresh random order). What the samplers do is
looked up where torch's own are used, and counted along two epochs otherwise; ``len(dataset)`` alone
would be wrong for a sampler that sees a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from natural_langevin import random
from natural_langevin._internal.chains import Batch
from natural_langevin.data.checks import check_pair, split_pair

NO_BATCH = "the DataLoader gave no batch: is its dataset smaller than one (drop_last), or empty?"


class Epoch(NamedTuple):
    """``num_data``: N, or None where it cannot be told, and then ``why``.

    ``rows``: the indices that count as the data, where any order of them will do; ``wrong``: why a
    batch that the loader itself makes does not stand for the data, whatever N is."""

    num_data: int | None
    rows: Tensor | None = None
    why: str = ""
    wrong: str = ""


def of_loader(loader: DataLoader[Any]) -> Epoch:
    """What the samplers of ``loader`` say."""
    if isinstance(loader.dataset, IterableDataset):
        count = _length_or_none(loader.dataset)
        return Epoch(count, why="this DataLoader's dataset has no length")
    batches = loader.batch_sampler
    if batches is None:
        return Epoch(
            None, why="this DataLoader has batch_size=None, so its dataset counts batches, not data"
        )
    if type(batches) is not BatchSampler:
        return _counted(batches, type(batches).__name__)
    return _with_sampler(batches)


def _with_sampler(batches: BatchSampler) -> Epoch:
    sampler: Any = batches.sampler
    kind = type(sampler)
    if kind is RandomSampler:  # with replacement or in part: every datum comes equally often
        count = len(sampler.data_source)
        return Epoch(count, torch.arange(count))
    if kind is SubsetRandomSampler:
        rows = torch.as_tensor(sampler.indices).long()
        return Epoch(len(rows), rows)
    if kind is SequentialSampler:
        count, over = len(sampler.data_source), len(sampler.data_source) % batches.batch_size
        wrong = "" if not over or count < batches.batch_size else _short(batches, count, over)
        return Epoch(count, torch.arange(count), wrong=wrong)
    if kind is WeightedRandomSampler:
        return Epoch(
            None,
            wrong="the DataLoader has a WeightedRandomSampler: datum n then counts N w_n / sum w "
            "times, which is another posterior",
        )
    if isinstance(sampler, DistributedSampler):
        return Epoch(
            None, wrong="the DataLoader has a DistributedSampler, which gives this process a part"
        )
    return _counted(sampler, kind.__name__, batches)


def _short(batches: BatchSampler, count: int, over: int) -> str:
    if batches.drop_last:
        return (
            f"the last {over} of {count} data are never used (drop_last=True without shuffle=True)"
        )
    return (
        f"the last batch of every epoch holds the same {over} data, each of which then counts "
        f"{batches.batch_size / over:.3g} times as much as the others: use shuffle=True"
    )


def _counted(sampler: Iterable[Any], name: str, batches: BatchSampler | None = None) -> Epoch:
    """What a loader yields, counted by going through two epochs of its indices."""
    with _generators_kept(sampler):
        first, second = list(sampler), list(sampler)
    sizes = {len(batch) for batch in first} if batches is None else set()
    if batches is None:
        first, second = _flat(first), _flat(second)
    if len(set(first)) < len(first):
        times = len(first) / len(set(first))
        return Epoch(None, why=f"the DataLoader's {name} gives data {times:.3g} times per epoch")
    if set(first) != set(second):
        return Epoch(None, why=f"the DataLoader's {name} gives different data in every epoch")
    wrong = ""
    if len(sizes) > 1:
        wrong = (
            f"the batches of the DataLoader's {name} hold {min(sizes)} to {max(sizes)} data but "
            "have equal weight, so data in small batches count more"
        )
    over = 0 if batches is None else len(first) % batches.batch_size
    if batches is not None and over and first == second:
        wrong = _short(batches, len(first), over)
    return Epoch(len(first), wrong=wrong)


def _flat(batches: list[list[int]]) -> list[int]:
    return [int(row) for batch in batches for row in batch]


@contextmanager
def _generators_kept(sampler: Iterable[Any]) -> Iterator[None]:
    """Counting draws from the generators that the loader will draw from: put them back."""
    own = [getattr(s, "generator", None) for s in (sampler, getattr(sampler, "sampler", None))]
    kept = [(g, g.get_state()) for g in own if isinstance(g, torch.Generator)]
    with torch.random.fork_rng(devices=[]):
        yield
    for generator, state in kept:
        generator.set_state(state)


def _length_or_none(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


#: What a loader yields -> (x, y).
Split = Callable[[Any], Batch]


@dataclass(frozen=True)
class SharedBatches:
    """A DataLoader whose batches, in its own order, go to all chains at once.

    Cheaper where reading is slow, and only right for the chains one by one: their draws share the
    minibatch noise. ``posterior.diagnose`` says so and corrects the effective sample size."""

    loader: DataLoader[Any]


def rows_of_batch(data: object) -> int | None:
    """Rows of the batches that a loader makes; None for other data, and where it does not say."""
    loader = data.loader if isinstance(data, SharedBatches) else data
    if not isinstance(loader, DataLoader):
        return None
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if size is None:
        return None
    return max(1, min(int(size), _length_or_none(loader.dataset) or int(size)))


class _LoaderStream:
    """What both streams below share. ``check(x, y)``, where given, sees every batch on its way and
    may refuse it; ``split`` makes (x, y) of what the loader yields."""

    def __init__(self, loader: DataLoader[Any], *, device: torch.device, split: Split) -> None:
        self._loader, self._device, self._split = loader, device, split
        self.check: Callable[[Tensor, Tensor], None] | None = None

    @property
    def sampler(self) -> Any:
        """The sampler of the user's loader: in which order its data come."""
        return self._loader.sampler

    @property
    def targets(self) -> Tensor:
        """The labels that can be checked beforehand: the first batch's."""
        return self.example()[1]

    def example(self) -> Batch:
        """A batch without chain axis, for shapes and checks."""
        raise NotImplementedError

    def fingerprint(self) -> None:
        """Unknown: the data are never all there."""

    def _pair(self, item: Any) -> Batch:
        """A loader's item as a checked pair (x, y) on the device."""
        x, y = self._split(item)
        check_pair(x, y)
        if not len(x):
            raise ValueError("the DataLoader gave an empty batch: remove it")
        moved = x.to(self._device)
        return moved, moved if y is x else y.to(self._device)


class Loader(_LoaderStream):
    """A DataLoader of (x, y) or of y alone, started again whenever it ends.

    ``num_data`` is N as far as it can be told, otherwise ``unknown`` says why; ``wrong`` is why its
    batches do not stand for the data. ``expected``: set it to the N that was inferred, and an epoch
    that yields another number of rows is refused."""

    chain_axis = False

    def __init__(
        self, loader: DataLoader[Any], *, device: torch.device, split: Split = split_pair
    ) -> None:
        super().__init__(loader, device=device, split=split)
        self._iterator: Iterator[Any] = iter(())
        self._first: Batch | None = None
        self._rows, self._largest = 0, 0
        self.expected: float | None = None
        epoch = of_loader(loader)
        self.num_data, self.unknown, self.wrong = epoch.num_data, epoch.why, epoch.wrong

    def example(self) -> Batch:
        """The first batch, which ``batch`` hands out later."""
        if self._first is None:
            self._first = self._next()
        return self._first

    def batch(self, step: int) -> Batch:
        """The next batch, for all chains; the loader's own order, so ``step`` is not used."""
        if self._first is not None:  # hand out the batch that was peeked at
            first, self._first = self._first, None
            return first
        return self._next()

    def _next(self) -> Batch:
        item = next(self._iterator, None)
        if item is None:
            self._check_count()
            self._iterator = iter(self._loader)
            item = next(self._iterator, None)
            if item is None:
                raise ValueError(NO_BATCH)
        x, y = self._pair(item)
        self._rows, self._largest = self._rows + len(x), max(self._largest, len(x))
        if self.check is not None:
            self.check(x, y)
        return x, y

    def _check_count(self) -> None:
        """At the end of an epoch: did as many data come as N says? A last batch may be dropped."""
        short = self.expected is not None and self._rows < self.expected - self._largest
        if self._rows and self.expected and (self._rows > self.expected or short):
            raise ValueError(
                f"N was taken as {self.expected:g}, but an epoch of the DataLoader gave "
                f"{self._rows} rows (does every worker read the whole dataset, or collate_fn drop "
                "or repeat rows?): give Langevin(..., num_data=N)"
            )
        self._rows = 0


class OwnOrders(_LoaderStream):
    """The rows of an indexable dataset, in a separate order for every chain.

    Batches are (chain, B, ...) and a pure function of (seed, chain, step), as in memory: chain c's
    epoch e is the permutation of ``rows`` addressed by (seed, c, e), cut into whole batches."""

    chain_axis = True

    def __init__(
        self,
        loader: DataLoader[Any],
        rows: Tensor,
        *,
        chain: Tensor,
        seed: int,
        device: torch.device,
        split: Split = split_pair,
    ) -> None:
        if not len(rows):
            raise ValueError(NO_BATCH)
        super().__init__(loader, device=device, split=split)
        self.chains = len(chain)
        self.rows, self.num_data = rows, len(rows)
        self.batch_size = min(int(loader.batch_sampler.batch_size), len(rows))  # type: ignore[union-attr]
        self.batches_per_epoch = len(rows) // self.batch_size
        self._origin = random.origin(seed, random.DATA, chain.cpu())
        self._epoch, self._order = -1, torch.empty(0)
        self._iterator: Iterator[Any] | None = None
        self._step = -1
        self._example: Batch | None = None
        self.unknown = self.wrong = ""

    def example(self) -> Batch:
        """The first rows of the dataset, without chain axis, for shapes and checks."""
        if self._example is None:
            indices = self.rows[: self.batch_size].tolist()
            item = next(self._read([indices], 0, workers=False))
            self._example = self._pair(item)
        return self._example

    def whole(self) -> bool:
        """Whether ``collate_fn`` gives one row per sample, so that chains can be told apart."""
        return len(self.example()[0]) == self.batch_size

    def indices(self, step: int) -> Tensor:
        """The rows of every chain's minibatch: (chain, B)."""
        epoch, place = divmod(step, self.batches_per_epoch)
        if epoch != self._epoch:
            order = random.permutation(random.stream(self._origin, epoch), self.num_data)
            self._epoch, self._order = epoch, self.rows[order]
        return self._order[:, place * self.batch_size : (place + 1) * self.batch_size]

    def batch(self, step: int) -> Batch:
        """x and y of this step, (chain, B, ...): every chain's own rows."""
        if self._iterator is None or step != self._step:
            self._iterator = self._read(_From(self, step), step)
        x, y = self._pair(next(self._iterator))
        self._step = step + 1
        if len(x) != self.chains * self.batch_size:
            raise ValueError(
                f"collate_fn made {len(x)} rows of {self.chains * self.batch_size} samples: chains "
                "need one row per sample, or share batches with data.SharedBatches(loader)"
            )
        if self.check is not None:
            self.check(x, y)
        split = x.unflatten(0, (self.chains, -1))
        return split, split if y is x else y.unflatten(0, (self.chains, -1))

    def _read(self, batches: Any, step: int, *, workers: bool = True) -> Iterator[Any]:
        """Collated samples of every list of indices, from ``step`` on, by the loader's own means.

        Torch seeds workers from its global generator, unless there is another one."""
        old = self._loader
        dataset = old.dataset
        if isinstance(dataset, TensorDataset) and old.collate_fn is default_collate:
            for indices in batches:
                yield [t[indices] for t in dataset.tensors]
            return
        options: dict[str, Any] = {}
        if workers and old.num_workers:
            options = {
                "num_workers": old.num_workers,
                "prefetch_factor": old.prefetch_factor,
                "worker_init_fn": old.worker_init_fn,
                "multiprocessing_context": old.multiprocessing_context,
                "timeout": old.timeout,
            }
        seed = int(random.stream(self._origin, step)[0, 0])
        reader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=batches, collate_fn=old.collate_fn,
            generator=old.generator or torch.Generator().manual_seed(seed),
            pin_memory=old.pin_memory, **options,
        )  # fmt: skip
        yield from reader


class _From:
    """The indices of all chains' minibatches, step after step from ``step`` on."""

    def __init__(self, orders: OwnOrders, step: int) -> None:
        self._orders, self._step = orders, step

    def __iter__(self) -> Iterator[list[int]]:
        step = self._step
        while True:
            yield self._orders.indices(step).flatten().tolist()
            step += 1


def stream_of(
    loader: DataLoader[Any] | SharedBatches,
    *,
    chain: Tensor,
    seed: int,
    device: torch.device,
    split: Split = split_pair,
) -> Loader | OwnOrders:
    """Own orders where any order of the rows will do and every sample is a row. ``split`` makes
    (x, y) of what the loader yields."""
    if isinstance(loader, SharedBatches):
        return Loader(loader.loader, device=device, split=split)
    rows = of_loader(loader).rows
    if rows is not None:
        own = OwnOrders(loader, rows, chain=chain, seed=seed, device=device, split=split)
        if own.whole():
            return own
    return Loader(loader, device=device, split=split)
