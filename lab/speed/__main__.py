"""``python -m lab.speed``: torch, numpy and safetensors are enough (and jax, for its rows)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from lab.speed.plot import plot
from lab.speed.run import run
from lab.speed.settings import BenchError, Settings
from lab.speed.show import plain


def main(words: list[str] | None = None) -> None:
    """What to measure, as ``Settings`` has it: results to --out after every section, tables to the
    terminal, and a picture of them beside --out."""
    parser = argparse.ArgumentParser(prog="python -m lab.speed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    for name in ("--sections", "--networks", "--only"):
        parser.add_argument(name, nargs="+", default=[])
    parser.add_argument("--chains", nargs="+", type=int, default=[])
    for name in ("--repeats", "--threads", "--seed"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--precision", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    given: dict[str, Any] = vars(parser.parse_args(words))
    out = given.pop("out")
    for name in ("sections", "networks", "only", "chains"):
        given[name] = tuple(given[name])
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", file=sys.stderr, flush=True)

    try:
        results = run(Settings(**given), out=out, say=say)
        print(plain(results), out, plot(results, out.with_suffix(".png")), sep="\n")
    except BenchError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
