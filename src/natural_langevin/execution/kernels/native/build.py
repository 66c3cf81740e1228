"""The library behind the native engine: found in the package, in a cache, or built in seconds.

One library per dtype, and one more where layers have places (convolutions and pools), so that who
has none does not wait for them to be compiled. It is built with the system's C compiler (``$CC``,
else cc, gcc or clang) for the processor at hand, and kept in a cache folder under a name that
depends on sources, compiler and processor: ``$NATURAL_LANGEVIN_CACHE``, else ``natural-langevin``
in the user's cache folder. Two processes may build at once. ``NATURAL_LANGEVIN_NATIVE=off``
switches the native engine off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import tempfile
from functools import cache
from pathlib import Path

import torch

from natural_langevin.execution.kernels.native import compiler
from natural_langevin.execution.kernels.native.compiler import NoLibraryError
from natural_langevin.execution.kernels.native.layout import Layer, Run

log = logging.getLogger("natural_langevin")

_SEEN: set[torch.dtype] = set()
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


@cache
def library(dtype: torch.dtype, *, places: bool = False) -> ctypes.CDLL | None:
    """The library for networks of this dtype; None where there is none, said once in the log."""
    if os.environ.get("NATURAL_LANGEVIN_NATIVE", "").lower() in ("0", "off", "no", "false"):
        return None
    try:
        return _load(_prebuilt(dtype) or _built(dtype, places), dtype)
    except (NoLibraryError, OSError) as error:
        log.warning("no native engine (%s): the general step serves", error)
        return None


def library_at_hand(dtype: torch.dtype, *, places: bool = False) -> ctypes.CDLL | None:
    """Like ``library``, but None where it would have to be built first."""
    try:
        there = _prebuilt(dtype) is not None or (_cache_folder() / _name(dtype, places)).exists()
    except (NoLibraryError, OSError):
        return None
    return library(dtype, places=places) if there else None


def is_at_hand(dtype: torch.dtype) -> bool:
    """Whether there is any library of this dtype; once there, it stays."""
    if dtype not in _SEEN and any(library_at_hand(dtype, places=p) for p in (False, True)):
        _SEEN.add(dtype)
    return dtype in _SEEN


def _prebuilt(dtype: torch.dtype) -> Path | None:
    """The library that came with the package, where this processor can run it."""
    path = compiler.HERE / compiler.prebuilt_name(DTYPES[dtype])
    runs = not compiler.X86 or "avx2" in _processor()
    return path if runs and path.exists() else None


@cache
def _name(dtype: torch.dtype, places: bool) -> str:
    """What the library is called in a cache folder."""
    program = compiler.find_compiler().resolve()
    stat = program.stat()
    parts = [path.read_text() for path in sorted(compiler.HERE.glob("*.[ch]"))]
    parts += [*compiler.FLAGS, str(program), str(stat.st_mtime_ns), str(stat.st_size)]
    digest = hashlib.sha256("\0".join([*parts, _processor()]).encode()).hexdigest()[:20]
    return f"native-{'places-' if places else ''}{DTYPES[dtype]}-{digest}.so"


def _built(dtype: torch.dtype, places: bool) -> Path:
    """The library of the cache, built where it is not there yet."""
    target = _cache_folder() / _name(dtype, places)
    if not target.exists():
        try:
            compiler.build(target, DTYPES[dtype], tune=compiler.OWN, places=places)
        except NoLibraryError:  # a compiler that does not know this processor
            compiler.build(target, DTYPES[dtype], tune=(), places=places)
    return target


def _cache_folder() -> Path:
    given = os.environ.get("NATURAL_LANGEVIN_CACHE")
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "natural-langevin"
    folder = Path(given) if given else usual
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        if given:
            raise
    return Path(_process_folder())


@cache
def _process_folder() -> str:
    """Where no cache can be written: a folder of this process."""
    return tempfile.mkdtemp(prefix="natural-langevin-")


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
    found = ctypes.CDLL(str(path))
    sizes = [found.layout_bytes(which) for which in (0, 1)]
    if sizes != [ctypes.sizeof(Run), ctypes.sizeof(Layer)] or found.real_bytes() != dtype.itemsize:
        raise NoLibraryError(f"{path.name} belongs to another version")
    found.workspace_bytes.restype = ctypes.c_int64
    found.run_steps.restype = None
    found.forward_bytes.restype = ctypes.c_int64
    found.network_outputs.restype = None
    found.network_outputs.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_void_p]
    return found
