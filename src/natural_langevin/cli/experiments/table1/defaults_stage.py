"""The row of the library's defaults: ``Langevin(network, likelihood).sample(data)`` and no more.

Everything is left to the recipe, on all training images. Its time is that of the whole call, with
the search for the prior's scale and the step size.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from natural_langevin import likelihoods
from natural_langevin.cli.experiments.table1.scores import finite, reliability, score, summary
from natural_langevin.cli.experiments.table1.stages import FINAL_SEED, Bench, Result
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.posterior import Posterior

NAME, LABEL = "defaults", "Defaults, nothing given"


def final(bench: Bench) -> Result:
    """One call for every one of the preset's ``default_seeds``."""
    runs = [_run(bench, FINAL_SEED + k) for k in range(bench.preset.default_seeds)]
    posteriors, seconds = [p for p, _ in runs], [s for _, s in runs]
    first, row = posteriors[0], _row(bench, posteriors)
    shown = {"method": NAME, "estimate": "ensemble", "label": LABEL}
    test_x, test_y = bench.scored["test"]
    return {
        "rows": [shown | row | {"seconds": summary(seconds)}],
        "curve": {
            "method": NAME, "label": LABEL, "step": first.trace[:, 0].tolist(),
            "loss": finite(first.trace[:, 1:].mean(1)),
        },
        "reliability": shown | reliability(first.predict(test_x).mean, test_y),
    }  # fmt: skip


def _run(bench: Bench, seed: int) -> tuple[Posterior, float]:
    """The posterior of one call, and the seconds that it took."""
    began = time.monotonic()
    sampler = Langevin(
        bench.network(), likelihoods.Categorical(), seed=seed, device=bench.device,
        compile=bench.compile, parallel=None,
    )  # fmt: skip
    found = sampler.sample(
        (bench.data.train_x, bench.data.train_y),
        bench.preset.default_steps,
        progress="defaults-final" if bench.progress else False,
    )
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
    return found, time.monotonic() - began


def _row(bench: Bench, posteriors: list[Posterior]) -> dict[str, Any]:
    """Scores of all seeds' predictions, and what the first of them was run with."""
    chosen = posteriors[0].config["recipe"]
    scale = chosen["prior_scale"]
    row: dict[str, Any] = {
        "group": "extra",
        "note": "calibrated on held-out training images; the time is that of the whole call",
        "settings": {
            "step_size": chosen["step_size"],
            "prior_scale": None if scale is None else scale["value"],
            "batch_size": posteriors[0].config["batch_size"],
            "steps": posteriors[0].config["steps"],
            "chains": len(posteriors[0].healthy),
            "draws": posteriors[0].draws,
        },
    }
    for name, (x, y) in bench.scored.items():
        row[name] = score(torch.stack([p.predict(x).mean for p in posteriors]), y)
    return row
