"""Keeps freed memory with the process, so that a long run stops faulting pages in.

A step allocates the same temporaries every time. An allocator that hands large blocks back to the
kernel pays for it with a page fault for every 4 KiB of the next step: on some machines more than
the arithmetic. glibc's is told to keep them; the one inside some builds of PyTorch (mimalloc)
listens to an environment variable alone, which must be set before torch is loaded.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


@cache
def keep_pages() -> bool:
    """Tells the C library to keep freed memory, once per process. False where it cannot be told."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 30) and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def keep_pages_before_torch() -> None:
    """Tells the allocator inside torch to keep freed memory, by an environment variable: it is read
    when torch is loaded, so nothing is done where torch is there already. A value that the user has
    set stays."""
    if "torch" not in sys.modules:
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
