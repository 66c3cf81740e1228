"""Opening of a user's file, with a time limit for pipes."""

from __future__ import annotations

import os
import select
import stat
from typing import BinaryIO

from natural_langevin.data.errors import DataError

#: Seconds in which somebody must begin to write to a named pipe.
PATIENCE = 60.0


def open_binary(path: str | os.PathLike[str], label: str) -> BinaryIO:
    """The file to read from; DataError, with the reason, where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            _await_writer(descriptor, label)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, IsADirectoryError):
            raise DataError(f"{label} is a folder: give the file itself") from None
        raise DataError(f"cannot read {label}: {reason}: check the name") from None


def _await_writer(descriptor: int, label: str) -> None:
    """Waits for a writer of a pipe; ``open`` would block silently without one."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(21, "Is a directory")
    if stat.S_ISFIFO(kind):
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        if not ready.poll(1000 * PATIENCE):
            raise DataError(
                f"{label} is a pipe, and nothing was written to it within {PATIENCE:g} seconds: "
                "start what writes to it first"
            )
    if hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
