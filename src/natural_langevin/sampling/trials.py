"""Trials: runs that compare settings by held-out data, and try large step sizes on purpose.

Inside one, a chain that diverges and a step size that is stiff are information, not warnings.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from contextvars import ContextVar

from natural_langevin._internal.context import setting

_TRIAL: ContextVar[bool] = ContextVar("trial", default=False)


def trial() -> AbstractContextManager[None]:
    """Inside, what would be said to a user is only logged."""
    return setting(_TRIAL, True)


def under_way() -> bool:
    """Whether this is a trial: nobody will read a diagnosis of it."""
    return _TRIAL.get()


def level() -> int:
    """The level at which trouble of a chain is logged."""
    return logging.INFO if under_way() else logging.WARNING
