"""When is a metric valid? The table of lab/notes/reference_posteriors.md, by runs.

    python -m lab.metric_validity --out results/metric-validity.json

* rare classes: the intercept of a logistic regression, 1 % of 10,000 positive, batches of 20
* few data per weight: log-mesquite of posteriordb (46 data, 8 parameters), sigma against Stan
* minibatches: a line through 1,000 points, batches of 20, variance against the closed form
"""

from __future__ import annotations

import logging
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "law"))

from posteriordb_models import load  # noqa: E402

from lab.command import study  # noqa: E402
from lab.results import write_results  # noqa: E402
from natural_langevin import Langevin, likelihoods, preconditioners, priors  # noqa: E402
from natural_langevin.cli.experiments.origin import origin  # noqa: E402


def rare(fresh: bool, adapt: str) -> dict[str, Any]:
    """Mean of the intercept in posterior standard deviations from its mode, ± error."""
    share, count, chains = 0.01, 10_000, 64
    y = torch.zeros(count, 1)
    y[: int(share * count)] = 1
    model, mode = nn.Linear(1, 1), math.log(share / (1 - share))
    with torch.no_grad():
        model.bias.fill_(mode)
    metric = preconditioners.DiagonalFisher(fresh=fresh, adapt=adapt)
    sampler = Langevin(
        model, likelihoods.Bernoulli(), prior=priors.Flat(), chains=chains, step_size=1e-3,
        preconditioner=metric,
    )  # fmt: skip
    posterior = sampler.sample(
        (torch.zeros(count, 1), y), 12_000, batch_size=20, burn_in=4_000, thin=50, progress=False
    )
    sd = (count * share * (1 - share)) ** -0.5
    means = (posterior.samples["bias"][..., 0].double().mean(1) - mode) / sd
    return {
        "case": "rare classes", "metric": repr(metric), "fresh": fresh, "adapt": adapt,
        "mean": float(means.mean()), "error": float(means.std()) / chains**0.5,
    }  # fmt: skip


def few(name: str, adapt: str) -> dict[str, Any]:
    """Mean of sigma in reference standard deviations, ± error."""
    model = load("mesquite")
    metric = getattr(preconditioners, name)(adapt=adapt)
    posterior = model.sampler(preconditioner=metric, step_size=0.05, chains=256).sample(
        (model.x, model.y), 240, batch_size=46, burn_in=40, thin=5, progress=False
    )
    sigma = model.errors({k: v[:, 20:] for k, v in posterior.samples.items()})["sigma"]
    return {
        "case": "few data per weight", "metric": repr(metric), "adapt": adapt,
        "mean": sigma.mean, "error": sigma.mean_error,
    }  # fmt: skip


def heated(eta: float) -> dict[str, Any]:
    """Variance of the weights over the closed form; independent batches would add eta N / (2 B)."""
    count, batch, chains = 1_000, 20, 256
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(count, 1, generator=generator)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        beta = torch.linalg.lstsq(torch.cat([x, torch.ones(count, 1)], 1), y).solution[:, 0]
        model.weight.copy_(beta[None, :3])
        model.bias.copy_(beta[3:])
    sampler = Langevin(
        model, likelihoods.Gaussian(sigma=1.0), prior=priors.Flat(), chains=chains, step_size=eta
    )
    steps = int(20 / eta)
    posterior = sampler.sample(
        (x, y), steps, batch_size=batch, burn_in=steps // 4, thin=int(2 / eta), progress=False
    )
    variance = posterior.samples["weight"].double().flatten(0, 1).var(0).flatten() * count
    exact = torch.linalg.inv(x.T @ x / count).diagonal().double()
    kept = chains * posterior.draws
    return {
        "case": "minibatches", "metric": repr(sampler.preconditioner), "step_size": eta,
        "variance": float((variance / exact).mean()),
        "independent batches": 1 + eta / 2 + eta * count / 2 / batch,
        "error": (2 / kept / 3) ** 0.5,
    }  # fmt: skip


def main() -> None:
    options = study(__doc__, str(ROOT / "results" / "metric-validity.json")).parse_args()
    logging.getLogger("natural_langevin").setLevel(logging.ERROR)
    metrics = ("FullFisher", "UnitFisher", "QuasiDiagonalFisher", "DiagonalFisher")
    runs: list[Any] = [
        *(partial(rare, *of) for of in ((True, "always"), (False, "always"), (False, "burn-in"))),
        *(partial(few, name, adapt) for name in metrics for adapt in ("always", "burn-in")),
        *(partial(heated, eta) for eta in (0.01, 0.002)),
    ]
    rows = []
    for run in runs:
        rows.append(run())
        print(rows[-1], flush=True)
    write_results(options.out, {"origin": origin("cpu"), "rows": rows})


if __name__ == "__main__":
    main()
