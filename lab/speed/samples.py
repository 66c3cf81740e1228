"""Section "samples": effective samples per second in function space, ours and the peers', on MNIST.

One posterior for everybody: a ReLU network on the first training images, prior N(0, 0.1), T = 1,
minibatches of 100, four chains. All start at the same four draws, which a long run of ours with a
small step, and then the reference, have left behind. Followed are the log-probabilities of all
classes at some test images.

Bias. Every step size heats a sampler a little, and buys speed. The measure is the mean log-loss on
some training images along the run, against that of the reference (the sampler that made the starts,
at a quarter of its step size): ``bias`` is the relative difference. A step size counts where |bias|
is at most 5 %, and of those that count the one with most effective samples per second does.

ESS. Over all chains (``diagnostics.ranks``), the median over the numbers followed. Time is
that of the steps alone, after the first ones, which compile. A run of many seconds ends before all
of its steps are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lab.gpu import synchronise
from lab.speed import peers
from lab.speed.contender import Layers, Ready, Unavailable
from lab.speed.measure import Say
from lab.speed.plain import flat
from lab.speed.problems import Problem
from lab.warm_start import WarmStart
from natural_langevin import (
    Langevin,
    data,
    dynamics,
    likelihoods,
    models,
    preconditioners,
    priors,
)
from natural_langevin.cli.experiments.bench import PRIOR_VARIANCE
from natural_langevin.diagnostics import ranks
from natural_langevin.recipe import rules as recipe

CHAINS, MOST_BIAS = 4, 0.05
FOLLOWED, SCORED = 20, 1_000
#: By kind of device; steps: of the starting run, of every other, and between draws. The paper's
#: network on all images is not stationary after 60,000 steps: nobody's samples of it would count.
SIZES = {
    "cpu": {"hidden": (50,), "images": 10_000, "start": 20_000, "steps": 4_000, "thin": 10},
    "cuda": {"hidden": (50,), "images": 10_000, "start": 40_000, "steps": 40_000, "thin": 100},
}  # fmt: skip
START_STEP = 2e-4
#: A row's steps end after so many seconds, but not before so many draws.
MOST_SECONDS, FEWEST_DRAWS = 60.0, 100


class Rival(NamedTuple):
    """A sampler, and the step sizes that it may take (on its own scale)."""

    name: str
    build: Callable[..., Ready]  # (problem, chains, step_size=, start=)
    step_sizes: tuple[float, ...]
    ours: bool = False


def section(settings: Any, say: Say) -> dict[str, Any]:
    """Every rival at all of its step sizes, and which of them count."""
    kind = torch.device(settings.device).type
    sizes = SIZES[kind] | {k: v for k, v in settings.sizes.items() if k in SIZES[kind]}
    task, test = mnist(settings.device, settings.seed, sizes)
    start, level, seconds = reference(task, sizes, test)
    say(f"samples: starts made in {seconds:.0f} s, reference loss {level:.4f}")
    rows = []
    wanted = [
        r
        for r in rivals()
        if not settings.only or any(o.lower() in r.name.lower() for o in settings.only)
    ]
    for rival in wanted:
        found = [
            one(task, rival, size, start, level, sizes, test, say) for size in rival.step_sizes
        ]
        allowed = [row for row in found if row["status"] == "measured" and row["counts"]]
        best = max(allowed, key=lambda row: row["ess_per_second"], default=None)
        rows += [row | {"chosen": row is best} for row in found]
    return {
        "method": __doc__, "sizes": sizes, "parameters": task.parameters, "chains": CHAINS,
        "reference_loss": level, "most_bias": MOST_BIAS, "rows": rows,
    }  # fmt: skip


def rivals() -> list[Rival]:
    """Ours, the recipe among them, and the peers."""
    overdamped, metric = dynamics.Overdamped(), preconditioners
    averaged = recipe.averaged(metric.QuasiDiagonalFisher())
    return [
        Rival("Euclidean (SGLD)", partial(ours, moves=overdamped, metric=metric.Euclidean()),
              (1e-3, 3e-3, 1e-2), ours=True),
        Rival("QDOP", partial(ours, moves=overdamped, metric=metric.QuasiDiagonalFisher()),
              (3e-4, 1e-3, 3e-3), ours=True),
        Rival("QDOP, underdamped (the recipe)",
              partial(ours, moves=recipe.dynamics(), metric=averaged),
              (1e-4, 3e-4, 1e-3), ours=True),
        Rival("blackjax SGLD", peers.blackjax_sgld, (1e-3, 3e-3, 1e-2)),
        Rival("jax SGLD", peers.jax_sgld, (1e-3, 3e-3, 1e-2)),
        Rival("blackjax SGHMC", peers.blackjax_sghmc, (1e-4, 3e-4, 1e-3)),
    ]  # fmt: skip


def mnist(device: str, seed: int, sizes: dict[str, Any]) -> tuple[Problem, Tensor]:
    """The posterior to sample, and the test images at which functions are followed."""
    found = data.load("mnist")
    x, y = (t[: sizes["images"]].to(device) for t in (found.train_x, found.train_y))
    build = lambda: models.mlp(x.shape[1], 10, sizes["hidden"], seed=seed).to(device)  # noqa: E731
    return Problem("mnist", build, x, y, 100, seed), found.test_x[:FOLLOWED].to(device)


def ours(
    task: Problem, chains: int, *, step_size: float, start: Layers | None, moves: Any, metric: Any,
    burn_in: int = 500, steps: int = 100_000,
) -> Ready:  # fmt: skip
    """The metric learns in the first ``burn_in`` steps, which do not count, and then stands. From
    a start that fits the data its first estimates are close to nothing, and a whole step in them
    would lead away from it: the step size rises from 0 meanwhile."""
    rate = step_size if start is None else WarmStart(
        step_size, factor=1.0, steps=burn_in, rise=burn_in
    )  # fmt: skip
    sampler = Langevin(
        task.build(), likelihoods.Categorical(), prior=priors.Gaussian(PRIOR_VARIANCE),
        preconditioner=metric, dynamics=moves, step_size=rate, chains=chains, seed=task.seed,
        device=task.device, init="fan_in", mean_rate=None,
    )  # fmt: skip
    engine, state = sampler.prepare(
        (task.x, task.y), steps=steps, batch_size=task.batch_size, burn_in=burn_in
    )
    tensors = list(state.params.values())
    for old, new in zip(tensors, [t for pair in start or () for t in pair], strict=False):
        old.copy_(new)
    done = 0

    def advance(count: int) -> None:
        nonlocal state, done
        state, _ = engine.run(state, done, count)
        done += count

    def layers() -> Layers:
        values = [p.clone() for p in state.params.values()]
        return list(zip(values[::2], values[1::2], strict=True))

    advance(burn_in)
    return Ready(
        advance, lambda: flat(p[0] for p in state.params.values()),
        way=lambda: engine.way, layers=layers,
    )  # fmt: skip


def reference(
    task: Problem, sizes: dict[str, Any], test: Tensor
) -> tuple[Layers, float, float]:  # fmt: skip
    """Draws to start from, and the loss of a run on from there at a quarter of the step size."""
    began = time.perf_counter()
    qdop = recipe.averaged(preconditioners.QuasiDiagonalFisher())
    settings: Any = {"moves": recipe.dynamics(), "metric": qdop}
    count = sizes["start"]
    long = ours(
        task, CHAINS, step_size=START_STEP, start=None, burn_in=count // 2, steps=count, **settings
    )
    long.advance(count - count // 2)
    small = ours(task, CHAINS, step_size=START_STEP / 4, start=long.layers(), **settings)
    small.advance(count // 2)  # until what the larger step has heated is as cool as the reference
    start = small.layers()
    losses, _ = follow(task, small, sizes["steps"], sizes["thin"], test)[:2]
    return start, float(losses.mean()), time.perf_counter() - began


def one(
    task: Problem, rival: Rival, step_size: float, start: Layers, level: float,
    sizes: dict[str, Any], test: Tensor, say: Say,
) -> dict[str, Any]:  # fmt: skip
    """A row: ESS, seconds and bias of one rival at one step size."""
    row: dict[str, Any] = {"name": rival.name, "ours": rival.ours, "step_size": step_size}
    try:
        ready = rival.build(task, CHAINS, step_size=step_size, start=start)
    except Unavailable as answer:
        return row | {"status": answer.status, "reason": answer.reason, "counts": False}
    for _ in range(3):
        ready.advance(ready.multiple)  # compiles
    losses, followed, seconds, cpu = follow(task, ready, sizes["steps"], sizes["thin"], test)
    bias = float(losses.mean()) / level - 1
    if not np.isfinite(bias):
        return row | {"status": "diverged", "reason": "", "counts": False}
    draws = followed[:, followed.shape[1] // 5 :]
    ess = float(np.median(ranks.ess_of_mean(draws))) * followed.shape[1] / draws.shape[1]
    say(f"samples: {rival.name}, {step_size:g}: bias {bias:+.3f}, ESS {ess:.0f} in {seconds:.1f} s")
    return row | {
        "status": "measured", "way": ready.way(), "bias": bias, "counts": abs(bias) <= MOST_BIAS,
        "ess": ess, "steps": followed.shape[1] * sizes["thin"], "seconds": seconds,
        "cpu_seconds": cpu, "ess_per_second": ess / seconds, "ess_per_cpu_second": ess / cpu,
    }  # fmt: skip


def follow(
    task: Problem, ready: Ready, steps: int, thin: int, test: Tensor
) -> tuple[Tensor, np.ndarray[Any, Any], float, float]:
    """Losses after the first draws, (draw,), log-probabilities (chain, draw, k), and seconds."""
    losses, values, seconds, cpu = [], [], 0.0, 0.0
    rows, labels = task.x[:SCORED], task.y[:SCORED]
    for draw in range(steps // thin):
        synchronise(task.device)
        began, began_cpu = time.perf_counter(), time.process_time()
        ready.advance(thin)
        synchronise(task.device)
        seconds, cpu = seconds + time.perf_counter() - began, cpu + time.process_time() - began_cpu
        layers = [(w.to(task.device), b.to(task.device)) for w, b in ready.layers()]
        values.append(outputs(layers, test).log_softmax(-1).flatten(1).cpu())
        if draw % 4 == 0 and draw >= min(steps // thin, FEWEST_DRAWS) // 5:
            log_p = outputs(layers, rows).log_softmax(-1)
            losses.append(-log_p[:, torch.arange(len(labels)), labels].mean())
        if seconds > MOST_SECONDS and draw + 1 >= FEWEST_DRAWS:
            break
    return torch.stack(losses).cpu(), torch.stack(values, 1).double().numpy(), seconds, cpu


def outputs(layers: Layers, x: Tensor) -> Tensor:
    """Logits of a ReLU network, (chain, row, class)."""
    h = x.expand(len(layers[0][0]), *x.shape)
    for index, (weight, bias) in enumerate(layers):
        h = h @ weight.mT + bias[:, None]
        if index < len(layers) - 1:
            h = h.relu()
    return h
