"""The six small networks: three lines of code against NUTS on the very same posterior.

``python -m lab.defaults.against_nuts --out FILE``: every problem is kept
as soon as it is done. Both have the same prior, so that they differ by how they sample alone: that
of the NUTS run in the folder ``nuts`` beside FILE, where there is one (it may have taken a quarter
of an hour), otherwise the one that the recipe chooses.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.defaults import gaps, last_layer, nuts_files, record
from lab.defaults.small import PROBLEMS, Problem
from lab.pages import markdown
from natural_langevin import Langevin, Posterior
from natural_langevin.recipe import rules as recipe

PART = "nuts"


def ours(problem: Problem, seed: int, scale: float | None) -> tuple[Posterior, float]:
    """A posterior by pure defaults but for the scale of the prior, and the seconds it took."""
    began = time.perf_counter()
    prior = None if scale is None else recipe.prior(scale)
    sampler = Langevin(problem.network(), problem.likelihood, prior=prior, seed=seed)
    posterior = sampler.sample((problem.x, problem.y), partial=False, progress=False)
    return posterior, time.perf_counter() - began


def score(problem: Problem, posterior: Posterior) -> dict[str, Any]:
    """Test NLL of the averaged densities, that of every chain, and mean and sd over networks of
    the predictions (class probabilities, or the target's mean)."""
    log_p = posterior.log_likelihood(problem.x_test, problem.y_test).double()
    values = posterior.predict(problem.x_test, calibrated=False).samples
    assert values is not None
    if problem.likelihood.outputs_per_target > 1:  # with widths
        values = posterior.followed(problem.x_test, None).flatten(0, 1)

    def nll(some: torch.Tensor) -> float:
        return float((math.log(len(some)) - torch.logsumexp(some, 0)).mean())

    return {
        "nll": nll(log_p.flatten(0, 1)),
        "nll_of_chains": [nll(chain) for chain in log_p],
        "mean": values.double().mean(0).flatten(),
        "sd": values.double().std(0).flatten(),
    }


def reference(problem: Problem, scale: float, folder: Path, **lengths: int) -> dict[str, Any]:
    """NUTS under the prior N(0, 2 scale / fan-in), from the folder if it has been run before."""
    file = folder / f"{nuts_files.stem(problem)}{scale:g}.npz"
    if not file.exists():
        from lab.defaults import nuts, nuts_chains  # with blackjax

        began = time.perf_counter()
        drawn = nuts_chains.sample(problem, nuts_files.variances(problem, scale), **lengths)
        found = nuts.summary(problem, drawn)
        nuts_files.store(file, found | {"seconds": time.perf_counter() - began, **lengths})
    with np.load(file) as stored:
        return {k: stored[k] for k in stored.files}


def compare(problem: Problem, seed: int, folder: Path, **lengths: int) -> dict[str, Any]:
    """One run of ours against NUTS."""
    given = nuts_files.stored_scale(problem, folder)
    posterior, seconds = ours(problem, seed, given)
    plan = posterior.plan
    scale = given or plan.prior_scale or 1.0
    found, true = score(problem, posterior), reference(problem, scale, folder, **lengths)
    apart_by = {"nll_difference": found["nll"] - float(true["nll"])}
    if "integrated" in true:
        kept = {k: v[posterior.healthy] for k, v in posterior.samples.items()}
        value, error = last_layer.of_chains(problem, kept, nuts_files.variances(problem, scale))
        apart_by |= {
            "nll_of_draws": apart_by["nll_difference"],
            "nll_difference": value - float(true["integrated"]),
            "nll_error": math.hypot(error, float(true["integrated_error"])),
        }
    mean, sd = (torch.from_numpy(true[k]).flatten().double() for k in ("mean", "sd"))
    open_ = sd > 0.01 * sd.max()  # a class that nobody doubts has no deviation to divide by
    ratio, apart = (found["sd"] / sd)[open_], ((found["mean"] - mean) / sd)[open_]
    outside = gaps.beyond(problem) if problem.x.ndim == 2 else torch.zeros(0)
    outside = outside[:, None].expand(-1, sd.numel() // len(problem.x_test)).flatten()
    beyond = outside.bool() if bool(outside.any()) else torch.ones_like(sd).bool()
    return {
        "seed": seed,
        "seconds": seconds,
        "prior_scale": scale,
        "prior_scale_given": given is not None,
        "step_size": plan.step_size,
        "steps": posterior.config["steps"],
        "way": plan.measured["way"],
        "nll": found["nll"],
        "nuts_nll": float(true["nll"]),
        **apart_by,
        "nuts_nll_of_chains": true["nll_of_chains"].tolist(),
        "sd_ratio": float(found["sd"].mean() / sd.mean()),
        "sd_ratio_beyond": float(found["sd"][beyond].mean() / sd[beyond].mean()),
        "verdicts": posterior.diagnose(problem.x[:32]).verdicts,
        "sd_ratio_median": float(ratio.median()),
        "distance_in_sd": float(apart.square().mean().sqrt()),
        "nuts_seconds": float(true["seconds"]),
        "nuts_rhat": {k: float(true[k]) for k in ("rhat_max", "rhat_median") if k in true},
    }


def table(problems: dict[str, Any]) -> str:
    """Markdown: a problem a row, figures of its seeds side by side."""

    def each(rows: list[dict[str, Any]], key: str, digits: int = 3) -> str:
        return ", ".join(f"{row[key]:.{digits}f}" for row in rows)

    rows = [
        (
            name, f"{found[0]['prior_scale']:g}", f"{found[0]['nuts_nll']:.3f}",
            each(found, "nll_difference", 4), each(found, "sd_ratio", 2),
            each(found, "distance_in_sd", 2), each(found, "seconds", 1),
            f"{found[0]['nuts_seconds']:,.0f}",
        )
        for name, found in problems.items()
    ]  # fmt: skip
    columns = (
        "prior scale, NLL of NUTS, ours minus it, ratio of predictive sds, "
        "distance of means in sds, seconds, seconds of NUTS"
    )
    return markdown(columns.split(", "), rows)


def main() -> None:
    """Command line."""
    parser = record.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args()
    for number, make in enumerate(PROBLEMS):
        if options.only and str(number) not in options.only:
            continue
        problem, rows = make(), []
        for seed in range(options.seeds):
            rows.append(
                compare(
                    problem, seed, options.out.parent / "nuts", chains=options.chains,
                    warmup=options.draws, draws=options.draws,
                )
            )  # fmt: skip
            record.keep(options.out, PART, problem.name, rows)
            print(problem.name, json.dumps(rows[-1]), flush=True)
    if options.page:
        record.show(options.page, options.out, PART, table)


if __name__ == "__main__":
    main()
