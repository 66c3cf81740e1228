"""Posteriors of Stan's reference collection, for every metric, full batch and minibatch.

    python benchmarks/posteriordb.py [--models arK sblrc] [--metrics FullFisher] [--seconds 500]
    python benchmarks/posteriordb.py --seconds 0 --page docs/trust.md    # the table alone

The models, data and references are those of tests/law/posteriordb. Every cell is one run at the
defaults (``Langevin(network, likelihood, prior=...).sample(data)``, see docs/defaults.md) but for
the metric, the number of chains and the minibatch, which is all data or a quarter of them: the
dynamics, the step size, the length and the burn-in are the recipe's. "default" leaves the metric
open too. Means are compared in reference standard deviations, standard deviations as ratios, each
with its Monte-Carlo error. A cell that is written already is not run again, so that the table can
be made in pieces.

``passed``: means within .1 sd and sds within 5 %, beyond three Monte-Carlo errors.
``within``: the smallest share of a quantity's variance that is within chains. Far below 1, chains
have not explored in time, and a failure says that and not that the metric is biased: a diagonal
metric needs as many steps more as weights are correlated. ``verdicts``: what the run says itself.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "law"))

from posteriordb_models import MODELS, at_the_defaults  # noqa: E402

from natural_langevin import __version__  # noqa: E402
from natural_langevin._internal.pages import with_part  # noqa: E402
from natural_langevin.experiments.origin import origin  # noqa: E402

METRICS = [
    "default", "DiagonalFisher", "UnitFisher", "FullFisher", "KroneckerFisher", "RMSProp",
    "Euclidean",
]  # fmt: skip
BATCHES = {"all": 1, "quarter": 4}


def cell(name: str, metric: str, batch: str, chains: int, steps: int | None) -> dict[str, Any]:
    """One run, and how far it is from the reference."""
    start = time.perf_counter()
    model, posterior = at_the_defaults(
        name, metric, chains=chains, parts=BATCHES[batch], steps=steps
    )
    seconds = time.perf_counter() - start
    config, healthy = posterior.config, posterior.healthy
    row = {
        "model": name, "metric": metric, "batch": batch, "rows": config["batch_size"],
        "step_size": config["recipe"]["step_size"], "curvature": config["recipe"]["curvature"],
        "steps": config["steps"], "burn_in": config["burn_in"], "chains": chains,
        "healthy": len(healthy), "seconds": round(seconds, 1),
    }  # fmt: skip
    kept = {k: v[healthy] for k, v in posterior.samples.items()}
    found = model.errors(kept)
    within = {
        k: float((v.double().var(1).mean(0) / v.double().flatten(0, 1).var(0)).min())
        for k, v in model.quantities(kept).items()
    }
    return row | {
        "quantities": {k: e._asdict() for k, e in found.items()},
        "mean": max(abs(e.mean) for e in found.values()),
        "mean_error": max(e.mean_error for e in found.values()),
        "sd": max(abs(e.sd) for e in found.values()),
        "sd_error": max(e.sd_error for e in found.values()),
        "within": min(within.values()),
        "verdicts": posterior.diagnose(model.x).verdicts,
        "passed": len(healthy) == chains and all(
            abs(e.mean) < 0.1 + 3 * e.mean_error and abs(e.sd) < 0.05 + 3 * e.sd_error
            for e in found.values()
        ),
    }  # fmt: skip


def table(cells: list[dict[str, Any]]) -> str:
    """Models and batches by metric: the largest error of a mean, in sd, and that of an sd."""
    names = ["default" if m == "default" else f"`{m}`" for m in METRICS]
    lines = ["| model, batch | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    known = {(c["model"], c["batch"], c["metric"]): c for c in cells}
    for name in MODELS:
        for batch in BATCHES:
            row = [known.get((name, batch, metric)) for metric in METRICS]
            if any(row):
                lines.append(f"| {name}, {batch} | " + " | ".join(map(_shown, row)) + " |")
    return "\n".join(lines) + "\n"


def _shown(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if "error" in found:
        return "chains run away" if "non-finite" in found["error"] else "refused"
    if found["healthy"] < found["chains"]:
        return f"{found['chains'] - found['healthy']} of {found['chains']} chains diverge"
    text = f"{found['mean']:.2f} ± {found['mean_error']:.2f}, {100 * found['sd']:.1f} %"
    said = ", said" if found["verdicts"] else ""
    return text if found["passed"] else f"**{text}** ({found['within']:.2f} within{said})"


def main() -> None:
    """Runs the cells that are missing, and writes after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "posteriordb.json")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--batches", nargs="*", default=list(BATCHES))
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--steps", type=int, help="in place of the recipe's length")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--page", type=Path, help="a page whose table is to be replaced")
    options = parser.parse_args()
    _run(options)
    if options.page is not None:
        cells = json.loads(options.out.read_text())["cells"]
        page = options.page.read_text(encoding="utf-8")
        page = with_part(page, "posteriordb", table(cells).rstrip("\n"))
        options.page.write_text(page, encoding="utf-8")


def _run(options: argparse.Namespace) -> None:
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    known = json.loads(options.out.read_text()) if options.out.exists() else {"cells": []}
    done = {(c["model"], c["metric"], c["batch"]) for c in known["cells"]}
    begin = time.monotonic()
    for metric in options.metrics:
        for batch in options.batches:
            for name in options.models:
                few = name == "eight schools" and batch != "all"  # eight data
                if (name, metric, batch) in done or few:
                    continue
                if time.monotonic() - begin >= options.seconds:
                    return
                try:
                    row = cell(name, metric, batch, options.chains, options.steps)
                except Exception as error:  # a metric that does not fit a model is a result too
                    row = {"model": name, "metric": metric, "batch": batch, "error": str(error)}
                print({k: v for k, v in row.items() if k != "quantities"}, flush=True)
                known["cells"].append(row)
                known |= {"version": __version__, "origin": origin("cpu")}
                options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
