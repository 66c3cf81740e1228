"""Bayesian optimisation by BoTorch: a posterior of networks beside a Gaussian process.

    python -m lab.bayes_opt --out results/bayes-opt.json [--jobs 16] [--seconds 500]
    python -m lab.bayes_opt --out results/bayes-opt.json --picture docs/assets/bayes-opt.png

qLogEI, two points at a time, from 2 d + 2 points of a Sobol sequence, on Branin, Hartmann-6 and
Ackley-10, whose minima are known. Both models see the same first points, inputs in [0, 1] and
standardised values, and the same optimizer of the acquisition. The network is a perceptron of two
layers of 50, weights N(0, 1), with the recipe's other defaults at 2,000 steps; the process is
BoTorch's own default. (The recipe's prior N(0, 2 / fan-in) is too smooth for so few points without
noise: of 16 values of Branin it is .06 sure where it errs by .5.)
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.command import study
from lab.results import complete
from natural_langevin import Langevin, Posterior, likelihoods, models, priors
from natural_langevin._internal.extras import new_figure

#: Dimension, and rounds of two points each.
FUNCTIONS = {"Branin": (2, 12), "Hartmann": (6, 20), "Ackley": (10, 20)}
METHODS = ("networks", "process", "sobol")
SEEDS, STEPS, TOGETHER = range(10), 2000, 2


def function(name: str) -> Any:
    """BoTorch's test function, to be maximised on [0, 1]^d, and its greatest value."""
    from botorch import test_functions

    dim, _ = FUNCTIONS[name]
    options = {} if name == "Branin" else {"dim": dim}
    return getattr(test_functions, name)(negate=True, **options)


def networks(seed: int) -> Callable[[Tensor, Tensor], Any]:
    """Values at inputs -> the model of a sampled posterior."""
    from natural_langevin.integrations.botorch import PosteriorModel

    def sample(x: Tensor, y: Tensor) -> Posterior:
        torch.manual_seed(seed)
        net = models.mlp(x.shape[1], 1, (50, 50), activation=nn.Tanh)
        sampler = Langevin(
            net, likelihoods.Gaussian(sigma=0.05), prior=priors.Gaussian(variance=1.0), chains=4,
            seed=seed,
        )  # fmt: skip
        return sampler.sample((x.float(), y.float()), STEPS, progress=False)

    return lambda x, y: PosteriorModel.fit(sample, x, y, most=128)


def process(x: Tensor, y: Tensor) -> Any:
    """BoTorch's own model, its settings by maximal likelihood."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def optimise(name: str, method: str, seed: int, rounds: int | None = None) -> dict[str, Any]:
    """How far the best value so far is below the maximum, after every evaluation."""
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from botorch.utils.sampling import draw_sobol_samples

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    began = time.perf_counter()
    dim, usual = FUNCTIONS[name]
    rounds = usual if rounds is None else rounds
    target = function(name)
    low, high = target.bounds.double()
    box = torch.stack([torch.zeros(dim), torch.ones(dim)]).double()

    def value(x: Tensor) -> Tensor:
        return target(low + (high - low) * x).double()[:, None]

    count = 2 * dim + 2
    every = count + TOGETHER * rounds
    x = draw_sobol_samples(box, n=every, q=1, seed=seed)[:, 0]
    y = value(x)
    if method != "sobol":
        x, y = x[:count], y[:count]
        fit = process if method == "process" else networks(seed)
        for number in range(rounds):
            torch.manual_seed(1000 * seed + number)
            model = fit(x, (y - y.mean()) / y.std())
            best = float(((y - y.mean()) / y.std()).max())
            sampler = None  # an ensemble's own: one draw is one network
            if method == "process":
                sampler = SobolQMCNormalSampler(torch.Size([128]), seed=number)
            acquire = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
            more, _ = optimize_acqf(
                acquire, box, q=TOGETHER, num_restarts=4, raw_samples=128,
                options={"maxiter": 40, "batch_limit": 4},
            )  # fmt: skip
            x, y = torch.cat([x, more.detach()]), torch.cat([y, value(more.detach())])
    regret = float(target.optimal_value) - y[:, 0].cummax(0).values
    return {
        "function": name, "method": method, "seed": seed, "first": count,
        "regret": [round(v, 6) for v in regret.tolist()],
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def draw(results: dict[str, Any], path: Path) -> None:
    """Median and quartiles of the regret over seeds, by evaluations."""
    colours = dict(zip(METHODS, ("#3f51b5", "#d81b60", "#999999"), strict=True))
    words = {"networks": "posterior of networks", "process": "Gaussian process", "sobol": "Sobol"}
    figure = new_figure(figsize=(10, 3.1))
    row = figure.subplots(1, 3)
    for axes, name in zip(row, FUNCTIONS, strict=True):
        for method in METHODS:
            own = [r for r in results["rows"] if (r["function"], r["method"]) == (name, method)]
            if not own:
                continue
            regret = torch.tensor([r["regret"] for r in own]).clamp_min(1e-4)
            first = own[0]["first"]
            low, middle, high = torch.quantile(regret, torch.tensor([0.25, 0.5, 0.75]), dim=0)
            at = range(first, regret.shape[1] + 1)
            axes.fill_between(at, low[first - 1 :], high[first - 1 :], color=colours[method],
                              alpha=0.15, lw=0)  # fmt: skip
            axes.plot(at, middle[first - 1 :], color=colours[method], label=words[method])
        axes.set(title=f"{name}, {FUNCTIONS[name][0]} inputs", xlabel="evaluations", yscale="log")
    row[0].set_ylabel("below the maximum")
    row[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = study(__doc__, "results/bayes-opt.json", jobs="runs")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--rounds", type=int, default=None, help="fewer, to try it")
    parser.add_argument("--functions", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--picture", type=Path, default=None, help="only draw what --out holds")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no run begins later")
    asked = parser.parse_args()
    if asked.picture is not None:
        draw(json.loads(asked.out.read_text()), asked.picture)
        return
    tasks = [
        (name, method, seed)
        for seed in range(asked.seeds)  # seed by seed: whatever is left out is left out of all
        for name in sorted(asked.functions, key=lambda name: -FUNCTIONS[name][0])
        for method in METHODS
    ]
    settings = {
        "steps": STEPS, "prior": "N(0, 1)", "together": TOGETHER, "functions": FUNCTIONS,
    }  # fmt: skip
    complete(
        asked.out, settings, tasks, partial(optimise, rounds=asked.rounds),
        by=("function", "method", "seed"), jobs=asked.jobs, seconds=asked.seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
