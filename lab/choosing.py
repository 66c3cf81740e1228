"""The pictures of docs/samplers.md: step size, metric, prior variance and temperature on digits.

    python -m lab.choosing          runs everything (minutes) and draws; goes on if stopped
    python -m lab.choosing --draw   draws again from results/choosing.json

Every grid is one run: its cells are chains, three for each value. A chain is scored by itself, on
the 360 images of scikit-learn's digits that it was not trained on, and the ESS is that of the
probability of the right class on the first 40 of them (median over images).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from natural_langevin import (
    Langevin,
    Posterior,
    data,
    likelihoods,
    metrics,
    models,
    preconditioners,
    priors,
)
from natural_langevin._internal.extras import new_figure
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.diagnostics.function_space import mixing

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "choosing.json"
PICTURES = ROOT / "docs" / "choosing"

SEEDS = 3
RUN = {"steps": 3000, "batch_size": 100, "burn_in": 750, "thin": 15}
HIDDEN = (50,)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DAMPING = 1e-3
METRICS = {
    "Euclidean": preconditioners.Euclidean(),
    "RMSProp": preconditioners.RMSProp(),
    "DiagonalFisher": preconditioners.DiagonalFisher(damping=DAMPING),
    "QuasiDiagonalFisher": preconditioners.QuasiDiagonalFisher(damping=DAMPING),
}
STEP_SIZES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
VARIANCES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TEMPERATURES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
MIDDLE = {"step_size": 1e-2, "variance": 1.0, "temperature": 1.0}
COLOURS = {
    "Euclidean": "#888888", "RMSProp": "#d08a1d", "DiagonalFisher": "#3a86c8",
    "QuasiDiagonalFisher": "#b3224b",
}  # fmt: skip


def grid(metric: str, name: str, values: Sequence[float], digits: data.Dataset) -> dict[str, Any]:
    """One run over ``values`` of one setting, the others in the middle; a score per chain."""
    cells = torch.tensor(values).repeat_interleave(SEEDS)
    settings = {k: cells if k == name else v for k, v in MIDDLE.items()}
    sampler = Langevin(
        models.mlp(64, 10, HIDDEN),
        likelihoods.Categorical(),
        prior=priors.Gaussian(variance=settings["variance"]),
        preconditioner=METRICS[metric],
        step_size=settings["step_size"],
        temperature=settings["temperature"],
        chains=len(cells),
        init="fan_in",
        compile=False,  # so many short runs do not repay it
        device=DEVICE,
    )
    start = time.perf_counter()
    posterior = sampler.sample((digits.train_x, digits.train_y), **RUN, progress=False)
    seconds = time.perf_counter() - start
    found = score(posterior, digits)
    rows = [found[k : k + SEEDS] for k in range(0, len(found), SEEDS)]
    return {
        "metric": repr(METRICS[metric]), "over": name, "values": list(values), "chains": rows,
        "seconds": seconds,
    }  # fmt: skip


def score(posterior: Posterior, digits: data.Dataset) -> list[dict[str, Any] | None]:
    """NLL, accuracy and ESS of every chain, and its losses; None for one that diverged."""
    kept = posterior.predict(digits.test_x.to(DEVICE), sample_batch=50, chains="all").samples
    assert kept is not None
    draws = kept.cpu().unflatten(0, (len(posterior.healthy), posterior.draws))
    found: list[dict[str, Any] | None] = [None] * posterior.chains
    for chain, p in zip(posterior.healthy, draws, strict=True):
        followed = p[:, torch.arange(40), digits.test_y[:40]]
        found[chain] = {
            "nll": metrics.nll(p.mean(0), digits.test_y),
            "accuracy": metrics.accuracy(p.mean(0), digits.test_y),
            "ess": float(np.median(mixing(followed[None]).ess)),
            "loss": [round(float(v), 4) for v in posterior.trace[:, 1 + chain]],
        }
    return found


def measure() -> None:
    """Every grid, written down as soon as it is done; those that the file has are not run again."""
    digits = data.digits()
    plan = [(f"step_size, {name}", name, "step_size", STEP_SIZES) for name in METRICS]
    plan += [("variance", "QuasiDiagonalFisher", "variance", VARIANCES)]
    plan += [("temperature", "QuasiDiagonalFisher", "temperature", TEMPERATURES)]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else described(digits)
    for title, metric, name, values in reversed(plan):
        if title not in results["grids"]:
            results["grids"][title] = grid(metric, name, values, digits)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def described(digits: data.Dataset) -> dict[str, Any]:
    return origin(DEVICE) | {
        "script": "lab/choosing.py",
        "data": f"{digits.source}, {len(digits.train_y)} to train, {len(digits.test_y)} to score",
        "settings": {
            "hidden": HIDDEN, "init": "fan_in", "seed": 0, "chains per value": SEEDS,
            "run": RUN, "not varied": MIDDLE,
        },
        "look": "loss has one value every 50 steps",
        "grids": {},
    }  # fmt: skip


def curve(axes: Any, one: dict[str, Any], what: str, colour: str, label: str | None = None) -> None:
    """The mean over chains with their range; a value with which a chain diverged is left out."""
    points = [
        (value, [chain[what] for chain in chains])
        for value, chains in zip(one["values"], one["chains"], strict=True)
        if all(chain is not None and math.isfinite(chain[what]) for chain in chains)
    ]
    x = [value for value, _ in points]
    axes.fill_between(x, *zip(*[(min(s), max(s)) for _, s in points], strict=True),
                      color=colour, alpha=0.2, linewidth=0)  # fmt: skip
    axes.plot(x, [sum(s) / len(s) for _, s in points], "o-", ms=4, color=colour, label=label)
    axes.set_xscale("log")
    axes.grid(alpha=0.3)


def draw(results: dict[str, Any]) -> None:
    grids = results["grids"]
    figure = new_figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2)
    for name, colour in COLOURS.items():
        curve(left, grids[f"step_size, {name}"], "nll", colour, name)
        curve(right, grids[f"step_size, {name}"], "ess", colour, name)
    left.set(xlabel="step size η", ylabel="held-out NLL, one chain (nats)", yscale="log")
    right.set(xlabel="step size η", ylabel="effective draws of 150, one chain")
    left.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURES / "step_size.png", dpi=130)

    figure = new_figure(figsize=(9, 3.4))
    axes = figure.subplots(1, 3, sharey=True)
    one = grids["step_size, QuasiDiagonalFisher"]
    steps = [50 * (k + 1) for k in range(RUN["steps"] // 50)]
    for ax, value in zip(axes, (1e-4, 1e-2, 1e-1), strict=True):
        for chain in one["chains"][one["values"].index(value)]:
            if chain is not None:
                ax.plot(steps[: len(chain["loss"])], chain["loss"][: len(steps)], lw=0.8)
        ax.axvline(RUN["burn_in"], color="#888888", ls=":")
        ax.set(title=f"η = {value:g}", xlabel="step", yscale="log")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("minibatch loss (nats)")
    figure.savefig(PICTURES / "trace.png", dpi=130)

    figure = new_figure(figsize=(9, 3.4))
    for ax, (name, label) in zip(
        figure.subplots(1, 2),
        (("variance", "prior variance σ²"), ("temperature", "temperature T")),
        strict=True,
    ):
        curve(ax, grids[name], "nll", COLOURS["QuasiDiagonalFisher"])
        ax.set(xlabel=label, ylabel="held-out NLL, one chain (nats)")
    figure.savefig(PICTURES / "prior.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw what is measured")
    if not parser.parse_args().draw:
        measure()
    PICTURES.mkdir(exist_ok=True)
    draw(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
