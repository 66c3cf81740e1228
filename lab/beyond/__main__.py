"""``python -m lab.beyond``: the table, where typer is not installed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from lab.beyond.parts import PARTS
from lab.beyond.problems import problem
from lab.beyond.protocol import TOY, Protocol
from lab.beyond.run import BeyondError, page_table, run
from lab.pages import fill
from natural_langevin.data import DataError


def arguments() -> argparse.ArgumentParser:
    """What can be said on the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.beyond")
    parser.add_argument(
        "--dataset", default="mnist", help="mnist, fashion-mnist, digits, or a table's NPZ file"
    )
    parser.add_argument("--data", help="folder with the data set's files")
    parser.add_argument("--out", type=Path, required=True, help="the results, a JSON file")
    parser.add_argument("--work", type=Path, help="folder of parts under way [beside --out]")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help='PART or PART=SECONDS, separated by commas ("": the table alone), of '
        + ", ".join(PARTS),
    )
    parser.add_argument(
        "--seconds", type=float, help="of every part that says none [default: its own on CUDA]"
    )
    parser.add_argument("--compile", default="auto", choices=("auto", "true", "false"))
    parser.add_argument("--precision", default="high", choices=("high", "highest"))
    parser.add_argument("--toy", action="store_true", help="all sizes as small as they can be")
    parser.add_argument("--hidden", type=int, help="units of both hidden layers")
    parser.add_argument("--steps", type=int, help="updates of the final parts; searches take half")
    parser.add_argument("--batch", type=int, help="images of a minibatch [100]")
    parser.add_argument("--not-mixed", action="store_true", help="the chosen length alone")
    parser.add_argument("--page", type=Path, help="a page with markers named after --out")
    parser.add_argument("--searches", type=Path, help="results whose first searches are taken over")
    parser.add_argument("--adapt", default="always", choices=("burn-in", "always"))
    return parser


def chosen_parts(text: str, seconds: float | None, device: str) -> dict[str, float]:
    """``select=30,final`` as seconds by part."""
    found = {}
    for item in filter(None, text.split(",")):
        name, _, limit = item.partition("=")
        if name not in PARTS:
            raise BeyondError(f"unknown part {name!r}: use some of {', '.join(PARTS)}")
        usual = PARTS[name].seconds if device.startswith("cuda") else float("inf")
        found[name] = float(limit) if limit else (seconds or usual)
    return found


def main(given: list[str] | None = None) -> int:
    """Runs what is asked for, and prints the rows so far."""
    options = arguments().parse_args(given)
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", file=sys.stderr, flush=True)

    protocol = TOY if options.toy else Protocol()
    if options.hidden:
        protocol = replace(protocol, hidden=(options.hidden, options.hidden))
    if options.batch:
        protocol = replace(protocol, batch_size=options.batch)
    if options.steps:
        protocol = protocol.shortened(options.steps)
    protocol = replace(protocol, adapt=options.adapt, mixed=not options.not_mixed)
    modes: dict[str, bool | str] = {"auto": "auto", "true": True, "false": False}
    try:
        parts = chosen_parts(options.parts, options.seconds, options.device)
        if parts:
            dataset, protocol = problem(options.dataset, protocol, data_dir=options.data)
            results = run(
                dataset, options.out, work=options.work, protocol=protocol, parts=parts,
                device=options.device, compile=modes[options.compile],
                precision=options.precision, searches=options.searches, say=say,
            )  # fmt: skip
        else:  # what is there, whatever its settings were
            results = json.loads(options.out.read_text(encoding="utf-8"))
    except (BeyondError, DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page_table(results))
    if options.page is not None:
        fill(options.page, options.out.stem, page_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
