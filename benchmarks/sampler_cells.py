"""What ``samplers.py`` measures: problems, references, and the cells of its table.

Three problems: a linear regression with correlated inputs (its posterior is known), two moons
(2-16-2) and a wave (1-20-1). Chains start from draws of the exact law, or of a Metropolis-adjusted
reference, so that what is read is where a sampler stays and how fast it moves, not how it gets
there. Step sizes: eta = STEEPNESS / lambda, lambda the steepest curvature in the metric
(``sampling.curvature``), the largest over chains. All data in every batch, but for the heat.
Times are CPU time of one thread. A cell that is written already is not run again.

    cost      CPU time of a step (frozen metric, one chain) over that of torch.optim.SGD, by network
    bias      mean of the squared weights, whitened by the exact covariance, less 1
    ess       median over inputs of the effective sample size of predictions, per CPU-second
    gap       rms over inputs of the mean prediction's distance to the reference's, in its sds
    spread    mean over inputs of the ratio of standard deviations, less 1
    floor     of gap: what ESS draws here and those of the reference explain, sqrt(1/e + 1/e_ref)
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin import Langevin, likelihoods, models, preconditioners, priors, schedules
from natural_langevin.diagnostics import mixing
from natural_langevin.dynamics import Adjusted, Integrator, NoseHoover, Overdamped, Underdamped
from natural_langevin.experiments.origin import origin
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.sampling.curvature import steepest

ROOT = Path(__file__).resolve().parent.parent
SEED, CHAINS, BURN_IN = 0, 32, 60
#: CPU-seconds of a cell's draws, the most of these, and steps between two.
BUDGET, MOST, THIN = 4.0, 800, 10
#: Draws of a chain that are taken whatever they cost.
LEAST = 40
#: eta lambda; of "BAOAB, large" five times that.
STEEPNESS = 0.2
#: Parts of the data in a minibatch, where heat is measured.
PARTS = 4
#: Trajectories of every chain of the reference, and how many of them make a draw.
REFERENCE, SPACED = 250, {"moons": 1, "wave": 4}
#: Warm-up and draws of each of NUTS's chains.
NUTS_WARMUP, NUTS_DRAWS, NUTS_CHAINS = 500, 1000, 4
#: eta lambda of the smaller steps, and the metrics they are tried with (--smaller).
SMALLER = (0.2, 0.1, 0.05)
NATIVE = ["Euclidean", "RMSProp", "DiagonalFisher", "QuasiDiagonalFisher", "UnitFisher"]

METRICS = [
    "Euclidean", "RMSProp", "DiagonalFisher", "QuasiDiagonalFisher", "UnitFisher",
    "KroneckerFisher", "EigenKroneckerFisher", "FullFisher",
]  # fmt: skip
DYNAMICS: dict[str, Integrator] = {
    "Overdamped": Overdamped(),
    "Underdamped, Euler": Underdamped(0.1),
    "BAOAB": Underdamped(0.1, "baoab"),
    "BAOAB, large": Underdamped(0.1, "baoab"),
    "UBU": Underdamped(0.1, "ubu"),
    "NoseHoover": NoseHoover(0.1),
    "Adjusted": Adjusted(),
    "Adjusted, 10 steps": Adjusted(steps=10),
}
#: Measured with minibatches only, for which they are made.
CORRECTED: dict[str, Integrator] = {
    "Overdamped, heat corrected": Overdamped(correct_heat=True),
    "Underdamped, heat corrected": Underdamped(0.1, correct_heat=True),
}


class Problem(NamedTuple):
    """Data, a network, and draws to start from: {name: (draw, ...)}."""

    x: Tensor
    y: Tensor
    likelihood: likelihoods.Likelihood
    network: nn.Module


@cache
def problem(name: str) -> Problem:
    """The three problems; prior N(0, 1) on every weight."""
    g = torch.Generator().manual_seed(SEED)
    if name == "line":
        z = torch.randn(200, 5, generator=g)
        x = (z + 1.5 * z[:, :1]) * torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0]) + 0.5
        y = x @ torch.tensor([[1.0], [-1.0], [0.5], [0.0], [0.3]])
        y = y + 0.5 * torch.randn(y.shape, generator=g)
        return Problem(x, y, likelihoods.Gaussian(sigma=0.5), nn.Linear(5, 1))
    if name == "wave":
        x = torch.rand(40, 1, generator=g) * 4 - 2
        y = torch.sin(2 * x) + 0.2 * torch.randn(x.shape, generator=g)
        net = models.mlp(1, 1, (20,), activation=nn.Tanh)
        return Problem(x, y, likelihoods.Gaussian(sigma=0.2), net)
    label = torch.arange(100) % 2
    angle = torch.rand(100, generator=g) * torch.pi
    x = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    x = torch.where(label[:, None] == 1, torch.stack([1 - x[:, 0], 0.5 - x[:, 1]], 1), x)
    x = x + 0.3 * torch.randn(x.shape, generator=g)
    return Problem(x, label, likelihoods.Categorical(), models.mlp(2, 2, (16,), activation=nn.Tanh))


PROBLEMS = {"line": "linear regression", "moons": "moons 2-16-2", "wave": "wave 1-20-1"}


def sampler(name: str, metric: str, dynamics: Integrator, eta: float, chains: int) -> Langevin:
    """With a Fisher metric averaged as the recipe does."""
    case, C = problem(name), getattr(preconditioners, metric)()
    if isinstance(C, FisherPreconditioner):
        C = C.with_rate(schedules.polynomial_average())
    return Langevin(
        case.network, case.likelihood, prior=priors.Gaussian(1.0), preconditioner=C, seed=SEED,
        dynamics=dynamics, step_size=eta, chains=chains, mean_rate=None, init="prior",
    )  # fmt: skip


def inputs(name: str) -> Tensor:
    """Twenty of the problem's inputs."""
    x = problem(name).x
    return x[:: len(x) // 20][:20]


def predictions(name: str, params: dict[str, Tensor]) -> Tensor:
    """Of weights (..., *shape) at 20 inputs: the mean, or the probability of the second class."""
    case, some = problem(name), inputs(name)
    lead = next(iter(params.values())).shape[: next(iter(params.values())).ndim - _rank(name)]
    flat = {k: p.reshape(-1, *p.shape[len(lead) :]) for k, p in params.items()}
    with torch.no_grad():
        outputs = vmap(lambda p: functional_call(case.network, p, (some,)))(flat)
    if name == "moons":
        outputs = outputs.softmax(-1)[..., 1:]
    return outputs[..., 0].reshape(*lead, len(some))


def _rank(name: str) -> int:
    return next(iter(problem(name).network.parameters())).ndim


@cache
def exact() -> tuple[Tensor, Tensor]:
    """Mean and covariance of the linear regression's weights, then bias."""
    case = problem("line")
    x = torch.cat([case.x, torch.ones(len(case.x), 1)], 1).double()
    covariance = torch.linalg.inv(x.T @ x / 0.25 + torch.eye(6).double())
    return covariance @ x.T @ case.y[:, 0].double() / 0.25, covariance


#: Where references are kept for other processes, if anywhere.
STORED: list[Path] = []


@cache
def reference(name: str) -> dict[str, Any]:
    """Metropolis-adjusted trajectories of 10 steps, from where BAOAB came to from the prior."""
    files = [folder / f"reference-{name}.pt" for folder in STORED]
    if files and files[0].exists():
        found: dict[str, Any] = torch.load(files[0], weights_only=True)
        return found
    found = _reference(name)
    for file in files:
        torch.save(found, file)
    return found


def _reference(name: str) -> dict[str, Any]:
    there = sampler(name, "QuasiDiagonalFisher", Underdamped(0.1, "baoab"), 0.005, CHAINS)
    _, kept, _, _ = run(there, name, None, burn_in=2000, thin=1, draws=1)
    start = {k: p[:, -1] for k, p in kept.items()}
    adjusted = sampler(name, "QuasiDiagonalFisher", Adjusted(steps=10), 0.01, CHAINS)
    spaced = 10 * SPACED[name]
    _, kept, _, _ = run(adjusted, name, start, burn_in=500, thin=spaced, draws=REFERENCE)
    followed = mixing(predictions(name, kept))
    ess = float(torch.tensor(followed.ess).median())
    return {"kept": kept, "ess": ess, "rhat": float(followed.rhat.max())}


@cache
def starts(name: str, chains: int) -> dict[str, Tensor]:
    """Draws of the exact law, or of different chains of the reference."""
    if name == "line":
        mean, covariance = exact()
        z = torch.randn(chains, 6, generator=torch.Generator().manual_seed(SEED + 1)).double()
        theta = (mean + z @ torch.linalg.cholesky(covariance).mT).float()
        return {"weight": theta[:, None, :5].contiguous(), "bias": theta[:, 5:].contiguous()}
    return {k: p[:chains, -1].clone() for k, p in reference(name)["kept"].items()}


def run(
    of: Langevin,
    name: str,
    start: dict[str, Tensor] | None,
    *,
    thin: int,
    draws: int,
    burn_in: int = BURN_IN,
    budget: float = math.inf,
    least: int = LEAST,
    batch: int | None = None,
) -> tuple[str, dict[str, Tensor], float, int]:
    """The way steps went, draws (chain, draw, ...), CPU-seconds of their steps, and how many."""
    case = problem(name)
    engine, state = of.prepare(
        (case.x, case.y), steps=burn_in + thin * draws, batch_size=batch or len(case.x),
        step_size=of.step_size, burn_in=burn_in,
    )  # fmt: skip
    if start is not None:
        state = engine.dynamics.init({k: p.clone() for k, p in start.items()})
    state, _ = engine.run(state, 0, burn_in)
    if engine.way == "eager" and not isinstance(of.dynamics, Adjusted):
        thin = min(thin, 5)  # few steps fit: a draw of more of them
    kept, done, spent = [], burn_in, 0.0
    while len(kept) < draws and (spent < budget or len(kept) < least):
        begin = time.process_time()
        state, _ = engine.run(state, done, thin)
        spent += time.process_time() - begin
        done += thin
        kept.append({k: p.clone() for k, p in state.params.items()})
    samples = {k: torch.stack([s[k] for s in kept], 1) for k in kept[0]}
    return engine.way, samples, spent, done - burn_in


@cache
def steepness(name: str, metric: str) -> float:
    """lambda: the largest over chains, after a burn-in with the metric averaged along it."""
    case, start = problem(name), starts(name, CHAINS)
    found = 1.0
    for eta, steps in ((0.0, 1), (None, BURN_IN)):
        size = 0.1 / found if eta is None else 1e-9
        of = sampler(name, metric, Overdamped(), size, CHAINS)
        engine, state = of.prepare(
            (case.x, case.y), steps=steps, batch_size=len(case.x), step_size=size, burn_in=steps
        )
        state = engine.dynamics.init({k: p.clone() for k, p in start.items()})
        state, _ = engine.run(state, 0, steps)
        values = steepest(engine.dynamics, state, (case.x, case.y), len(case.x))
        found = float(values.max())
    return found


def eta_of(name: str, metric: str, dynamics: str, steep: float = STEEPNESS) -> float:
    return (5 if dynamics == "BAOAB, large" else 1) * steep / steepness(name, metric)


def squares(kept: dict[str, Tensor]) -> tuple[float, float]:
    """Mean of the whitened squares, less 1, and its Monte-Carlo error from the chains."""
    mean, covariance = exact()
    theta = torch.cat([kept["weight"][:, :, 0], kept["bias"]], -1).double()
    root = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(root, (theta - mean).flatten(0, 1).T, upper=False)
    each = z.square().mean(0).reshape(theta.shape[:2]).mean(1)
    return float(each.mean()) - 1, float(each.std() / math.sqrt(len(each)))


def explored(name: str, dynamics: str, metric: str, steep: float = STEEPNESS) -> dict[str, Any]:
    """Effective samples per CPU-second; bias where the law is known, distance where it is not."""
    eta = eta_of(name, metric, dynamics, steep)
    of = sampler(name, metric, DYNAMICS[dynamics], eta, CHAINS)
    way, kept, seconds, steps = run(
        of, name, starts(name, CHAINS), thin=THIN, draws=MOST, budget=BUDGET
    )
    f = predictions(name, kept)
    row: dict[str, Any] = {
        "eta": eta, "way": way, "steps": steps, "cpu_seconds": round(seconds, 3),
        "cpu_us_per_step": 1e6 * seconds / steps,
    }  # fmt: skip
    if not bool(torch.isfinite(f).all()):
        return row | {"diverged": int((~torch.isfinite(f).flatten(1).all(1)).sum())}
    followed = mixing(f)
    ess = float(torch.tensor(followed.ess).median())
    row |= {
        "draws": f.shape[1], "ess": ess, "ess_per_second": ess / seconds,
        "rhat": float(followed.rhat.max()),
    }  # fmt: skip
    if name == "line":
        row["bias"], row["bias_error"] = squares(kept)
        return row
    other = predictions(name, reference(name)["kept"]).flatten(0, 1)
    own, sd = f.flatten(0, 1), other.std(0)
    gap = (own.mean(0) - other.mean(0)) / sd
    return row | {
        "gap": float(gap.square().mean().sqrt()), "spread": float((own.std(0) / sd).mean()) - 1,
        "floor": math.sqrt(1 / ess + 1 / reference(name)["ess"]),
        "reference_ess": reference(name)["ess"], "reference_rhat": reference(name)["rhat"],
    }  # fmt: skip


def smaller() -> dict[str, Any]:
    """BAOAB on both networks at steps of eta lambda = SMALLER: distances, and no times."""
    kept = ("eta", "steps", "draws", "ess", "rhat", "gap", "floor", "spread", "diverged")
    here, rows = origin("cpu"), []
    for name in ("moons", "wave"):
        for metric in NATIVE:
            for steep in SMALLER:
                found = explored(name, "BAOAB", metric, steep)
                row = {"problem": name, "metric": metric, "steepness": steep}
                rows.append(finite(row | {k: found[k] for k in kept if k in found}))
                print(json.dumps(rows[-1]), flush=True)
    return {"origin": here, "rows": rows}


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """For JSON, which knows no infinity: None in its place."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def heated(dynamics: str, metric: str) -> dict[str, Any]:
    """The linear regression's bias with a quarter of the data in a batch."""
    of = sampler(
        "line", metric, (DYNAMICS | CORRECTED)[dynamics], eta_of("line", metric, dynamics), CHAINS
    )
    way, kept, _, steps = run(
        of, "line", starts("line", CHAINS), thin=THIN, draws=MOST,
        budget=BUDGET / 2, batch=len(problem("line").x) // PARTS,
    )  # fmt: skip
    bias, error = squares(kept)
    ess = float(torch.tensor(mixing(predictions("line", kept)).ess).median())
    return {"way": way, "steps": steps, "bias": bias, "bias_error": error, "ess": ess}


def cost(dynamics: str, metric: str) -> dict[str, Any]:
    """One chain on the moons' network, steps of a frozen metric, between two readings of SGD's."""
    of = sampler("moons", metric, DYNAMICS[dynamics], 1e-5, 1)  # the time depends on no eta
    before = _descent()
    way, _, seconds, steps = run(
        of, "moons", None, thin=10, draws=40, burn_in=20, budget=0.1, least=4
    )
    step, sgd = 1e6 * seconds / steps, (before + _descent()) / 2
    return {"way": way, "cpu_us_per_step": step, "sgd_us_per_step": sgd, "ratio": step / sgd}


def _descent(steps: int = 150) -> float:
    """CPU microseconds of a plain step of torch.optim.SGD on the same network and data."""
    case = problem("moons")
    net = models.mlp(2, 2, (16,), activation=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    begin = 0.0
    for step in range(steps + 20):
        if step == 20:
            begin = time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(case.x), case.y).backward()
        optimizer.step()
    return 1e6 * (time.process_time() - begin) / steps


def cells(metrics: list[str]) -> Iterator[tuple[str, str, str, Callable[[], dict[str, Any]]]]:
    """(kind, dynamics, metric, how)."""
    for metric in metrics:
        for kind in PROBLEMS:
            for name in DYNAMICS:
                yield kind, name, metric, lambda k=kind, n=name, m=metric: explored(k, n, m)
        for name in DYNAMICS:
            yield "cost", name, metric, lambda n=name, m=metric: cost(n, m)
        for name in [*DYNAMICS, *CORRECTED]:
            if not name.startswith("Adjusted"):  # it takes all data
                yield "heat", name, metric, lambda n=name, m=metric: heated(n, m)


def nuts_file(name: str) -> Path:
    """Where NUTS's predictions are."""
    return ROOT / "results" / "nuts" / f"samplers-{name}.npz"


def run_nuts(name: str, folder: Path, only: int | None = None) -> None:
    """Predictions of NUTS at the same inputs, (chain, draw, input), under the same prior.

    ``only``: this chain alone, whose draws stay in ``folder``."""
    from natural_langevin.experiments.defaults import nuts_chains, small  # with blackjax

    case = problem(name)
    some = inputs(name)
    of = small.Problem(name, case.x, case.y, some, case.y, case.likelihood, lambda: case.network)
    variances = {k: 1.0 for k, _ in case.network.named_parameters()}
    chains, seconds = [], 0.0
    for k in range(NUTS_CHAINS) if only is None else (only,):  # one that was stopped goes on
        file = folder / f"nuts-{name}-{k}.npz"
        if not file.exists():
            began = time.perf_counter()
            drawn = nuts_chains.sample(
                of, variances, chains=1, warmup=NUTS_WARMUP, draws=NUTS_DRAWS, seed=SEED + k
            )
            np.savez_compressed(file, drawn=drawn, seconds=time.perf_counter() - began)
        with np.load(file) as stored:
            chains.append(torch.from_numpy(stored["drawn"]))
            seconds += float(stored["seconds"])
        print(file, f"{seconds:.0f} s so far", flush=True)
    if only is not None:
        return
    drawn = torch.cat(chains)
    drawn = drawn.softmax(-1)[..., 1] if name == "moons" else drawn[..., 0]
    np.savez_compressed(
        nuts_file(name), predictions=drawn.float().numpy(), seconds=seconds, warmup=NUTS_WARMUP,
    )  # fmt: skip
    print(name, tuple(drawn.shape), "rhat", float(mixing(drawn).rhat.max()))


def against_nuts(name: str) -> dict[str, Any]:
    """The Metropolis-adjusted reference against NUTS: distances beside what sampling explains.

    gap and spread as above, with NUTS's standard deviations. z: rms over inputs of the difference
    of means over its standard error, sqrt(s^2/e + s'^2/e') with effective sizes e of both; about 1
    where there is no other difference than chance."""
    ours = predictions(name, reference(name)["kept"])
    with np.load(nuts_file(name)) as stored:
        theirs, seconds = torch.from_numpy(stored["predictions"]), float(stored["seconds"])
    both = [(f.double().flatten(0, 1), mixing(f)) for f in (ours, theirs)]
    (f, of), (g, other) = both
    errors = [p.var(0) / torch.as_tensor(m.ess) for p, m in both]
    apart, sd = f.mean(0) - g.mean(0), g.std(0)
    return {
        "problem": name, "nuts_seconds": seconds,
        "gap": float((apart / sd).square().mean().sqrt()),
        "floor": float((sum(errors) / sd.square()).mean().sqrt()),
        "z": float((apart.square() / sum(errors)).mean().sqrt()),
        "spread": float((f.std(0) / sd).mean()) - 1,
        "spread_error": float((sum(errors) / sd.square() / 2).sqrt().mean()),
        "ess": float(np.median(of.ess)), "nuts_ess": float(np.median(other.ess)),
        "rhat": float(of.rhat.max()), "nuts_rhat": float(other.rhat.max()),
    }  # fmt: skip
