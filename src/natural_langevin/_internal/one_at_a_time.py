"""Objects that one thread uses at a time."""

from __future__ import annotations

import os
import threading
from typing import Any


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
