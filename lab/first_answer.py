"""How long README's first example takes, from the start of Python to the printed answer.

    python -m lab.first_answer [repeats] [source folders ...]

Every source folder (this repository's by default) in turn, as often as asked for, each time in a
process of its own: medians and least of the wall seconds to the answer and to the process's end,
and of its CPU-seconds. Compare two states of the sources by two folders; one that was never
imported compiles its modules first.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def example() -> str:
    """The first block of code in README, which prints what it predicts."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1) + "\nprint(p.mean[0].tolist(), flush=True)\n"


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def once(code: str, folder: str) -> tuple[float, float, float]:
    """Seconds to the answer and to the end, and CPU-seconds."""
    before, began = cpu_seconds(), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": folder},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        answered = time.perf_counter() - began
    if not said:
        raise RuntimeError(f"no answer with the sources in {folder}")
    return answered, time.perf_counter() - began, cpu_seconds() - before


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    folders = sys.argv[2:] or [str(ROOT / "src")]
    code, found = example(), {folder: [] for folder in folders}
    for _ in range(repeats):
        for folder in folders:
            found[folder].append(once(code, folder))
    for folder, rows in found.items():
        columns = list(zip(*rows, strict=True))
        for name, values in zip(("answer", "end", "CPU"), columns, strict=True):
            print(f"{folder}: {name} {statistics.median(values):.2f} s, least {min(values):.2f}")


if __name__ == "__main__":
    main()
