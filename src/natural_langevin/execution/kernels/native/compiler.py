"""The C compiler at work. Needs nothing but Python: ``setup.py`` loads this file on its own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
#: Strict about NaN and the order of sums; a loop whose sum may be reordered says so itself.
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-fopenmp-simd",
)  # fmt: skip
X86 = platform.machine() in ("x86_64", "AMD64")
#: For the processor at hand, and for every one that a wheel may meet (on x86: with AVX2).
OWN = ("-march=native",) if X86 else ("-mcpu=native",)
PORTABLE = ("-march=x86-64-v3",) if X86 else ()


class NoLibraryError(RuntimeError):
    """There is no library, and why."""


def find_compiler() -> Path:
    """``$CC``, else cc, gcc or clang."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for name in names:
        if path := shutil.which(name):
            return Path(path)
    raise NoLibraryError(f"no C compiler found (looked for {', '.join(names)})")


def build(target: Path, dtype: str, *, tune: tuple[str, ...]) -> None:
    """Compiles the sources into ``target`` for "float32" or "float64".

    An error tells the compiler's own words."""
    define = ["-DDOUBLE"] * (dtype == "float64")
    command = [str(find_compiler()), *FLAGS, *tune, *define, str(HERE / "engine.c")]
    found = subprocess.run(
        [*command, "-o", str(target), "-lm"], stdin=subprocess.DEVNULL,
        capture_output=True, check=False,
    )  # fmt: skip
    if found.returncode:
        said = found.stderr.decode(errors="replace").splitlines()
        raise NoLibraryError(f"{command[0]}: {next((s for s in said if 'error' in s), 'failed')}")


def prebuilt_name(dtype: str) -> str:
    """What the library of a wheel is called."""
    return f"prebuilt-{platform.machine()}-{dtype}.so"
