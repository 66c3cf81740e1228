"""Which sampler? Cost, bias, effective samples and distance to the exact law, dynamics by metric.

    OMP_NUM_THREADS=1 python -m lab.samplers [--seconds 500] [--metrics FullFisher]
    python -m lab.samplers --seconds 0 --page lab/notes/samplers.md     # the table alone

or in pieces, each a process with a file of its own in a folder (a piece that was stopped goes on;
the last line makes one file and the page of them):

    export OMP_NUM_THREADS=1
    python -m lab.samplers --folder cells --references moons wave
    python -m lab.samplers --list | xargs -P 16 -L 1 python -m lab.samplers \\
        --folder cells --piece
    python -m lab.samplers --folder cells --merge --page lab/notes/samplers.md

The reference itself is held against NUTS (blackjax), whose predictions are in results/nuts; they
are made by --folder cells --nuts moons, and --nuts wave (seconds a chain). After --merge,
--folder cells --smaller adds how wide predictions are at smaller steps; --page is filled last.

What is measured, and how: ``sampler_problems`` and ``sampler_cells``; the page: ``sampler_page``.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import torch

from lab.samplers.cells import CORRECTED, DYNAMICS, METRICS, PARTS, cells, finite, smaller
from lab.samplers.nuts import ROOT, against_nuts, nuts_file, run_nuts
from lab.samplers.page import filled
from lab.samplers.problems import BURN_IN, CHAINS, PROBLEMS, SEED, STEEPNESS, STORED, reference
from natural_langevin.cli.experiments.origin import origin


def pieces() -> list[tuple[str, str]]:
    """(metric, kind), the longest first; a step's cost is read last, when others are done."""
    slow = [m for m in METRICS if m not in ("Euclidean", "RMSProp")][::-1]
    order = [*slow, *(m for m in METRICS if m not in slow)]
    return [(m, k) for k in ("wave", "moons", "line", "heat", "cost") for m in order]


def measure(
    out: Path, metrics: list[str], dynamics: list[str], kinds: list[str], seconds: float
) -> dict[str, Any]:
    """Runs the cells that are missing in ``out``, and writes after each."""
    known = json.loads(out.read_text()) if out.exists() else {"cells": []}
    done = {(c["kind"], c["dynamics"], c["metric"]) for c in known["cells"]}
    begin, here = time.process_time(), origin("cpu")
    for kind, name, metric, how in cells(metrics):
        wanted = kind in kinds and name in dynamics
        if (kind, name, metric) in done or not wanted:
            continue
        if time.process_time() - begin >= seconds:
            break
        row = {"kind": kind, "dynamics": name, "metric": metric}
        try:
            row |= how()
        except (ValueError, TypeError, torch.linalg.LinAlgError) as error:
            row["error"] = f"{type(error).__name__}: {error}"
        row = finite(row)
        print(json.dumps(row), flush=True)
        known["cells"].append(row)
        known |= {
            "origin": here, "seed": SEED, "chains": CHAINS, "burn_in": BURN_IN,
            "steepness": STEEPNESS, "parts": PARTS,
        }  # fmt: skip
        out.write_text(json.dumps(known, indent=1) + "\n")
    print("CPU-seconds", time.process_time() - begin)
    return known


def merged(folder: Path) -> dict[str, Any]:
    """The files of all pieces as one."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if not found:
        raise SystemExit(f"no pieces in {folder}: run --piece METRIC KIND first")
    known = {**found[0], "cells": [cell for one in found for cell in one["cells"]]}
    exact_ones = [name for name in ("moons", "wave") if nuts_file(name).exists()]
    return known | {"nuts": [against_nuts(name) for name in exact_ones]}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "samplers.json")
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--dynamics", nargs="*", default=[*DYNAMICS, *CORRECTED])
    parser.add_argument("--kinds", nargs="*", default=[*PROBLEMS, "cost", "heat"])
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so much CPU")
    parser.add_argument("--page", type=Path, help="a page whose table is to be replaced")
    parser.add_argument("--folder", type=Path, help="of the pieces' files, and of references")
    parser.add_argument("--list", action="store_true", help="prints the pieces, one a line")
    parser.add_argument(
        "--references", nargs="+", choices=("moons", "wave"), help="makes them for all pieces"
    )
    parser.add_argument("--piece", nargs=2, metavar=("METRIC", "KIND"))
    parser.add_argument("--nuts", choices=("moons", "wave"), help="runs NUTS on a problem")
    parser.add_argument("--chain", type=int, help="of NUTS: this one alone")
    parser.add_argument("--smaller", action="store_true", help="tries smaller steps on networks")
    parser.add_argument("--merge", action="store_true", help="makes --out of the pieces")
    return parser


def main() -> None:
    """Runs the cells that are missing, and fills the page."""
    parser = arguments()
    options = parser.parse_args()
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        STORED.append(options.folder)
    elif options.references or options.piece or options.merge or options.nuts or options.smaller:
        parser.error("pieces need --folder")
    if options.list:
        print("\n".join(" ".join(piece) for piece in pieces()))
        return
    if options.nuts:
        run_nuts(options.nuts, options.folder, options.chain)
        return
    if options.smaller:
        known = json.loads(options.out.read_text()) | {"smaller": smaller()}
        options.out.write_text(json.dumps(known, indent=1) + "\n")
        return
    if options.references:
        for name in options.references:
            found = reference(name)
            print(name, "ess", found["ess"], "rhat", found["rhat"], flush=True)
        return
    if options.piece:
        metric, kind = options.piece
        file = options.folder / f"{metric}-{kind}.json"
        measure(file, [metric], options.dynamics, [kind], options.seconds)
        return
    if options.merge:
        known = merged(options.folder)
        options.out.write_text(json.dumps(known, indent=1) + "\n")
    else:
        known = measure(
            options.out, options.metrics, options.dynamics, options.kinds, options.seconds
        )
    if options.page is not None:
        rows = json.loads((ROOT / "results" / "integrator-order.json").read_text())["rows"]
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled(page, known, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
