"""A file appears under its name whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def staged(destination: Path) -> Iterator[BinaryIO]:
    """Yield a new file beside `destination`, and give it that name when the block ends well.

    The block writes and verifies; an exception in it (Ctrl-C too) removes the file again. The
    bytes are on the disk before the name is, so that a crash cannot leave a name without them.
    """
    temporary = destination.with_name(f".{destination.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("x+b") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(destination)
        sync_folder(destination.parent)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """OSError, now rather than after an hour's work, when no file can be made in this folder."""
    with (folder / f".{secrets.token_hex(8)}.part").open("xb") as handle:
        Path(handle.name).unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing here; for a folder that nobody else is using."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """The names in a folder are on the disk."""
    # Windows cannot open a folder, and some network file systems cannot sync one: the file is
    # whole either way, only its name could be forgotten in a power cut.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
