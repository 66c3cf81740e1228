"""Rows of a study, side by side: each in a process of its own, with one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

import torch

T, R = TypeVar("T"), TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """``work(item)`` of every item, as they are done; with ``jobs=1`` in this process, in order.

    ``work`` and the items are pickled: a function of a module, or a ``functools.partial`` of one.
    """
    if jobs == 1:
        yield from map(work, items)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for done in as_completed([pool.submit(work, item) for item in items]):
            yield done.result()
