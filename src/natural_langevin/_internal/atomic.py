"""Atomic writing of files.

Ours, since what writes files elsewhere (``torch.save``, safetensors) neither waits for the disk nor
keeps the former file until the new one is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def staged(destination: Path, *, former: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a new file beside `destination`, and give it that name when the block ends well.

    The block writes and verifies; an exception in it (Ctrl-C too) removes the file again. The
    bytes are on the disk before the name is, so that a crash cannot leave a name without them.
    A file that has the name gets the name ``former``, if there is one.
    """
    temporary = destination.with_name(f".{destination.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("x+b") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        if former is not None and destination.exists():
            destination.replace(former)
        temporary.replace(destination)
        sync_folder(destination.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def output(destination: Path) -> Iterator[BinaryIO]:
    """Like ``staged``, for a file that a user named: a link perhaps, a pipe, or one there before.

    A link is followed, a device or a pipe is written to as it is, and a file that is there keeps
    its mode (and its owner, where that may be set): nothing becomes readable by being replaced.
    """
    try:
        place = destination.resolve()
        there = place.stat()
    except FileNotFoundError:
        there = None
    except (RuntimeError, ValueError) as error:  # links in a circle; a NUL in the name
        raise OSError(errno.EINVAL, str(error), os.fspath(destination)) from None
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(destination))
    if there is not None and not stat.S_ISREG(there.st_mode):
        with place.open("wb") as handle:
            yield handle
        return
    with staged(place) as handle:
        if there is not None:
            with contextlib.suppress(OSError):  # only root may give a file away
                os.fchown(handle.fileno(), there.st_uid, there.st_gid)
            os.fchmod(handle.fileno(), stat.S_IMODE(there.st_mode))
        yield handle


def write(destination: Path, content: bytes) -> None:
    """A file of this content, by ``staged``."""
    with staged(destination) as handle:
        handle.write(content)


def write_output(destination: str | os.PathLike[str], content: bytes) -> None:
    """The same where a user named it, by ``output``."""
    with output(Path(destination)) as handle:
        handle.write(content)


def check_writable(folder: Path) -> None:
    """Raises OSError where no file can be made in this folder: now, not after an hour's work."""
    with (folder / f".{secrets.token_hex(8)}.part").open("xb") as handle:
        Path(handle.name).unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing here; for a folder that nobody else is using."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Writes the names in a folder to the disk, so that they survive a crash."""
    # Windows cannot open a folder, and some network file systems cannot sync one: the file is
    # whole either way, only its name could be forgotten in a power cut.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
