"""Networks that are known: inside ``proven_network`` a run does not check its network again.

A run with a stranger's network compares gradients, statistics and the engine's first step with
their definitions, which takes longer than a small table's whole run. The networks of ``tabular``
are always of one kind, for which the tests make these comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PROVEN: ContextVar[bool] = ContextVar("proven", default=False)


@contextmanager
def proven_network() -> Iterator[None]:
    """Inside, the network is a chain of linear layers and activations that tests have seen."""
    token = _PROVEN.set(True)
    try:
        yield
    finally:
        _PROVEN.reset(token)


def is_proven() -> bool:
    """Whether the checks may be left out."""
    return _PROVEN.get()
