"""The data of an epoch of a DataLoader, found from its samplers, without reading any.

The posterior is that of N data which count alike. A minibatch's mean gradient stands for all of
them if every datum comes equally often, in batches of one size (or in a fresh random order). What
the samplers do is looked up where torch's own are used, and counted along two epochs otherwise;
``len(dataset)`` alone would be wrong for a sampler that sees a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    WeightedRandomSampler,
)


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
