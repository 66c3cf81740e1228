"""Problems of ``sampler_cells``, their reference draws, and runs of a sampler on them.

Three problems: a linear regression with correlated inputs (its posterior is known), two moons
(2-16-2) and a wave (1-20-1). Chains start from draws of the exact law, or of a Metropolis-adjusted
reference, so that what is read is where a sampler stays and how fast it moves, not how it gets
there. Step sizes: eta = STEEPNESS / lambda, lambda the steepest curvature in the metric
(``sampling.curvature``), the largest over chains.
"""

from __future__ import annotations

import math
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from natural_langevin import Langevin, likelihoods, models, preconditioners, priors, schedules
from natural_langevin.diagnostics import mixing
from natural_langevin.dynamics import Adjusted, Integrator, Overdamped, Underdamped
from natural_langevin.preconditioners.base import FisherPreconditioner
from natural_langevin.recipe.curvature import steepest

SEED, CHAINS, BURN_IN = 0, 32, 60
#: Draws of a chain that are taken whatever they cost.
LEAST = 40
#: eta lambda (see ``sampler_cells.eta_of``).
STEEPNESS = 0.2
#: Lanczos iterations of the steepest curvature.
ITERATIONS = 8
#: Trajectories of every chain of the reference, and how many of them make a draw.
REFERENCE, SPACED = 250, {"moons": 1, "wave": 4}


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
_STORED: list[Path] = []


def store_in(folder: Path) -> None:
    """Has references kept in a folder, for other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    _STORED[:] = [folder]


@cache
def reference(name: str) -> dict[str, Any]:
    """Metropolis-adjusted trajectories of 10 steps, from where BAOAB came to from the prior."""
    files = [folder / f"reference-{name}.pt" for folder in _STORED]
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
        values = steepest(engine.dynamics, state, (case.x, case.y), len(case.x), ITERATIONS)
        found = float(values.max())
    return found
