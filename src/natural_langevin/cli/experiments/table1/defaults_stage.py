"""The row of the library's defaults: ``Langevin(network, likelihood).sample(data)`` and no more.

Everything is left to the recipe, on all training images. Its time is that of the whole call, with
the search for the prior's scale and the step size.
"""

from __future__ import annotations

import time

import torch

from natural_langevin import likelihoods
from natural_langevin.cli.experiments.table1.scores import curve, diagram, row
from natural_langevin.cli.experiments.table1.stages import FINAL_SEED, Bench, Result
from natural_langevin.langevin import Langevin
from natural_langevin.posterior.posterior import Posterior

NAME, LABEL = "defaults", "Defaults, nothing given"


def final(bench: Bench) -> Result:
    """One call for every one of the preset's ``default_seeds``."""
    runs = [_run(bench, FINAL_SEED + k) for k in range(bench.preset.default_seeds)]
    posteriors, seconds = [p for p, _ in runs], [s for _, s in runs]
    first, scored = posteriors[0], bench.scored
    plan = first.plan
    assert plan is not None
    settings = {
        "step_size": plan.step_size,
        "prior_scale": plan.prior_scale,
        "batch_size": first.config["batch_size"],
        "steps": first.config["steps"],
        "chains": len(first.healthy),
        "draws": first.draws,
    }
    said = {
        name: torch.stack([p.predict(x).mean for p in posteriors])
        for name, (x, _) in scored.items()
    }
    return {
        "rows": [
            row(
                NAME, "ensemble", LABEL, said.__getitem__, scored, settings=settings,
                seconds=seconds,
                note="calibrated on held-out training images; the time is that of the whole call",
            )
        ],
        "curve": curve(NAME, LABEL, first.trace[:, 0].tolist(), first.trace[:, 1:]),
        "reliability": diagram(NAME, "ensemble", LABEL, said["test"][0], scored["test"][1]),
    }  # fmt: skip


def _run(bench: Bench, seed: int) -> tuple[Posterior, float]:
    """The posterior of one call, and the seconds that it took."""
    began = time.monotonic()
    sampler = Langevin(bench.network(), likelihoods.Categorical(), seed=seed, device=bench.device)
    found = sampler.sample(
        (bench.data.train_x, bench.data.train_y),
        bench.preset.default_steps,
        progress="defaults-final" if bench.progress else False,
    )
    if bench.device.type == "cuda":
        torch.cuda.synchronize(bench.device)
    return found, time.monotonic() - began
