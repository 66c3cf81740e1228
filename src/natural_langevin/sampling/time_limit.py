"""The time of a whole call: ``sample(seconds=...)``.

Somebody who says ten seconds means all that the call does: the trial of the prior's scales, the
pilot and the descent as well. What these have taken is gone for the steps of the run, which get
``LEAST`` of the time in any case; and the search is cut short where it would take more than
``SEARCH`` of it. A run with ``seconds`` therefore differs from machine to machine, and from call to
call, in what is chosen as well as in its length.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

from natural_langevin._internal.context import setting

Method = TypeVar("Method", bound=Callable[..., Any])

#: Shares of the time: what the steps of the run have at least, and when the search should be over.
LEAST, SEARCH = 0.2, 0.5

clock = time.monotonic


class _Limit:
    """Of one call. ``descent``: seconds that a chain's descent has taken at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.began, self.descent = seconds, clock(), 0.0

    @property
    def spent(self) -> float:
        return clock() - self.began


_LIMIT: ContextVar[_Limit | None] = ContextVar("limit", default=None)
_SHARE: ContextVar[float] = ContextVar("share", default=1 - LEAST)


def of_call(method: Method) -> Method:
    """``sample``, whose ``seconds`` are a limit where they decide about its length: not beside
    ``steps`` alone, and not in a call inside of one that has a limit. Not of several processes
    either, which must all choose the same."""

    @functools.wraps(method)
    def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = kwargs.get("seconds")
        steps = args[1] if len(args) > 1 else kwargs.get("steps")
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {seconds!r}")
        counts = steps is None or kwargs.get("until") is not None
        if seconds is None or not counts or _LIMIT.get() is not None or self.mesh.world > 1:
            return method(self, *args, **kwargs)
        with setting(_LIMIT, _Limit(float(seconds))):
            return method(self, *args, **kwargs)

    return limited  # type: ignore[return-value]


def searching() -> AbstractContextManager[None]:
    """Inside, time is over when the search should be."""
    return setting(_SHARE, SEARCH)


def exists() -> bool:
    """Whether the call has a limit."""
    return _LIMIT.get() is not None


def allows(seconds: float) -> bool:
    """Whether something may be begun that takes so long; always without a limit."""
    limit = _LIMIT.get()
    return limit is None or limit.spent + seconds <= _SHARE.get() * limit.seconds


def note_descent(seconds: float) -> None:
    """A chain's descent has taken so long: the run's own will too."""
    if (limit := _LIMIT.get()) is not None:
        limit.descent = max(limit.descent, seconds)


def left_for_steps(seconds: float, going_down: int = 0) -> float:
    """What is left of ``seconds`` for the steps of the run, when ``going_down`` chains have still
    to go down."""
    limit = _LIMIT.get()
    if limit is None:
        return seconds
    left = limit.seconds - limit.spent - going_down * limit.descent
    return max(left, LEAST * limit.seconds) if math.isfinite(left) else seconds
