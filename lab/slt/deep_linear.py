"""Learning coefficients of random deep linear networks, defaults alone, against the truth.

    python -m lab.slt.deep_linear --out results/slt-deep-linear.json --count 100 --jobs 14

The truth is that of finite n (``linear_networks.truth``), or what an earlier file found it to be
(``--truth``). A row is written after every network.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from lab.command import study
from lab.results import complete
from lab.slt.linear_networks import network, truth
from natural_langevin import likelihoods, slt


def row(
    seed: int, *, steps: int, truths: Mapping[int, dict[str, float]] | None = None
) -> dict[str, Any]:
    """One network: ours and the truth (from ``truths``, if it is there), with process times."""
    of = network(seed)
    power = 1 / math.log(len(of.x))
    began = time.process_time()
    exact = (truths or {}).get(seed) or truth(of, power=power, steps=steps)._asdict()
    between = time.process_time()
    found = slt.llc(of.model(), likelihoods.Gaussian(sigma=1.0), (of.x.float(), of.y.float()))
    config = found.posterior.config
    return {
        "seed": seed, "widths": of.widths, "rank": of.rank, "weights": found.weights,
        "exact": of.exact, "truth": exact, "value": found.value, "error": found.error,
        "minibatch_bias": found.minibatch_bias, "rhat": found.rhat, "warnings": found.warnings,
        "chains": found.chains.tolist(), "steps": config["steps"], "draws": found.posterior.draws,
        "batch_size": config["batch_size"],
        "truth_seconds": between - began, "seconds": time.process_time() - between,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Relative errors, and how many 95 % intervals cover: of both errors together."""
    apart = [r["value"] - r["truth"]["value"] for r in rows]
    relative = [abs(a) / r["truth"]["value"] for a, r in zip(apart, rows, strict=True)]
    errors = [math.hypot(r["error"], r["truth"]["error"]) for r in rows]
    covered = sum(abs(a) < 1.96 * e for a, e in zip(apart, errors, strict=True))
    return {
        "networks": len(rows), "median": median(relative), "largest": max(relative),
        "bias": sum(a / r["truth"]["value"] for a, r in zip(apart, rows, strict=True)) / len(rows),
        "covered": covered / len(rows),
        "seconds": median(r["seconds"] for r in rows),
    }  # fmt: skip


def main() -> None:
    """Runs the networks that the file does not have yet."""
    parser = study(__doc__, jobs="networks")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--steps", type=int, default=600, help="leapfrog steps of a trajectory")
    parser.add_argument("--truth", type=Path, help="an earlier file, with the same --steps")
    given = parser.parse_args()
    truths: dict[int, dict[str, float]] = {}
    if given.truth is not None:
        known = json.loads(given.truth.read_text())
        if known["settings"] != {"steps": given.steps}:
            parser.error(f"--truth was made with {known['settings']}, not --steps {given.steps}")
        truths = {known["seed"]: known["truth"] for known in known["rows"]}
    complete(
        given.out, {"steps": given.steps}, product(range(given.count)),
        partial(row, steps=given.steps, truths=truths), by=("seed",), jobs=given.jobs,
        summary=summary,
    )  # fmt: skip


if __name__ == "__main__":
    main()
