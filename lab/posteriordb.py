"""Posteriors of Stan's reference collection, for every metric, full batch and minibatch.

    python -m lab.posteriordb [--models arK sblrc] [--metrics FullFisher] [--seconds 500]
    python -m lab.posteriordb --list | xargs -P 16 -L 1 \
        python -m lab.posteriordb --folder cells --only    # every cell a process of its own
    python -m lab.posteriordb --merge cells                # one file of them
    python -m lab.posteriordb --seconds 0 --page lab/notes/reference_posteriors.md  # its table

The models, data and references are those of tests/law/posteriordb. Every cell is one run at the
defaults (``Langevin(network, likelihood, prior=...).sample(data)``, see docs/defaults.md) but for
the metric, the number of chains and the minibatch, which is all data or a quarter of them: the
dynamics, the step size, the length and the burn-in are the recipe's. "default" leaves the metric
open too. Means are compared in reference standard deviations, standard deviations as ratios, each
with its Monte-Carlo error. A cell that is written already is not run again, so that the table can
be made in pieces: in one file, or with ``--folder`` in one per cell. Verdicts need ArviZ; where it
is not installed a cell's draws are kept in the folder, and ``--merge`` asks for them.

``passed``: means within .1 sd and sds within 5 %, beyond three Monte-Carlo errors.
``within``: the smallest share of a quantity's variance that is within chains. Far below 1, chains
have not explored in time, and a failure says that and not that the metric is biased: a diagonal
metric needs as many steps more as weights are correlated. ``verdicts``: what the run says itself.
``claimed``: the run was as long as its slowest direction needs, 60 of its relaxation times, unless
the recipe's cap ended it before, of which it warns.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "law"))

from posteriordb_models import MODELS, Model, at_the_defaults, load  # noqa: E402

from lab.pages import with_part  # noqa: E402
from natural_langevin import Posterior, __version__  # noqa: E402
from natural_langevin.cli.experiments.origin import origin  # noqa: E402
from natural_langevin.recipe.settings import Settings  # noqa: E402

METRICS = [
    "default", "QuasiDiagonalFisher", "DiagonalFisher", "UnitFisher", "FullFisher",
    "KroneckerFisher", "RMSProp", "Euclidean",
]  # fmt: skip
SLOWEST = ["Euclidean", "RMSProp", "DiagonalFisher", "KroneckerFisher"]  # in this order
BATCHES = {"all": 1, "quarter": 4}


def cell(
    name: str, metric: str, batch: str, chains: int, steps: int | None, folder: Path | None = None
) -> dict[str, Any]:
    """One run, and how far it is from the reference. ``folder``: for its draws, where nothing here
    can judge them."""
    start = time.perf_counter()
    model, posterior = at_the_defaults(
        name, metric, chains=chains, parts=BATCHES[batch], steps=steps
    )
    seconds = time.perf_counter() - start
    config, plan, healthy = posterior.config, posterior.plan, posterior.healthy
    row = {
        "model": name, "metric": metric, "batch": batch, "rows": config["batch_size"],
        "step_size": plan.step_size, "friction": plan.friction,
        **{k: plan.measured[k] for k in ("curvature", "slowest", "relaxation")},
        "steps": config["steps"], "burn_in": config["burn_in"], "chains": chains,
        "healthy": len(healthy), "seconds": round(seconds, 1),
    }  # fmt: skip
    kept = {k: v[healthy] for k, v in posterior.samples.items()}
    found = model.errors(kept)
    within = {
        k: float((v.double().var(1).mean(0) / v.double().flatten(0, 1).var(0)).min())
        for k, v in model.quantities(kept).items()
    }
    tau = row["relaxation"]
    return row | {
        "claimed": tau is None or row["steps"] >= Settings().step_size.relaxations * tau,
        "quantities": {k: e._asdict() for k, e in found.items()},
        "mean": max(abs(e.mean) for e in found.values()),
        "mean_error": max(e.mean_error for e in found.values()),
        "sd": max(abs(e.sd) for e in found.values()),
        "sd_error": max(e.sd_error for e in found.values()),
        "within": min(within.values()),
        "verdicts": _verdicts(model, posterior, folder),
        "passed": len(healthy) == chains and all(
            abs(e.mean) < 0.1 + 3 * e.mean_error and abs(e.sd) < 0.05 + 3 * e.sd_error
            for e in found.values()
        ),
    }  # fmt: skip


def _verdicts(model: Model, posterior: Posterior, folder: Path | None) -> list[str] | None:
    """What the run says of itself; None where ArviZ is missing and its draws wait in ``folder``."""
    try:
        return posterior.diagnose(model.x).verdicts
    except ImportError:
        if folder is None:
            raise
        posterior.save(folder)
        return None


def merged(folder: Path) -> dict[str, Any]:
    """The cells of a folder, with the verdicts that were left open. The origin is that of most of
    them; cells of another commit or machine carry their own."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    origins = [one["origin"] for one in found]
    usual = max(origins, key=origins.count)
    cells = []
    for one in found:
        (row,) = one["cells"]
        if row.get("verdicts", []) is None:
            model = load(row["model"], at_mode=False)
            posterior = Posterior.load(folder / _file(row), model.network)
            row["verdicts"] = posterior.diagnose(model.x).verdicts
        cells.append(row if one["origin"] == usual else row | {"origin": one["origin"]})
    order = [(m, b, n) for m in METRICS for b in BATCHES for n in MODELS]
    cells.sort(key=lambda c: order.index((c["metric"], c["batch"], c["model"])))
    if usual["commit"] is None:  # a copy of the tree without its history
        usual = usual | {"commit": origin("cpu")["commit"]}
    return {"cells": cells, "version": found[0]["version"], "origin": usual}


def _file(row: dict[str, Any]) -> str:
    return f"{row['metric']}-{row['batch']}-{row['model']}".replace(" ", "_")


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
    if not found.get("claimed", True):
        times = found["steps"] / found["relaxation"]
        return f"{text} (not claimed: {times:.0f} relaxation times)"
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
    parser.add_argument("--folder", type=Path, help="one file per cell, in this folder")
    parser.add_argument("--only", nargs=3, metavar=("METRIC", "BATCH", "MODEL"), help="one cell")
    parser.add_argument("--list", action="store_true", help="name all cells, the longest first")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="make --out of its cells")
    options = parser.parse_args()
    if options.only:
        options.metrics, options.batches, options.models = ([v] for v in options.only)
    if options.list:
        rank = {metric: n for n, metric in enumerate(SLOWEST)}
        longest = sorted(_cells(options), key=lambda c: (rank.get(c[0], len(rank)), c[1] == "all"))
        print("\n".join(f"{metric} {batch} '{name}'" for metric, batch, name in longest))
        return
    if options.merge:
        options.out.write_text(json.dumps(merged(options.merge), indent=1) + "\n")
    elif options.seconds > 0:
        _run(options)
    if options.page is not None:
        cells = json.loads(options.out.read_text())["cells"]
        page = options.page.read_text(encoding="utf-8")
        page = with_part(page, "posteriordb", table(cells).rstrip("\n"))
        options.page.write_text(page, encoding="utf-8")


def _cells(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    return [
        (metric, batch, name)
        for metric in options.metrics
        for batch in options.batches
        for name in options.models
        if batch == "all" or name != "eight schools"  # eight data
    ]


def _run(options: argparse.Namespace) -> None:
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # cells, not threads, are what runs side by side
    begin = time.monotonic()
    for metric, batch, name in _cells(options):
        row = {"model": name, "metric": metric, "batch": batch}
        out, draws = options.out, None
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            draws = options.folder / _file(row)
            out = draws.with_suffix(".json")
        known = json.loads(out.read_text()) if out.exists() else {"cells": []}
        if any(all(c[k] == v for k, v in row.items()) for c in known["cells"]):
            continue
        if time.monotonic() - begin >= options.seconds:
            return
        try:
            row = cell(name, metric, batch, options.chains, options.steps, draws)
        except Exception as error:  # a metric that does not fit a model is a result too
            row |= {"error": str(error)}
        print({k: v for k, v in row.items() if k != "quantities"}, flush=True)
        known["cells"].append(row)
        known |= {"version": __version__, "origin": origin("cpu")}
        out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
