"""Posteriors of Stan's reference collection, for every metric, full batch and minibatch.

    python -m lab.posteriordb [--models arK sblrc] [--metrics FullFisher] [--seconds 500]
    python -m lab.posteriordb --jobs 16                    # every cell a process of its own
    python -m lab.posteriordb --seconds 0 --page lab/notes/reference_posteriors.md  # its table

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
``claimed``: the run was as long as its slowest direction needs, 60 of its relaxation times, unless
the recipe's cap ended it before, of which it warns.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "law"))

from posteriordb_models import MODELS, at_the_defaults  # noqa: E402

from lab.command import study  # noqa: E402
from lab.pages import fill, markdown  # noqa: E402
from lab.results import complete  # noqa: E402
from natural_langevin.recipe.settings import Settings  # noqa: E402

METRICS = [
    "default", "QuasiDiagonalFisher", "DiagonalFisher", "UnitFisher", "FullFisher",
    "KroneckerFisher", "RMSProp", "Euclidean",
]  # fmt: skip
SLOWEST = ["Euclidean", "RMSProp", "DiagonalFisher", "KroneckerFisher"]  # in this order
BATCHES = {"all": 1, "quarter": 4}


def cell(name: str, metric: str, batch: str, chains: int, steps: int | None) -> dict[str, Any]:
    """One run, and how far it is from the reference."""
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
        "verdicts": posterior.diagnose(model.x).verdicts,
        "passed": len(healthy) == chains and all(
            abs(e.mean) < 0.1 + 3 * e.mean_error and abs(e.sd) < 0.05 + 3 * e.sd_error
            for e in found.values()
        ),
    }  # fmt: skip


def table(cells: list[dict[str, Any]]) -> str:
    """Models and batches by metric: the largest error of a mean, in sd, and that of an sd."""
    names = ["default" if m == "default" else f"`{m}`" for m in METRICS]
    known, lines = {(c["model"], c["batch"], c["metric"]): c for c in cells}, []
    for name, batch in product(MODELS, BATCHES):
        row = [known.get((name, batch, metric)) for metric in METRICS]
        if any(row):
            lines.append((f"{name}, {batch}", *map(_shown, row)))
    return markdown(names, lines, first="model, batch")


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


def cells(metrics: list[str], batches: list[str], models: list[str]) -> list[tuple[str, str, str]]:
    """(metric, batch, model), the longest first."""
    rank = {metric: n for n, metric in enumerate(SLOWEST)}
    found = [
        (metric, batch, name)
        for metric, batch, name in product(metrics, batches, models)
        if batch == "all" or name != "eight schools"  # eight data
    ]
    return sorted(found, key=lambda c: (rank.get(c[0], len(rank)), c[1] == "all"))


def row(metric: str, batch: str, name: str, *, chains: int, steps: int | None) -> dict[str, Any]:
    """A cell; a metric that does not fit a model is a result too."""
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # cells, not threads, are what runs side by side
    try:
        return cell(name, metric, batch, chains, steps)
    except Exception as error:
        return {"model": name, "metric": metric, "batch": batch, "error": str(error)}


def main() -> None:
    """Runs the cells that are missing, and fills the page."""
    parser = study(__doc__, str(ROOT / "results" / "posteriordb.json"), jobs="cells")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--batches", nargs="*", default=list(BATCHES))
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--steps", type=int, help="in place of the recipe's length")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no cell begins later")
    parser.add_argument("--page", type=Path, help="a page whose table is to be replaced")
    options = parser.parse_args()
    results = complete(
        options.out, {}, cells(options.metrics, options.batches, options.models),
        partial(row, chains=options.chains, steps=options.steps), by=("metric", "batch", "model"),
        jobs=options.jobs, seconds=options.seconds,
    )  # fmt: skip
    if options.page is not None:
        fill(options.page, "posteriordb", table(results["rows"]))


if __name__ == "__main__":
    main()
