"""``python -m natural_langevin.experiments.speed``: no packages of the command line needed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from natural_langevin.experiments.speed.plot import plot
from natural_langevin.experiments.speed.problems import NETWORKS
from natural_langevin.experiments.speed.run import run
from natural_langevin.experiments.speed.settings import SECTIONS, BenchError, Settings
from natural_langevin.experiments.speed.show import show


def main(words: list[str] | None = None) -> int:
    """Measure what the words ask for and write it down; the exit status."""
    given = parser().parse_args(words)
    settings = Settings(
        device=given.device,
        chains=tuple(given.chains),
        repeats=given.repeats,
        quick=given.quick,
        sections=tuple(given.sections),
        networks=tuple(given.networks),
        only=tuple(given.only),
        compile=given.compile,
        precision=given.precision,
        seed=given.seed,
        threads=given.threads,
    )
    try:
        measure_and_show(settings, out=given.out, picture=given.plot)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


def measure_and_show(settings: Settings, *, out: Path | None, picture: Path | None) -> None:
    """What both command lines do."""
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", file=sys.stderr, flush=True)

    results = run(settings, out=out, say=say)
    show(results)
    if out is not None:
        print(out)
    if picture is not None:
        print(plot(results, picture))


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    found = argparse.ArgumentParser(
        prog="python -m natural_langevin.experiments.speed", description=__doc__
    )
    add = found.add_argument
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--chains", type=int, nargs="*", default=[], help="chain counts (default: the device's)")
    add("--out", type=Path, help="the JSON, written after every section")
    add("--plot", type=Path, help="a picture of the ratios (needs matplotlib)")
    add("--quick", action="store_true", help="under a minute: one chain, the paper's network")
    add("--repeats", type=int, default=0, help="interleaved repeats")
    add("--sections", nargs="*", default=[], help=f"some of: {', '.join(SECTIONS)}")
    add("--networks", nargs="*", default=[], help=f"some of: {', '.join(NETWORKS)}")
    add("--only", nargs="*", default=[], help="contenders whose name holds one of these words")
    add("--no-compile", dest="compile", action="store_false", help="nothing under torch.compile")
    add("--precision", default="", help="highest, or high (TF32; the default on CUDA)")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=0, help="default: all cores")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
