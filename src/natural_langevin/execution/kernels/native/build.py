"""The library behind the native engine: found in the package, in a cache, or built in seconds.

One library per dtype. It is built with the system's C compiler (``$CC``,
else cc, gcc or clang) for the processor at hand, and kept in a cache: ``$NATURAL_LANGEVIN_CACHE``,
else ``natural-langevin`` in the user's cache folder. Its name there holds a digest of sources,
compiler and processor, and one of its own bytes. It is loaded only where nobody but the user and
root can have written it and those bytes are whole; anything else is built anew. Where there is no
such folder it is built for the process alone. Two processes may build at once.
``NATURAL_LANGEVIN_NATIVE=off`` switches the native engine off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import stat
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from natural_langevin._internal import atomic
from natural_langevin._internal.capacity import cache_root
from natural_langevin.execution.kernels.native import compiler
from natural_langevin.execution.kernels.native.compiler import NoLibraryError
from natural_langevin.execution.kernels.native.layout import Layer, LinearUpdate, Run, SampleSums

log = logging.getLogger("natural_langevin")

DTYPES = {torch.float32: "float32", torch.float64: "float64"}
#: What was found, or None where there is nothing to be found.
_KNOWN: dict[torch.dtype, ctypes.CDLL | None] = {}
#: Seconds after which what somebody was writing in the cache is a killed process's.
_ABANDONED = 3600


def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The library for networks of this dtype; None where there is none, said once in the log."""
    if dtype not in _KNOWN:
        try:
            _KNOWN[dtype] = None if _is_off() else _found_or_built(dtype)
        except (NoLibraryError, OSError) as error:
            log.warning("no native engine (%s): using the general step", error)
            _KNOWN[dtype] = None
    return _KNOWN[dtype]


def library_at_hand(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Like ``library``, but None where it would have to be built first."""
    if dtype not in _KNOWN and not _is_off():
        try:
            found = _found(dtype)
        except (NoLibraryError, OSError):
            return None
        if found is not None:
            _KNOWN[dtype] = found
    return _KNOWN.get(dtype)


def _is_off() -> bool:
    return os.environ.get("NATURAL_LANGEVIN_NATIVE", "").lower() in ("0", "off", "no", "false")


def _found(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The package's library, or the cache's."""
    path = _prebuilt(dtype) or _cached(_name(dtype))
    return None if path is None else _load(path, dtype)


def _found_or_built(dtype: torch.dtype) -> ctypes.CDLL:
    try:
        found = _found(dtype)
    except OSError:  # no cache, or a library that this system cannot load
        found = None
    return _built(dtype) if found is None else found


def _prebuilt(dtype: torch.dtype) -> Path | None:
    """The library that came with the package, where this processor can run it."""
    path = compiler.HERE / compiler.prebuilt_name(DTYPES[dtype])
    runs = not compiler.X86 or "avx2" in _processor()
    return path if runs and path.exists() else None


@cache
def _name(dtype: torch.dtype) -> str:
    """What the library is called in a cache folder, up to the digest of its bytes."""
    program = compiler.find_compiler().resolve()
    found = program.stat()
    words = [*compiler.FLAGS, str(program), str(found.st_mtime_ns), str(found.st_size)]
    parts = [path.read_bytes() for path in sorted(compiler.HERE.glob("*.[ch]"))]
    parts += map(os.fsencode, [*words, _processor()])
    digest = _digest(b"\0".join(parts))
    return f"native-{DTYPES[dtype]}-{digest}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _cache_folder() -> Path:
    """This user's libraries; the folder need not be there. OSError: there is no place for it."""
    given = os.environ.get("NATURAL_LANGEVIN_CACHE")
    root = Path(given) if given else cache_root()
    if root is None:
        raise OSError("there is no home folder")
    if not root.is_absolute():
        raise OSError(f"NATURAL_LANGEVIN_CACHE={given} is not an absolute path")
    return root / f"native-{_user()}"


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _refuse_foreign(path: Path) -> None:
    """OSError where somebody else than this user and root can have written it, or a link."""
    found = path.lstat()
    foreign = found.st_uid not in (0, _user()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if hasattr(os, "geteuid") and (foreign or stat.S_ISLNK(found.st_mode)):
        raise OSError(f"{path} can be written by others")


def _cached(name: str) -> Path | None:
    """The library of this name in the cache, where it is whole and nobody else's work."""
    folder = _cache_folder()
    for path in sorted(folder.glob(f"{name}-*.so")):
        _refuse_foreign(folder)
        _refuse_foreign(path)
        if path.stem.rpartition("-")[2] == _digest(path.read_bytes()):
            return path
    return None


def _built(dtype: torch.dtype) -> ctypes.CDLL:
    """The library, built anew and kept in the cache where there is one."""
    with tempfile.TemporaryDirectory(prefix="natural-langevin-") as own:
        made = Path(own) / "library.so"
        try:
            compiler.build(made, DTYPES[dtype], tune=compiler.OWN)
        except NoLibraryError:  # a compiler that does not know this processor
            compiler.build(made, DTYPES[dtype], tune=())
        try:
            return _load(_kept(made.read_bytes(), _name(dtype)), dtype)
        except OSError as error:
            _say_uncached(str(error))
            return _load(made, dtype)


def _kept(content: bytes, name: str) -> Path:
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _refuse_foreign(folder)
    for part in folder.glob(".*.part"):
        if time.time() - part.stat().st_mtime > _ABANDONED:
            part.unlink(missing_ok=True)
    path = folder / f"{name}-{_digest(content)}.so"
    with atomic.staged(path) as handle:
        os.fchmod(handle.fileno(), 0o600)  # whatever the umask
        handle.write(content)
    return path


@cache
def _say_uncached(why: str) -> None:
    log.warning(
        "no cache for the native engine (%s): it is built for this process only. Set "
        "NATURAL_LANGEVIN_CACHE to a folder that you own", why,
    )  # fmt: skip


@cache
def _processor() -> str:
    """What distinguishes processors that cannot run each other's code."""
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _load(path: Path, dtype: torch.dtype) -> ctypes.CDLL:
    found, number, memory = ctypes.CDLL(str(path)), ctypes.c_int64, ctypes.c_void_p
    try:
        sizes = [found.layout_bytes(which) for which in range(4)] + [found.real_bytes()]
        for sized in ("workspace_bytes", "forward_bytes", "linear_update", "sample_sums"):
            found[sized].restype = number
        for nothing in ("run_steps", "network_outputs", "key_normals"):
            found[nothing].restype = None
        found.network_outputs.argtypes = [memory] * 2 + [number, memory]
        found.linear_update.argtypes = [memory, number, number]
        found.sample_sums.argtypes = [memory, number]
        found.key_normals.argtypes = [number] * 4 + [memory] * 2
    except AttributeError as error:
        raise OSError(f"{path.name} lacks a function: {error}") from error
    if sizes != [*map(ctypes.sizeof, (Run, Layer, LinearUpdate, SampleSums)), dtype.itemsize]:
        raise OSError(f"{path.name} belongs to another version")
    return found


#: Numbers that the library writes beyond those asked for, at most.
_SURPLUS = 512


def native_normal(key: Tensor, count: int, start: int) -> Tensor | None:
    """The normals of ``random.normal`` by the library, a tenth of the time of plain operations:
    draws ``start`` to ``start + count`` of every key (..., 2), float32, (..., count); None where
    there is none."""
    found = library(torch.float32)
    if found is None:
        return None
    room, out = torch.empty(count + _SURPLUS), torch.empty(*key.shape[:-1], count)
    for words, row in zip(key.reshape(-1, 2).tolist(), out.view(-1, count), strict=True):
        found.key_normals(*words, start, count, room.data_ptr(), row.data_ptr())
    return out
