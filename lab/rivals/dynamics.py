"""The recipe with BAOAB and with Microcanonical, in pairs: the same problem, seed and rules.

    python -m lab.rivals.dynamics --jobs 12 --seeds 2 --out results/dynamics.json

Problems on which rules may be chosen (``lab.defaults.development``) and the dozen networks of
``lab.defaults.dozen``. Both take their steps in torch, one by one: only BAOAB has an engine in C,
which would decide the comparison. The table has the mean over pairs of Microcanonical minus BAOAB,
with its error over pairs. What is in the file is not run again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import fmean
from typing import Any

import torch

from lab.command import at_least, guarded, show, study
from lab.defaults import calibration, dozen
from lab.defaults.ablation import mean_and_error
from lab.defaults.development import PROBLEMS
from lab.defaults.problems import likelihood_for, steps_of
from lab.defaults.twenty import counts
from lab.results import attempted, complete
from natural_langevin import Langevin
from natural_langevin.dynamics import Microcanonical
from natural_langevin.dynamics.frame import Integrator
from natural_langevin.recipe import rules

DYNAMICS: dict[str, Callable[[float], Integrator]] = {
    "BAOAB": rules.dynamics,
    "Microcanonical": Microcanonical,
}
FAMILIES = {"development": tuple(PROBLEMS), "networks": dozen.NAMES}
WHAT = ("nll", "calibration_error", "log_cpu")


@contextmanager
def recipe_of(dynamics: Callable[[float], Integrator]) -> Iterator[None]:
    """The recipe with other dynamics; its rules for step size, length and friction as they are."""
    usual = rules.dynamics
    rules.dynamics = dynamics  # type: ignore[assignment]
    try:
        yield
    finally:
        rules.dynamics = usual


def run(name: str, dynamics: str, seed: int) -> dict[str, Any]:
    """One run and what came of it."""
    torch.set_num_threads(1)
    made = PROBLEMS[name](seed) if name in PROBLEMS else dozen.problem(name)
    torch.manual_seed(seed)
    network = made.make(0.0, seed) if name in PROBLEMS else made.network()  # type: ignore[union-attr]
    began = time.process_time()
    with recipe_of(DYNAMICS[dynamics]):
        sampler = Langevin(network, likelihood_for(made.y), seed=seed, compile=False)
        posterior = sampler.sample((made.x, made.y), partial=False, progress=False)
    cpu = time.process_time() - began
    scores = posterior.evaluate(made.x_test, made.y_test)
    assert posterior.plan is not None
    return {
        "nll": scores.nll,
        "calibration_error": calibration.error([counts(posterior, made, scores)]),
        "log_cpu": math.log(cpu),
        "steps": steps_of(posterior),
        "step_size": posterior.plan.step_size,
        "prior_scale": posterior.plan.prior_scale,
        "lost": sampler.chains - len(posterior.healthy),
    }


def differences(rows: dict[str, dict[str, Any]], family: str) -> dict[str, Any]:
    """Microcanonical minus BAOAB in the mean over a family's pairs, with errors over pairs."""
    pairs = []
    for key, found in rows.items():
        name, dynamics, seed = key.split("|")
        other = rows.get(f"{name}|BAOAB|{seed}")
        if dynamics == "Microcanonical" and name in FAMILIES[family] and other is not None:
            pairs += [] if "failed" in found or "failed" in other else [(other, found)]
    if len(pairs) < 2:
        return {}
    changes = {what: mean_and_error([b[what] - a[what] for a, b in pairs]) for what in WHAT}
    ahead = fmean(b["nll"] < a["nll"] for a, b in pairs)
    return {"pairs": len(pairs), "ahead": ahead, **changes}


def table(rows: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and lines, one for every family."""
    lines = []
    for family in FAMILIES:
        if found := differences(rows, family):
            values = [f"{mean:+.4f} ± {error:.4f}" for mean, error in (found[w] for w in WHAT)]
            lines.append([family, *values, f"{found['ahead']:.0%} of {found['pairs']}"])
    return ["NLL", "calibration error", "ln CPU-seconds", "lower NLL"], lines


def main() -> None:
    """Runs the pairs that the file does not have yet."""
    parser = study(__doc__, "results/dynamics.json", jobs="runs")
    parser.add_argument("--seeds", type=at_least(1), default=2)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", nargs="*", choices=[n for f in FAMILIES.values() for n in f])
    given = parser.parse_args()
    items = [
        (name, dynamics, seed)
        for seed in range(given.first, given.first + given.seeds)
        for name in given.only or [n for f in FAMILIES.values() for n in f]
        for dynamics in DYNAMICS
    ]
    results = complete(
        given.out, {}, items, partial(attempted, run), jobs=given.jobs,
        summary=lambda rows: {family: differences(rows, family) for family in FAMILIES},
    )  # fmt: skip
    show(*table(results["rows"]))


if __name__ == "__main__":
    guarded(main)
