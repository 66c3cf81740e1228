"""The methods: each learns for so many seconds, tuning included, and returns a predictor.

| name | whose code | settings |
|---|---|---|
| ours | this library | defaults |
| ours, microcanonical | this library | defaults, with Microcanonical as the recipe's dynamics |
| ensemble | written here | eight networks, AdamW as SMILE warms up, best held-out snapshot each |
| dropout | written here | rates .1, .25, .5 side by side, the best on held-out rows; 50 passes |
| sghmc, csgld | written here after the papers | eight chains from an ensemble's members; step sizes of a decade's grid side by side, the best on held-out rows |
| smile, psmile | kernels of SMILE's authors | ``smile``: self-tuned, and preconditioned |
| multiswag | written here after the paper | eight members, rank 20, four draws each |
| ivon | ``ivon-opt``, the authors' | their image settings, 64 draws |
| laplace | ``laplace-torch``, the authors' | last layer, Kronecker factors, marginal likelihood |
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lab.rivals import smile as authors_smile
from lab.rivals.dynamics import recipe_of
from lab.rivals.many import Clock, Many, Stack, Update, nll
from lab.rivals.problems import Problem
from natural_langevin import Langevin, likelihoods
from natural_langevin.dynamics import Microcanonical

Predictor = Callable[[Tensor], Tensor]
Method = Callable[[Problem, float, int], Predictor]
MEMBERS, BATCH, RATE, DECAY = 8, 128, 1e-3, 0.02


def ours(problem: Problem, seconds: float, seed: int) -> Predictor:
    """Defaults and nothing else."""
    device = problem.x.device
    torch.manual_seed(seed)
    sampler = Langevin(
        problem.network(0.0).to(device), likelihoods.Categorical(), seed=seed, device=device
    )
    found = sampler.sample((problem.x, problem.y), seconds=seconds, progress=False)
    return lambda x: found.predict(x, keep_samples=False).mean


def ours_microcanonical(problem: Problem, seconds: float, seed: int) -> Predictor:
    with recipe_of(Microcanonical):
        return ours(problem, seconds, seed)


def adamw(many: Many, rate: float = RATE, decay: float = DECAY) -> Update:
    """Loshchilov & Hutter's update, with its moments."""
    first = {k: torch.zeros_like(v) for k, v in many.weights.items()}
    second = {k: torch.zeros_like(v) for k, v in many.weights.items()}
    count = torch.zeros((), device=many.x.device)

    def update(weights: Stack, g: Stack, losses: Tensor) -> None:
        count.add_(1)
        one, two = 1 - 0.9**count, 1 - 0.999**count
        for k, w in weights.items():
            first[k].lerp_(g[k], 0.1)
            second[k].lerp_(g[k].square(), 0.001)
            w.mul_(1 - rate * decay)
            w.sub_(rate * (first[k] / one) / ((second[k] / two).sqrt() + 1e-8))

    return update


def trained(
    many: Many, problem: Problem, clock: Clock, share: float, batch: int = BATCH
) -> tuple[Stack, Tensor]:
    """Every network's weights where its held-out NLL was lowest, and that NLL."""
    x, y = problem.held_out
    step = many.stepper(adamw(many), batch)
    best, kept = torch.full((many.count,), math.inf, device=x.device), many.copy()
    until, looks = share * clock.seconds, 0
    while (spent := clock.spent()) < until or not looks:
        clock.run(step)
        looks += 1
        if looks % 4 and clock.spent() + (clock.spent() - spent) < until:
            continue
        now = nll(many.predict(many.weights, x), y)
        better = now < best
        best = torch.where(better, now, best)
        for k, v in many.weights.items():
            kept[k] = torch.where(many.per_network(better, v), v, kept[k])
    return kept, best


def ensemble(problem: Problem, seconds: float, seed: int) -> Predictor:
    clock = Clock(seconds, problem.x.device)
    many = Many(lambda: problem.network(0.0), problem.learned, count=MEMBERS, seed=seed)
    kept, _ = trained(many, problem, clock, 0.97)
    return lambda x: many.predict(kept, x).mean(0)


def dropout(problem: Problem, seconds: float, seed: int) -> Predictor:
    """The network has one rate in all members of a stack: three stacks of one, in turns of time."""
    clock, tried = Clock(seconds, problem.x.device), []
    x, y = problem.held_out
    for k, rate in enumerate((0.1, 0.25, 0.5)):
        many = Many(lambda r=rate: problem.network(r), problem.learned, count=1, seed=seed)  # type: ignore[misc]
        kept, _ = trained(many, problem, clock, 0.31 * (k + 1))
        tried.append((float(nll(passes(many, kept, x, 10), y)), rate, many, kept))
    _, _, many, kept = min(tried, key=lambda t: t[0])
    return lambda x: passes(many, kept, x, 50)


def passes(many: Many, weights: Stack, x: Tensor, count: int) -> Tensor:
    return torch.stack([many.predict(weights, x)[0] for _ in range(count)]).mean(0)


# Samplers: from the members of an ensemble, at the best of a grid of step sizes -------------------


def sampled(
    problem: Problem, seconds: float, seed: int, *, grid: tuple[float, ...], batch: int,
    made: Callable[[Many, Tensor], tuple[Update, Callable[[float], bool]]],
) -> Predictor:  # fmt: skip
    """Three tenths for warm starts, two for the grid, the rest for draws.

    ``made(many, step sizes)`` is an update, and what is told the part of the run that is over and
    answers whether the next weights may be kept."""
    clock = Clock(seconds, problem.x.device)
    x, y = problem.held_out
    many = Many(lambda: problem.network(0.0), problem.learned, count=MEMBERS, seed=seed)
    start, _ = trained(many, problem, clock, 0.3)
    sizes = torch.tensor(grid, device=x.device).repeat(-(-MEMBERS // len(grid)))[:MEMBERS]

    def run(sizes: Tensor, until: float) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The mixture on held-out rows by network, and a predictor of all that was kept."""
        for k, v in many.weights.items():
            v.copy_(start[k])
        update, keeps = made(many, sizes)
        step, began = many.stepper(update, batch), clock.spent()
        for k, v in many.weights.items():
            v.copy_(start[k])  # recording has taken a few steps
        total, kept = 0.0, list[Stack]()
        length = max(until * clock.seconds - began, 1e-3)  # at least one look
        while (part := (clock.spent() - began) / length) < 1:
            keep = keeps(part)
            clock.run(step)
            if keep:
                total = total + many.predict(many.weights, x)
                kept.append(many.copy())
                if len(kept) > 40:
                    kept = kept[::2]  # half as many
        if not kept:
            kept = [many.copy()]
            total = many.predict(many.weights, x)
        held = total / total.sum(-1, keepdim=True)  # type: ignore[union-attr]

        def predictor(x: Tensor) -> Tensor:
            found = [many.predict(w, x).nanmean(0) for w in kept[-20:]]
            return torch.stack(found).nanmean(0)  # of the chains that did not explode

        return held, predictor

    held, _ = run(sizes, 0.5)
    scores = nll(held, y).nan_to_num(math.inf)
    _, predictor = run(torch.full_like(sizes, float(sizes[scores.argmin()])), 0.97)
    return predictor


def with_prior(g: Tensor, w: Tensor, num_data: int) -> Tensor:
    """v under N(0, 1)."""
    return g + w / num_data


def sghmc(problem: Problem, seconds: float, seed: int) -> Predictor:
    """Chen et al. 2014: friction .05, as SMILE's configuration; eta on the scale of mean losses."""
    n, a = problem.kept, 0.05

    def made(many: Many, sizes: Tensor) -> Any:
        r = {k: torch.zeros_like(v) for k, v in many.weights.items()}

        def update(weights: Stack, g: Stack, losses: Tensor) -> None:
            for k, w in weights.items():
                eta = many.per_network(sizes, w)
                noise = torch.randn_like(w) * (2 * a * eta / n).sqrt()
                r[k].mul_(1 - a).sub_(eta * with_prior(g[k], w, n)).add_(noise)
                w.add_(r[k])

        return update, lambda part: part > 0.2

    return sampled(problem, seconds, seed, grid=(1e-5, 1e-4, 1e-3, 1e-2), batch=512, made=made)


def csgld(problem: Problem, seconds: float, seed: int) -> Predictor:
    """Zhang et al. 2020: four cosine cycles, noise and draws in the last fifth of each."""
    n, cycles = problem.kept, 4

    def made(many: Many, sizes: Tensor) -> Any:
        now, hot = torch.ones((), device=sizes.device), torch.zeros((), device=sizes.device)

        def update(weights: Stack, g: Stack, losses: Tensor) -> None:
            for k, w in weights.items():
                eta = many.per_network(sizes, w) * now
                noise = torch.randn_like(w) * (2 * eta / n).sqrt() * hot
                w.sub_(eta * with_prior(g[k], w, n)).add_(noise)

        def keeps(part: float) -> bool:
            inside = (cycles * part) % 1
            now.fill_((math.cos(math.pi * inside) + 1) / 2 + 1e-3)
            hot.fill_(float(inside > 0.8))
            return inside > 0.8

        return update, keeps

    return sampled(problem, seconds, seed, grid=(1e-3, 1e-2, 5e-2, 2e-1), batch=128, made=made)


def smile(problem: Problem, seconds: float, seed: int, kernel: str = "SMILET") -> Predictor:
    clock = Clock(seconds, problem.x.device)
    many = Many(lambda: problem.network(0.0), problem.learned, count=MEMBERS, seed=seed)
    start, _ = trained(many, problem, clock, 0.3)
    return authors_smile.sampled(kernel, problem, seed, clock, many, start)


def psmile(problem: Problem, seconds: float, seed: int) -> Predictor:
    return smile(problem, seconds, seed, "NOISYSMILE")


def multiswag(problem: Problem, seconds: float, seed: int) -> Predictor:
    """Wilson & Izmailov 2020: mean, variance and rank 20 of iterates of constant steps."""
    clock = Clock(seconds, problem.x.device)
    many = Many(lambda: problem.network(0.0), problem.learned, count=MEMBERS, seed=seed)
    start, _ = trained(many, problem, clock, 0.6)
    for k, v in many.weights.items():
        v.copy_(start[k])
    step, draws = many.stepper(adamw(many, RATE / 2), BATCH), list[Stack]()
    while clock.spent() < 0.95 * seconds or not draws:
        clock.run(step)
        clock.run(step)
        draws.append(many.copy())
    draws = draws[-60:]
    mean = {k: torch.stack([w[k] for w in draws]).mean(0) for k in many.weights}
    square = {k: torch.stack([w[k].square() for w in draws]).mean(0) for k in many.weights}
    late = draws[-20:]

    def drawn() -> Stack:
        found, rank = {}, max(2, len(late))
        z = torch.randn(MEMBERS, len(late), device=problem.x.device)
        for k, m in mean.items():
            diagonal = (square[k] - m.square()).clamp_min(1e-30).sqrt()
            apart = torch.stack([w[k] - m for w in late], 1)
            low = (apart * z.reshape(MEMBERS, -1, *(1,) * (m.ndim - 1))).sum(1)
            found[k] = m + diagonal * torch.randn_like(m) / 2**0.5 + low / (2 * (rank - 1)) ** 0.5
        return found

    weights = [drawn() for _ in range(4)]
    return lambda x: torch.stack([many.predict(w, x).mean(0) for w in weights]).mean(0)


# By their authors' packages: one network, as a training loop has it -------------------------------


def ivon(problem: Problem, seconds: float, seed: int) -> Predictor:
    """Shen et al. 2024, the settings of their image classifiers."""
    from ivon import IVON

    torch.manual_seed(seed)
    clock, (x, y) = Clock(seconds, problem.x.device), problem.learned
    network = problem.network(0.0).to(x.device)
    optimizer = IVON(
        network.parameters(), lr=0.2, ess=len(x), weight_decay=2e-4, hess_init=0.5, beta1=0.9,
        beta2=0.99995,
    )  # fmt: skip

    def step() -> None:
        rows = torch.randint(0, len(x), (BATCH,), device=x.device)
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            loss(network, x[rows], y[rows]).backward()
        optimizer.step()

    while (part := clock.spent() / (0.95 * seconds)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 0.2 * (1 + math.cos(math.pi * part)) / 2 * min(1.0, 20 * part + 0.01)
        clock.run(step)

    @torch.no_grad()
    def predictor(x: Tensor) -> Tensor:
        total: Any = 0.0
        for _ in range(64):
            with optimizer.sampled_params():
                total = total + torch.cat([network(p).softmax(-1) for p in x.split(1000)])
        return total / 64

    return predictor


def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(network(x).flatten(0, -2), y.flatten())


def laplace(problem: Problem, seconds: float, seed: int) -> Predictor:
    """Daxberger et al. 2021: their default, last layer and Kronecker factors."""
    from laplace import Laplace

    clock = Clock(seconds, problem.x.device)
    if problem.y.ndim > 1:
        raise ValueError("laplace-torch takes one label for a row, not a sequence of them")
    many = Many(lambda: problem.network(0.0), problem.learned, count=MEMBERS, seed=seed)
    kept, best = trained(many, problem, clock, 0.8)
    network = problem.network(0.0).to(problem.x.device)
    chosen = int(best.argmin())
    network.load_state_dict({k: v[chosen] for k, v in kept.items()})
    found: Any = Laplace(
        network, "classification", subset_of_weights="last_layer", hessian_structure="kron"
    )
    found.fit(DataLoader(TensorDataset(*problem.learned), batch_size=2000))
    found.optimize_prior_precision(method="marglik")
    return lambda x: torch.cat([found(p, link_approx="probit") for p in x.split(1000)])


METHODS: dict[str, Method] = {
    "ours": ours, "ours, microcanonical": ours_microcanonical, "ensemble": ensemble,
    "dropout": dropout, "sghmc": sghmc, "csgld": csgld, "smile": smile, "psmile": psmile,
    "multiswag": multiswag, "ivon": ivon, "laplace": laplace,
}  # fmt: skip
#: What is not compared, and why.
LEFT_OUT = {
    "MILE, bde": "all data in every step",
    "tables of numbers": "the comparison is of class probabilities",
    "small networks; more seeds of rivals on CIFAR-10": "device time",
}
