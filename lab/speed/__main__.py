"""``python -m lab.speed``: torch, numpy and safetensors are enough (and jax, for its rows)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from lab.speed.command import measure_and_show
from lab.speed.settings import BenchError, Settings


def main(words: list[str] | None = None) -> None:
    """What to measure, as ``Settings`` has it."""
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
    settings = Settings(**given)
    try:
        measure_and_show(settings, out=out, picture=out.with_suffix(".png"))
    except BenchError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
