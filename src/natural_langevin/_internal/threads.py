"""Threads: many small operations of torch are quickest on one.

An operation on a few ten thousand numbers gains nothing by a second thread, and where another
program wants a core each of them waits until that thread has had its turn: the README's example
then took four times as long as on one thread. Engines in C, whose calls are long, have all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Method = TypeVar("Method", bound=Callable[..., Any])

#: Weights up to which a network's operations are too small for several threads.
FEW_WEIGHTS = 2_000
#: Of every thread that works on small things: how many threads it may use otherwise.
_HERE = threading.local()


def of_engines() -> int:
    """How many threads an engine of our own may use: as many as torch, outside of ``one``."""
    return getattr(_HERE, "count", None) or torch.get_num_threads()


@contextlib.contextmanager
def as_given() -> Iterator[None]:
    """Inside, within ``one``: the threads that the caller of it had. For a user's own code."""
    count = getattr(_HERE, "count", None)
    if count is None:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@contextlib.contextmanager
def one() -> Iterator[None]:
    """Inside, torch's operations take one thread; engines as many as before."""
    count = torch.get_num_threads()
    if count == 1:
        yield
        return
    try:
        _HERE.count = count
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(count)
        _HERE.count = None


def one_where(small: Callable[[Any], bool]) -> Callable[[Method], Method]:
    """A function whose torch operations take one thread where its first argument is ``small``."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def quick(first: Any, *args: Any, **kwargs: Any) -> Any:
            with one() if small(first) else contextlib.nullcontext():
                return method(first, *args, **kwargs)

        return quick  # type: ignore[return-value]

    return decorate


class OneAtATime:
    """Who uses an object; a copy or a fork of the object is used by nobody."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self.lock, self._process = threading.RLock(), os.getpid()

    def acquire(self) -> bool:
        """Whether this thread may continue; a fork does not inherit the lock of its parent."""
        if self._process != os.getpid():
            self._renew()
        return self.lock.acquire(blocking=False)

    def __reduce__(self) -> Any:
        return OneAtATime, ()
