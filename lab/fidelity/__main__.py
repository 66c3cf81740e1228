"""``python -m lab.fidelity``: how far samplers are from Hamiltonian Monte Carlo on CIFAR-10."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from lab import command
from lab.fidelity import shifted, table
from lab.fidelity.chain import Settings
from lab.fidelity.contenders import CONTENDERS
from lab.fidelity.problem import FOREIGN, cifar, synthetic
from lab.fidelity.run import run
from lab.shift import table as shift_table

ABOUT = """ResNet-20 on CIFAR-10 at T = 1, held against HMC's published predictions at equal time.
A deep ensemble and MC dropout of equal cost stand beside; step sizes are chosen on held-out
training images."""


def main(words: list[str] | None = None) -> None:
    """Runs what is asked for and not done, and shows the table."""
    parser = command.options("fidelity", ABOUT, out="fidelity.json")
    parser.add_argument("contenders", nargs="*", help=f"{', '.join(CONTENDERS)} [default: all]")
    parser.add_argument("--data", help="folder of CIFAR-10's binary files, or 'synthetic'")
    for name, about in (("seconds", "of every sampler"), ("pilot", "of every step size tried")):
        parser.add_argument(
            f"--{name}",
            type=command.seconds,
            default=getattr(Settings, name),
            help=f"seconds {about}",
        )
    whole = {"chains": 1, "batch_size": 1, "looks": 1, "width": 1, "seed": 0, "shift": 0}
    for name, low in whole.items():
        option, default = f"--{name.replace('_', '-')}", getattr(Settings, name)
        parser.add_argument(option, type=command.at_least(low), default=default)
    parser.add_argument("--depth", type=depth, default=Settings.depth, help="20 is HMC's")
    parser.add_argument("--foreign", nargs="*", default=[], help=f"{', '.join(FOREIGN)}")
    parser.add_argument("--shift-page", type=Path, help="a page whose table of shifts to replace")
    parser.add_argument("--shift-plot", type=Path, help="draw a picture of shifts")
    given = vars(parser.parse_args(words))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    names, data, out, foreign = (given.pop(k) for k in ("contenders", "data", "out", "foreign"))
    pages = [(given.pop(f"{k}page"), given.pop(f"{k}plot")) for k in ("", "shift_")]

    def ran() -> None:
        settings = Settings(**given)
        problem = synthetic() if data == "synthetic" else cifar(data, foreign=foreign)
        results = run(
            problem, out, settings=settings, names=names or tuple(CONTENDERS), say=command.say
        )
        command.publish(table, results, *pages[0])
        command.publish(shifted, results, *pages[1])
        command.show(table.COLUMNS, table.rows(results))
        if settings.shift:
            found = shifted.as_results(results)
            command.show(shift_table.columns(found), shift_table.rows(found))

    command.guarded(ran)


def depth(text: str) -> int:
    """The type of --depth."""
    if not text.isdigit() or int(text) < 8 or int(text) % 6 != 2:
        raise argparse.ArgumentTypeError(f"must be 6 n + 2 (8, 14, 20, ...), got {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
