"""A folder in an object store (``s3://bucket/run``): worked on here, committed there, by fsspec.

Everybody reads and writes ``folder``, a plain one on this machine; ``commit`` makes what it holds
the content of the URL, all of it at once:

    URL/blocks/NAME    pieces of files, written once and never changed
    URL/00000012.json  a generation: which blocks make up which file, and who is at work

A generation is made by a conditional put (S3's ``If-None-Match: *``), which fails where there is
one of that number, and the one with the highest number counts. So whoever dies leaves the
generation before it whole, and of two who write, one is refused. A generation is the lock too: it
names its owner and when that gave a sign of life, which it repeats every minute.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from natural_langevin._internal.extras import needing
from natural_langevin._internal.folder_lock import FolderInUseError, is_alive
from natural_langevin._internal.tensorfile import StorageError, WriteError

log = logging.getLogger("natural_langevin")

#: Bytes of a block: what is sent again where one number of it has changed.
BLOCK = 1 << 22
#: Seconds between signs of life, and after how many without one an owner holds nothing.
SIGN, LEASE = 60.0, 300.0

#: Tells this process from an earlier one of the same number on a machine of the same name.
_PROCESS = secrets.token_hex(8)
_GENERATION, _BLOCK_NAME = re.compile(r"\d{8}\.json"), re.compile(r"[0-9a-f]{32}")

#: The blocks of a file in order: (SHA-256, name).
Blocks = list[list[str]]


def is_url(place: object) -> bool:
    """Whether this names a place in an object store rather than a folder of this machine."""
    return isinstance(place, str) and "://" in place


class ObjectFolder:
    """The folder at ``url``, for this object alone until ``close``. ``purpose``: what a second
    comer is told, "sampling (store=)"."""

    def __init__(self, url: str, purpose: str) -> None:
        self.url, self._purpose = url, purpose
        self._token = f"{_PROCESS}-{secrets.token_hex(8)}"
        self._guard, self._closed = threading.Lock(), threading.Event()
        with self._reaching():
            self._store, self._root = _connected(url)
            self._number, self._files = 0, dict[str, Blocks]()
            self._claim()
        self.folder = Path(tempfile.mkdtemp(prefix="natural-langevin-"))
        try:
            with self._reaching():
                self._blocks = self._named_blocks()
                self._remove_unused()
                self._pull()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._give_signs, daemon=True).start()

    def commit(self) -> None:
        """Makes what ``folder`` holds the content of the URL; nothing is sent where it is that
        already. Whatever happens meanwhile, the content before it is whole."""
        with self._guard, self._reaching():
            known = {check: name for blocks in self._files.values() for check, name in blocks}
            paths = [p for p in sorted(self.folder.rglob("*")) if p.is_file()]
            files = {
                path.relative_to(self.folder).as_posix(): self._sent(path, known)
                for path in paths
                if not path.name.startswith(".")  # locks, and files that are being written
            }
            if files != self._files:
                self._put(files)
                self._remove_unused()

    def close(self) -> None:
        """Leaves the URL to others and removes ``folder``; what was not committed is lost."""
        self._closed.set()
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            with self._guard, self._reaching():
                self._put(self._files, owned=False)
        except StorageError as error:
            log.warning("could not release %s: %s", self.url, error)

    def __enter__(self) -> ObjectFolder:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(raised, StorageError):  # in words that the user knows
            raised.args = tuple(str(a).replace(str(self.folder), self.url) for a in raised.args)

    # Generations ----------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Makes a generation of this owner with the files of the highest one."""
        while True:
            self._number, there = self._highest()
            owner, self._files = there["owner"], there["files"]
            if owner is not None and not _is_gone(owner):
                raise FolderInUseError(f"{self.url} is in use: {_described(owner)}")
            try:
                self._put(self._files)
                break
            except FolderInUseError:  # somebody else was faster: look who
                continue
        with contextlib.suppress(FileExistsError):
            self._store.pipe_file(self._generation(self._number), b"{}", mode="create")
            self._remove(self._generation(self._number))
            raise StorageError(_no_conditional_put(self.url))

    def _highest(self) -> tuple[int, dict[str, Any]]:
        while True:
            numbers = self._numbers()
            if not numbers:
                return 0, {"owner": None, "files": {}}
            with contextlib.suppress(FileNotFoundError):  # replaced in between
                return max(numbers), _read(self._store.cat_file(self._generation(max(numbers))))

    def _numbers(self) -> list[int]:
        return [int(name[:8]) for name in self._listed("") if _GENERATION.fullmatch(name)]

    def _generation(self, number: int) -> str:
        return f"{self._root}/{number:08d}.json"

    def _put(self, files: dict[str, Blocks], *, owned: bool = True) -> None:
        """The next generation; an error where another process has made it."""
        owner = {
            "token": self._token, "pid": os.getpid(), "host": socket.gethostname(),
            "purpose": self._purpose, "sign": time.time(),
        }  # fmt: skip
        text = json.dumps({"owner": owner if owned else None, "files": files}).encode()
        path = self._generation(self._number + 1)
        try:
            self._store.pipe_file(path, text, mode="create")
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if self._store.cat_file(path) == text:  # the answer was lost, and asked for again
                    self._number, self._files = self._number + 1, files
                    return
            raise FolderInUseError(
                f"another process has taken over {self.url} after {LEASE:g} seconds without a "
                "heartbeat from this one: only its commits count from now on"
            ) from None
        self._number, self._files = self._number + 1, files
        for older in self._numbers():
            if older < self._number:
                self._remove(self._generation(older))

    def _give_signs(self) -> None:
        while not self._closed.wait(SIGN):
            with contextlib.suppress(StorageError), self._guard, self._reaching():
                if not self._closed.is_set():
                    self._put(self._files)

    # Blocks ---------------------------------------------------------------------------------------

    def _block(self, name: str) -> str:
        return f"{self._root}/blocks/{name}"

    def _sent(self, path: Path, known: dict[str, str]) -> Blocks:
        """The blocks of a file, of which those that are not ``known`` are written."""
        blocks = []
        with path.open("rb") as file:
            while data := file.read(BLOCK):
                check = hashlib.sha256(data).hexdigest()
                if check not in known:
                    known[check] = secrets.token_hex(16)
                    self._store.pipe_file(self._block(known[check]), data)
                    self._blocks.add(known[check])
                blocks.append([check, known[check]])
        return blocks

    def _pull(self) -> None:
        for name, blocks in self._files.items():
            path = self.folder / name
            if not path.resolve().is_relative_to(self.folder.resolve()):
                raise StorageError(f"{self.url} names the file {name!r}, outside of it")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for check, block in blocks:
                    data = self._store.cat_file(self._block(block))
                    if hashlib.sha256(data).hexdigest() != check:
                        raise StorageError(f"{name} in {self.url} is damaged: use another location")
                    file.write(data)

    def _named_blocks(self) -> set[str]:
        return {name for name in self._listed("/blocks") if _BLOCK_NAME.fullmatch(name)}

    def _remove_unused(self) -> None:
        """Blocks that no file has: of generations before, or of a process that was killed."""
        used = {name for blocks in self._files.values() for _, name in blocks}
        for name in self._blocks - used:
            self._remove(self._block(name))
        self._blocks &= used

    # The store ------------------------------------------------------------------------------------

    def _listed(self, below: str) -> list[str]:
        self._store.invalidate_cache()
        try:
            return [path.rpartition("/")[2] for path in self._store.ls(self._root + below, False)]
        except FileNotFoundError:
            return []

    def _remove(self, path: str) -> None:
        with contextlib.suppress(OSError):  # what cannot be removed does no harm
            self._store.rm_file(path)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Errors of the store, of whatever class it has for them, as ours."""
        try:
            yield
        except (StorageError, ImportError):
            raise
        except Exception as error:
            raise WriteError(
                f"cannot reach {self.url}: {type(error).__name__}: {error}. What was committed "
                "before is intact: run the same command again to continue from there"
            ) from error


def _connected(url: str) -> tuple[Any, str]:
    """The store of a URL, and the path in it."""
    with needing(f"{url} needs the package fsspec", "object-stores"):
        from fsspec import AbstractFileSystem
        from fsspec.core import url_to_fs
    store, root = url_to_fs(url, use_listings_cache=False)
    if "file" in store.protocol:
        raise StorageError(f"{url} is a local folder: give its path, {root}")
    if not store.async_impl and type(store).pipe_file is AbstractFileSystem.pipe_file:
        raise StorageError(_no_conditional_put(url))  # it looks first, and writes then
    return store, root.rstrip("/")


def _no_conditional_put(url: str) -> str:
    return (
        f"{url}: this store has no conditional put, so two runs could overwrite each other: use a "
        "store that has one (S3, Google Cloud Storage, Azure), or a folder"
    )


def _read(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        files = {str(k): [[str(c), str(n)] for c, n in v] for k, v in found["files"].items()}
        owner = found["owner"]
        if owner is not None:
            owner = {"sign": float(owner["sign"]), "pid": int(owner["pid"])} | owner
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"a generation cannot be read ({error}): use another location"
        ) from error
    return {"owner": owner, "files": files}


def _is_gone(owner: dict[str, Any]) -> bool:
    """Whether an owner holds nothing any more: dead on this machine, or silent for too long."""
    if owner.get("host") == socket.gethostname():
        if owner["pid"] == os.getpid():
            return not str(owner.get("token")).startswith(_PROCESS)
        if not is_alive(owner):
            return True
    return time.time() - owner["sign"] > LEASE


def _described(owner: dict[str, Any]) -> str:
    since = datetime.fromtimestamp(owner["sign"]).astimezone().isoformat(" ", "seconds")
    return (
        f"process {owner['pid']} on {owner.get('host')!s:.80} was {owner.get('purpose')!s:.80} "
        f"there at {since}. Wait until it is done or end it, or use another location; if that "
        f"process no longer exists, the location is free {LEASE:g} seconds after that time"
    )
