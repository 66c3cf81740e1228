"""Networks that are known: inside ``proven_network`` a run does not check its network again.

A run with a stranger's network compares gradients, statistics and the engine's first step with
their definitions, which takes longer than a small table's whole run. The networks of ``tabular``
are always of one kind, for which the tests make these comparisons.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from natural_langevin._internal.context import setting

_PROVEN: ContextVar[bool] = ContextVar("proven", default=False)


def proven_network() -> AbstractContextManager[None]:
    """Inside, the network is a chain of linear layers and activations that tests have seen."""
    return setting(_PROVEN, True)


def is_proven() -> bool:
    """Whether the checks may be left out."""
    return _PROVEN.get()
