"""Measure, print and draw: what ``python -m lab.speed`` does. Needs torch and numpy alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from lab.speed.plot import plot
from lab.speed.run import run
from lab.speed.settings import Settings
from lab.speed.show import show


def measure_and_show(settings: Settings, *, out: Path | None, picture: Path | None) -> None:
    """Results to ``out`` after every section, ratios to the terminal, and a picture of them."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", file=sys.stderr, flush=True)

    results = run(settings, out=out, say=say)
    show(results)
    if out is not None:
        print(out)
    if picture is not None:
        print(plot(results, picture))
