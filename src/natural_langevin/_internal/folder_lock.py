"""One folder, one owner: a lock on a folder that dies with the process that holds it.

The file ``.lock`` in the folder is locked (``flock``, which the system gives up when the process
ends, however it ends) and names its owner. Where a file system knows no locks, the owner's name
alone decides: a process of this machine that is no more holds nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import threading
import time
import weakref
from datetime import datetime
from pathlib import Path
from typing import Any

from natural_langevin._internal.tensorfile import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
#: What ``flock`` says where there are no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class FolderInUseError(StorageError):
    """Another process, or another thread of this one, is at work in the folder."""


class FolderLock:
    """Holds a folder, which is there, until ``release``, the end of a ``with``, or of the process.

    ``purpose`` is what the second comer is told: "sampling (store=)". ``wait``: seconds for which
    a folder in use is asked for again. The thread that holds a folder may lock it again."""

    def __init__(self, folder: Path, purpose: str, *, wait: float = 0.0) -> None:
        key, deadline = folder.resolve(), time.monotonic() + wait
        while True:
            try:
                _acquire(key, folder, purpose)
                break
            except FolderInUseError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.02)
        self._finalizer = weakref.finalize(self, _release, key, os.getpid())

    def release(self) -> None:
        """Gives the folder up; a second time does nothing."""
        self._finalizer()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()


class _Held:
    """A lock of this process: by which thread, how often, and the open file."""

    def __init__(self, thread: int, file: int) -> None:
        self.thread, self.file, self.count = thread, file, 1


_held: dict[Path, _Held] = {}
_guard = threading.RLock()


def _acquire(key: Path, folder: Path, purpose: str) -> None:
    with _guard:
        mine = _held.get(key)
        if mine is not None and mine.thread == threading.get_ident():
            mine.count += 1
            return
        if mine is None:
            file = _open_locked(key / NAME, purpose)
            if file is not None:
                _held[key] = _Held(threading.get_ident(), file)
                return
    raise FolderInUseError(f"{folder} is in use: {_describe_owner(key / NAME)}")


def _open_locked(path: Path, purpose: str) -> int | None:
    """The open lock file, or None where somebody else has it."""
    # For reading, where that is enough: a file that is open for writing keeps a disk from being
    # made read-only. NFS locks only what is open for writing.
    access = os.O_RDONLY
    while True:
        file = _open_plain(path, access | os.O_CREAT)
        try:
            free = _lock(file, path)
            if free and _is_at(file, path):
                _write_owner(file, path, purpose)
                return file
        except OSError as error:
            if error.errno != errno.EBADF or access == os.O_RDWR:
                os.close(file)
                raise
            free, access = True, os.O_RDWR
        os.close(file)
        if not free:
            return None


def _open_plain(path: Path, access: int) -> int:
    """A file of our own under this name: never what a link leads to, never a pipe or a device."""
    for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"):  # Windows has none of them
        access |= getattr(os, name, 0)
    try:
        file = os.open(path, access, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP and not path.is_dir():
            raise
        raise StorageError(f"{path} is {_kind(path)}, not a plain file: remove it") from error
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(file)
        raise StorageError(f"{path} is {_kind(path)}, not a plain file: remove it")
    return file


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "a link"
    return "a file with several names" if path.is_file() else "a folder, a pipe or a device"


def _is_at(file: int, path: Path) -> bool:
    """Whether the name still means this file: its last owner may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(file: int, path: Path) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    owner = _read_owner(path)
    return not owner or (owner.get("host") == socket.gethostname() and not is_alive(owner))


def _write_owner(file: int, path: Path, purpose: str) -> None:
    """Into the file that is locked, whatever its name means by now."""
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "purpose": purpose}
    with contextlib.suppress(OSError, StorageError):  # a full disk: it holds without a name
        writer = _open_plain(path, os.O_WRONLY)
        try:
            if os.path.samestat(os.fstat(file), os.fstat(writer)):
                os.ftruncate(writer, 0)
                os.write(writer, json.dumps(owner).encode())
        finally:
            os.close(writer)


def _read_owner(path: Path) -> dict[str, Any]:
    try:
        file = _open_plain(path, os.O_RDONLY)
        try:
            found = json.loads(os.read(file, 10_000))
        finally:
            os.close(file)
    except (OSError, ValueError, StorageError):
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether the owner's process, of this machine, still runs."""
    try:
        os.kill(int(owner["pid"]), 0)
    except (ProcessLookupError, KeyError, TypeError, ValueError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _describe_owner(path: Path) -> str:
    owner = _read_owner(path)
    if not owner:
        return "another process holds it. Wait until it is done, or use another folder"
    here = owner.get("pid") == os.getpid() and owner.get("host") == socket.gethostname()
    who = "another thread of this process" if here else f"process {owner.get('pid')}"
    return (
        f"{who} on {owner.get('host')!s:.80} has been {owner.get('purpose')!s:.80} there since "
        f"{owner.get('since')!s:.40}. Wait until it is done or end it, or use another folder; if "
        f"that process no longer exists, remove {path}"
    )


def _release(key: Path, pid: int) -> None:
    if pid != os.getpid():  # a fork's copy of what its parent holds
        return
    with _guard:
        mine = _held.get(key)
        if mine is None:
            return
        mine.count -= 1
        if mine.count == 0:
            del _held[key]
            with contextlib.suppress(OSError):
                (key / NAME).unlink()
            os.close(mine.file)


def _forget_parents_locks() -> None:
    """In a fork's child: the parent holds them, and they are to end with the parent."""
    global _guard
    _guard = threading.RLock()
    for held in _held.values():
        os.close(held.file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)
