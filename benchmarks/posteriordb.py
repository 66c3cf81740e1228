"""Posteriors of Stan's reference collection, for every metric, full batch and minibatch.

    python benchmarks/posteriordb.py [--models arK sblrc] [--metrics FullFisher] [--seconds 500]

The models, data and references are those of tests/law/posteriordb. Every cell is one run of many
chains from near the mode: the metric adapts during burn-in (the default), chains forget
that for as long again, and the draws after that are compared: means in reference standard
deviations, standard deviations as ratios, each with its Monte-Carlo error. A cell that is written
already is not run again, so that the table can be made in pieces.

``passed``: means within .1 sd and sds within 5 %, beyond three Monte-Carlo errors.
``within``: the smallest share of a quantity's variance that is within chains. Far below 1, chains
have not explored in time, and a failure says that and not that the metric is biased: a diagonal
metric needs as many steps more as weights are correlated.
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

from posteriordb_models import MODELS, load  # noqa: E402

from natural_langevin import __version__, preconditioners  # noqa: E402
from natural_langevin.experiments.origin import origin  # noqa: E402

METRICS = [
    "FullFisher", "UnitFisher", "KroneckerFisher", "QuasiDiagonalFisher", "DiagonalFisher",
    "RMSProp", "Euclidean",
]  # fmt: skip
#: The part of the data in a minibatch, and step sizes whose bias of variance is below 5 %:
#: eta / 2 of the step, and eta N / (2 B) of minibatches.
PART, ETA = 4, {"all": 0.05, "quarter": 0.02}
#: Metrics that are not on the posterior's own scale: their step in units of the largest curvature.
ELSE = {"RMSProp", "Euclidean"}


def cell(name: str, metric: str, batch: str, chains: int, steps: int) -> dict[str, Any]:
    """One run, and how far it is from the reference."""
    model = load(name)
    rows = len(model.x) if batch == "all" else len(model.x) // PART
    eta = ETA[batch] * (_scale(model) if metric in ELSE else 1.0)
    chosen = getattr(preconditioners, metric)()
    start = time.perf_counter()
    posterior = model.sampler(preconditioner=chosen, step_size=eta, chains=chains).sample(
        (model.x, model.y), steps, batch_size=rows, burn_in=steps // 4, thin=10, progress=False
    )
    seconds = time.perf_counter() - start
    healthy = posterior.healthy
    forget = steps // 4 // 10
    kept = {k: v[healthy, forget:] for k, v in posterior.samples.items()}
    found = model.errors(kept)
    within = {
        k: float((v.double().var(1).mean(0) / v.double().flatten(0, 1).var(0)).min())
        for k, v in model.quantities(kept).items()
    }
    return {
        "model": name, "metric": metric, "batch": batch, "rows": rows, "step_size": eta,
        "steps": steps, "chains": chains, "healthy": len(healthy), "seconds": round(seconds, 1),
        "quantities": {k: e._asdict() for k, e in found.items()},
        "mean": max((abs(e.mean) for e in found.values()), default=None),
        "sd": max((abs(e.sd) for e in found.values()), default=None),
        "within": min(within.values()),
        "passed": len(healthy) == chains and all(
            abs(e.mean) < 0.1 + 3 * e.mean_error and abs(e.sd) < 0.05 + 3 * e.sd_error
            for e in found.values()
        ),
    }  # fmt: skip


def _scale(model: Any) -> float:
    """1 over the largest curvature per datum, at the start."""
    params = dict(model.network.named_parameters())

    def mean_loss(p: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = torch.func.functional_call(model.network, p, (model.x,))
        return model.likelihood.log_loss(outputs, model.y, {}).mean()

    hessian = torch.func.hessian(mean_loss)({k: v.detach() for k, v in params.items()})
    blocks = [
        torch.cat([hessian[a][b].reshape(params[a].numel(), -1) for b in params], 1) for a in params
    ]
    return 1 / float(torch.linalg.eigvalsh(torch.cat(blocks)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "posteriordb.json")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--metrics", nargs="*", default=METRICS)
    parser.add_argument("--batches", nargs="*", default=list(ETA))
    parser.add_argument("--chains", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    options = parser.parse_args()
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    known = json.loads(options.out.read_text()) if options.out.exists() else {"cells": []}
    done = {(c["model"], c["metric"], c["batch"]) for c in known["cells"]}
    begin = time.monotonic()
    for batch in options.batches:
        for name in options.models:
            for metric in options.metrics:
                few = name == "eight schools" and batch != "all"  # eight data
                if (name, metric, batch) in done or few:
                    continue
                if time.monotonic() - begin > options.seconds:
                    return
                steps = options.steps if batch == "all" else 2 * options.steps
                try:
                    row = cell(name, metric, batch, options.chains, steps)
                except Exception as error:  # a metric that does not fit a model is a result too
                    row = {"model": name, "metric": metric, "batch": batch, "error": str(error)}
                print({k: v for k, v in row.items() if k != "quantities"}, flush=True)
                known["cells"].append(row)
                known |= {"version": __version__, "origin": origin("cpu")}
                options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
