"""The library behind the native engine: found in the package, in a cache, or built in seconds.

One library per dtype. It is built with the system's C compiler (``$CC``, else cc, gcc or clang) for
the processor at hand, and kept in a cache folder under a name that depends on sources, compiler and
processor: ``$NATURAL_LANGEVIN_CACHE``, else ``natural-langevin`` in the user's cache folder. A file
is written beside its place and moved there, so that two processes may build at once.
``NATURAL_LANGEVIN_NATIVE=off`` switches the native engine off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from natural_langevin.execution.kernels.native.layout import Layer, Run

log = logging.getLogger("natural_langevin")

HERE = Path(__file__).parent
#: Strict about NaN and the order of sums; a loop whose sum may be reordered says so itself.
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-fopenmp-simd",
)  # fmt: skip
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class NoLibraryError(RuntimeError):
    """There is no library, and why."""


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The library for networks of this dtype; None where there is none, said once in the log."""
    if os.environ.get("NATURAL_LANGEVIN_NATIVE", "").lower() in ("0", "off", "no", "false"):
        return None
    try:
        return _load(_prebuilt(dtype) or _built(dtype), dtype)
    except (NoLibraryError, OSError) as error:
        log.warning("no native engine (%s): the general step serves", error)
        return None


def build(target: Path, dtype: torch.dtype, *, tune: tuple[str, ...]) -> None:
    """Compiles the sources into ``target``. An error tells the compiler's own words."""
    define = ("-DDOUBLE",) if dtype == torch.float64 else ()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        made = Path(folder) / "library.so"
        command = [_compiler(), *FLAGS, *tune, *define, str(HERE / "engine.c"), "-o", str(made)]
        found = subprocess.run([*command, "-lm"], capture_output=True, text=True, check=False)
        if found.returncode:
            lines = [line for line in found.stderr.splitlines() if "error" in line] or ["failed"]
            raise NoLibraryError(f"{command[0]}: {lines[0]}")
        made.replace(target)


def portable_flags() -> tuple[str, ...]:
    """For a library that travels in a wheel."""
    return ("-march=x86-64-v3",) if platform.machine() in ("x86_64", "AMD64") else ()


def prebuilt_path(dtype: torch.dtype) -> Path:
    """Where a wheel carries its library."""
    return HERE / f"prebuilt-{platform.machine()}-{DTYPES[dtype]}.so"


def _prebuilt(dtype: torch.dtype) -> Path | None:
    path = prebuilt_path(dtype)
    if not path.exists():
        return None
    needs_avx2 = bool(portable_flags())
    return path if not needs_avx2 or "avx2" in _processor() else None


def _built(dtype: torch.dtype) -> Path:
    compiler = Path(_compiler()).resolve()
    stat = compiler.stat()
    sources = sorted(HERE.glob("*.[ch]"))
    parts = [path.read_text() for path in sources]
    parts += [*FLAGS, str(compiler), str(stat.st_mtime_ns), str(stat.st_size), _processor()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    target = _cache_folder() / f"native-{DTYPES[dtype]}-{digest}.so"
    if not target.exists():
        x86 = platform.machine() in ("x86_64", "AMD64", "i686")
        try:
            build(target, dtype, tune=("-march=native" if x86 else "-mcpu=native",))
        except NoLibraryError:  # a compiler that does not know this processor
            build(target, dtype, tune=())
    return target


def _compiler() -> str:
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for name in names:
        if path := shutil.which(name):
            return path
    raise NoLibraryError(f"no C compiler found (looked for {', '.join(names)})")


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
    return found
