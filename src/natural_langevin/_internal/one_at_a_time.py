"""Objects that one thread uses at a time: a second one is refused in words, not mixed in."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


class OneAtATime:
    """Who uses an object; a copy or a fork of the object is used by nobody."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self.lock, self._process = threading.RLock(), os.getpid()

    def acquire(self) -> bool:
        """Whether this thread may go on; what a fork's parent was doing does not count."""
        if self._process != os.getpid():
            self._renew()
        return self.lock.acquire(blocking=False)

    def __reduce__(self) -> Any:
        return OneAtATime, ()


def exclusive(method: Method) -> Method:
    """A method of an object that has a ``OneAtATime`` as ``_busy``; it may call others of them."""

    @functools.wraps(method)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._busy.acquire():
            raise RuntimeError(
                f"this {type(self).__name__} is at work in another thread, and its network holds "
                "one run at a time: make one for each thread, or wait"
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            self._busy.lock.release()

    return alone  # type: ignore[return-value]
