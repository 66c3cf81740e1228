"""Which sampler? Cost, bias, effective samples and distance to the exact law, dynamics by metric.

    OMP_NUM_THREADS=1 python -m lab.samplers [--jobs 16] [--seconds 500] [--metrics FullFisher]
    python -m lab.samplers --seconds 0 --page lab/notes/samplers.md     # the tables alone

The reference itself is held against NUTS (blackjax), whose predictions are in results/nuts; they
are made by --folder nuts --nuts moons, and --nuts wave (seconds a chain). ``--smaller`` adds how
wide predictions are at smaller steps.

What is measured, and how: ``problems`` and ``cells``; the page: ``page``.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.command import study
from lab.results import complete, write_results
from lab.samplers.cells import CORRECTED, DYNAMICS, METRICS, PARTS, cells, measured, smaller
from lab.samplers.nuts import ROOT, against_nuts, nuts_file, run_nuts
from lab.samplers.page import filled
from lab.samplers.problems import BURN_IN, CHAINS, PROBLEMS, SEED, STEEPNESS, reference, store_in

NETWORKS = ("moons", "wave")
SETTINGS = {
    "seed": SEED, "chains": CHAINS, "burn_in": BURN_IN, "steepness": STEEPNESS, "parts": PARTS,
}  # fmt: skip


def run(options: Any, folder: Path) -> None:
    """Runs the cells that are missing, and fills the page; references are in ``folder``."""
    store_in(folder)
    if options.nuts:
        run_nuts(options.nuts, folder, options.chain)
    items = [
        item
        for item in cells()
        if all(v in some for v, some in zip(item, (options.kinds, options.dynamics,
                                                   options.metrics), strict=True))
    ]  # fmt: skip
    if options.jobs > 1:
        for name in NETWORKS:  # once, and not in every process
            reference(name)
    results = complete(
        options.out, SETTINGS, items, partial(measured, folder=folder),
        by=("kind", "dynamics", "metric"), jobs=options.jobs, seconds=options.seconds,
    )  # fmt: skip
    if options.smaller:
        results["smaller"] = smaller()
    if options.nuts:
        results["nuts"] = [against_nuts(name) for name in NETWORKS if nuts_file(name).exists()]
    write_results(options.out, results)
    if options.page is not None:
        rows = json.loads((ROOT / "results" / "integrator-order.json").read_text())["rows"]
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled(page, results, rows), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = study(__doc__, str(ROOT / "results" / "samplers.json"), jobs="cells")
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--dynamics", nargs="*", default=[*DYNAMICS, *CORRECTED])
    parser.add_argument("--kinds", nargs="*", default=[*PROBLEMS, "cost", "heat"])
    parser.add_argument("--seconds", type=float, default=math.inf, help="no cell begins later")
    parser.add_argument("--page", type=Path, help="a page whose table is to be replaced")
    parser.add_argument("--folder", type=Path, help="of references, and of NUTS's chains")
    parser.add_argument("--nuts", choices=NETWORKS, help="runs NUTS on a problem")
    parser.add_argument("--chain", type=int, help="of NUTS: this one alone")
    parser.add_argument("--smaller", action="store_true", help="tries smaller steps on networks")
    options = parser.parse_args()
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        run(options, options.folder or Path(scratch))


if __name__ == "__main__":
    main()
