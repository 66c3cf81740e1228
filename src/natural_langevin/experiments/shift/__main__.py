"""``python -m natural_langevin.experiments.shift``: the command, with torch and numpy alone."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from natural_langevin import data as datasets
from natural_langevin.experiments.shift.methods import METHODS, Settings
from natural_langevin.experiments.shift.run import run


def main(arguments: list[str] | None = None) -> None:
    """The options of ``natural-langevin shift``."""
    parser = argparse.ArgumentParser(prog="python -m natural_langevin.experiments.shift")
    parser.add_argument("methods", nargs="*", help=f"{', '.join(METHODS)} [default: all]")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir")
    parser.add_argument("--foreign", nargs="*", default=["shuffled"])
    parser.add_argument("--hidden", nargs="*", type=int, default=[400, 400])
    parser.add_argument("--out", type=Path, default=Path("shift.json"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("steps", "chains", "images", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    asked = parser.parse_args(arguments)
    settings = Settings(
        steps=asked.steps, chains=asked.chains, images=asked.images, seed=asked.seed,
        hidden=tuple(asked.hidden),
    )  # fmt: skip
    run(
        datasets.load(asked.data, data_dir=asked.data_dir), asked.out, settings=settings,
        foreign=asked.foreign, names=asked.methods or tuple(METHODS), data_dir=asked.data_dir,
        device=asked.device, say=lambda line: print(line, flush=True),
    )  # fmt: skip


if __name__ == "__main__":
    main()
