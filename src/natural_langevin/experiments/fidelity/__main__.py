"""``python -m natural_langevin.experiments.fidelity``: the command, with torch and numpy alone."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import torch

from natural_langevin.experiments.fidelity.chain import Settings
from natural_langevin.experiments.fidelity.contenders import CONTENDERS
from natural_langevin.experiments.fidelity.problem import FOREIGN, cifar, synthetic
from natural_langevin.experiments.fidelity.run import run


def main(arguments: list[str] | None = None) -> None:
    """The options of ``natural-langevin fidelity``."""
    parser = argparse.ArgumentParser(prog="python -m natural_langevin.experiments.fidelity")
    parser.add_argument("contenders", nargs="*", help=f"{', '.join(CONTENDERS)} [default: all]")
    parser.add_argument("--data", help="folder of CIFAR-10's binary files, or 'synthetic'")
    parser.add_argument("--out", type=Path, default=Path("fidelity.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("seconds", "pilot"):
        parser.add_argument(f"--{name}", type=float, default=getattr(Settings, name))
    for name in ("chains", "batch_size", "looks", "depth", "width", "seed", "shift"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, dest=name, type=int, default=getattr(Settings, name))
    parser.add_argument("--foreign", nargs="*", default=[], help=f"{', '.join(FOREIGN)}")
    given = vars(parser.parse_args(arguments))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    names, data, out = given.pop("contenders"), given.pop("data"), given.pop("out")
    foreign = given.pop("foreign")
    problem = synthetic() if data == "synthetic" else cifar(data, foreign=foreign)
    run(
        problem, out, settings=Settings(**given), names=names or tuple(CONTENDERS),
        say=lambda line: print(line, flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    main()
