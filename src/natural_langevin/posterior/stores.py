"""Stores: where the samples of a run go as they are drawn: memory, or a file on the disk."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from natural_langevin._internal import tensorfile
from natural_langevin._internal.atomic import remove_leftovers, staged
from natural_langevin._internal.chains import Params
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin._internal.object_store import is_url
from natural_langevin._internal.tensorfile import Spec, StorageError
from natural_langevin.posterior.networks import OnDisk
from natural_langevin.posterior.storage import forget

#: Words that are meant as a kind of memory rather than as the name of a folder.
_NO_FOLDERS = {"gpu", "cuda", "disk", "memory", "ram", "host", ""}


def location(store: Any) -> str | Path:
    """The argument ``store=``: "device", "cpu", a URL, or a folder."""
    if isinstance(store, str) and (store in ("device", "cpu") or is_url(store)):
        return store
    if isinstance(store, (str, os.PathLike)) and store not in _NO_FOLDERS:
        return Path(os.fsdecode(os.fspath(store)))
    raise ValueError(
        f'store must be "device", "cpu", a folder or a URL, got {store!r}: a folder of that name '
        "is pathlib.Path(name)"
    )


def open_store(
    where: str | Path, specs: Mapping[str, Spec], *, device: torch.device, run: dict[str, Any]
) -> Store:
    """The store at this place; ``run`` is all that tells the run from others."""
    if isinstance(where, Path):
        text = json.dumps(run, sort_keys=True)
        return InFolder(where, specs, run=hashlib.sha256(text.encode()).hexdigest())
    return MemoryStore(specs, device if where == "device" else torch.device("cpu"))


class Store(Protocol):
    """What a run needs from the place where its samples go."""

    def begin(self) -> None:
        """Makes room for all samples; for a run that is not resumed."""

    def put(self, draw: int, values: Params) -> None:
        """Keeps (chain, *shape) of every parameter as draw number ``draw``."""

    def tree(self) -> Params:
        """What a checkpoint must hold to find the samples again; they are safe afterwards."""

    def restore(self, tree: Params) -> None:
        """Goes on from what ``tree`` gave."""

    def finished(self) -> Params:
        """All samples, (chain, draw, *shape)."""

    def first(self, count: int) -> Params:
        """The first ``count`` draws, while others may still follow."""

    @property
    def files(self) -> list[str]:
        """Names of files with samples in the store's folder."""

    def close(self) -> None:
        """Lets go of files and folders, however the run ended."""


class MemoryStore(Store):
    """Samples in the memory of a device; what has not been drawn is NaN."""

    def __init__(self, specs: Mapping[str, Spec], device: torch.device) -> None:
        self._samples = {
            name: torch.full(shape, torch.nan, dtype=dtype, device=device)
            for name, (dtype, shape) in specs.items()
        }

    @property
    def files(self) -> list[str]:
        return []

    def begin(self) -> None:
        pass

    def put(self, draw: int, values: Params) -> None:
        for name, value in values.items():
            self._samples[name][:, draw] = value

    def tree(self) -> Params:
        return self._samples

    def restore(self, tree: Params) -> None:
        self._samples = tree

    def finished(self) -> Params:
        return self._samples

    def first(self, count: int) -> Params:
        return {name: value[:, :count] for name, value in self._samples.items()}

    def close(self) -> None:
        pass


class InFolder(Store):
    """Samples in the file ``draws-RUN.safetensors`` of a folder, each written when it is drawn.

    The file has its final size from the start. A checkpoint holds only the file's identity and a
    check of every draw (and the collector's count of them): a killed run that goes on verifies
    those draws and writes the ones after them again, with the same bits, so nothing is lost and
    nothing is there twice. ``run`` names the run: another run has a file of its own, and a new
    start of the same run replaces the old file. The folder is locked while the run is under way.
    """

    def __init__(self, folder: Path, specs: Mapping[str, Spec], *, run: str) -> None:
        self.path = folder / f"draws-{run[:16]}.safetensors"
        self._specs = dict(specs)
        self._identity = secrets.token_hex(16)
        self._plan = tensorfile.layout(self._specs, {"identity": self._identity})
        self._file: int | None = None
        self._lock: FolderLock | None = None
        draws = next(iter(self._specs.values()))[1][1]
        self._checks = torch.zeros(draws, dtype=torch.int64)  # of every draw; 0: none is there

    @property
    def files(self) -> list[str]:
        return [self.path.name]

    def _writing(self) -> AbstractContextManager[None]:
        return tensorfile.writing(
            f"samples to {self.path}", remedy="Or give another folder as store="
        )

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))

    def _claim(self) -> None:
        """The folder for this run alone, without what a killed one was writing."""
        if self._lock is None:
            self._lock = FolderLock(self.path.parent, "sampling (store=)")
        remove_leftovers(self.path.parent)

    def begin(self) -> None:
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._claim()
            forget(self.path)
            self.path.unlink(missing_ok=True)  # its space may be needed
            with staged(self.path) as handle:
                tensorfile.reserve(handle, self._plan.size)
                handle.write(self._plan.header)
            self._open()

    def put(self, draw: int, values: Params) -> None:
        assert self._file is not None, "call begin or restore first"
        digest = hashlib.sha256()
        with self._writing():
            for name in self._specs:
                for chain, one in enumerate(values[name].cpu()):
                    at = self._start(name, chain, draw)
                    for piece in tensorfile.pieces(one):
                        digest.update(piece)
                        tensorfile.write_at(self._file, piece, at)
                        at += piece.nbytes
        self._checks[draw] = _check(digest)

    def _start(self, name: str, chain: int, draw: int) -> int:
        """Where one chain's draw of a parameter begins in the file."""
        return self._plan.start[name] + (chain * len(self._checks) + draw) * self._size(name)

    def _size(self, name: str) -> int:
        dtype, shape = self._specs[name]
        return tensorfile.size_in_bytes((dtype, shape[2:]))

    def _verify(self) -> None:
        """Refuses draws that are not those that were written."""
        with self.path.open("rb") as handle:
            for draw in self._checks.nonzero().flatten().tolist():
                digest = hashlib.sha256()
                for name, (_, shape) in self._specs.items():
                    for chain in range(shape[0]):
                        handle.seek(self._start(name, chain, draw))
                        digest.update(handle.read(self._size(name)))
                if _check(digest) != self._checks[draw]:
                    raise StorageError(
                        f"draw {draw} in {self.path} is damaged: its values differ from those "
                        "that were written. Start again in another folder"
                    )

    def tree(self) -> Params:
        if self._file is not None:
            with self._writing():
                os.fsync(self._file)
        identity = torch.tensor([list(bytes.fromhex(self._identity))], dtype=torch.uint8)
        return {"identity": identity, "checks": self._checks[None]}  # a row for this process

    def restore(self, tree: Params) -> None:
        self._identity = bytes(tree["identity"][0].tolist()).hex()
        self._plan = tensorfile.layout(self._specs, {"identity": self._identity})
        if not self._is_ours():
            raise StorageError(
                f"the samples that this checkpoint counts on are not in {self.path}: give the "
                "store= of the run that wrote the checkpoint, or start again in another folder"
            )
        with self._writing():
            self._claim()
            self._open()
        self._checks = tree["checks"][0].cpu()
        self._verify()

    def _is_ours(self) -> bool:
        if not self.path.is_file() or self.path.stat().st_size != self._plan.size:
            return False
        with self.path.open("rb") as handle:
            return handle.read(len(self._plan.header)) == self._plan.header

    def first(self, count: int) -> Params:
        return {name: value[:, :count] for name, value in OnDisk(self.path, self._specs).items()}

    def finished(self) -> Params:
        self.tree()
        found = OnDisk(self.path, self._specs)
        self.close()
        return found

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        if self._lock is not None:
            self._lock.release()
        self._file = self._lock = None


def _check(digest: Any) -> int:
    """63 bits of a SHA-256 as a positive int64; 0 would mean that there is no sum."""
    return int.from_bytes(digest.digest()[:8], "little") >> 1 or 1
