"""What a step costs here: every metric of this library beside SGD, Adam and peers that are
installed, for a perceptron or one of ``bench_networks``.

All are built first and then timed in turn, in blocks of steps; every repeat begins with another of
them, so that a slow moment of the machine hits all alike. A figure is the median over repeats of
the microseconds that one step takes one chain."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin._internal.extras import new_figure
from natural_langevin.cli.experiments.bench_networks import SIGMA, Task, task
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.optim import NaturalLangevin

REFERENCE = "SGD"
#: The paper's names: its diagonal and quasi-diagonal outer products.
METRICS = {
    "Euclidean": preconditioners.Euclidean, "RMSProp": preconditioners.RMSProp,
    "DOP": preconditioners.DiagonalFisher, "QDOP": preconditioners.QuasiDiagonalFisher,
}  # fmt: skip
#: Small enough that no metric's chains diverge.
STEP_SIZE, PRIOR_VARIANCE = 1e-4, 0.1
ROWS, SECONDS = 2_000, 0.25

#: Takes so many steps.
Advance = Callable[[int], None]


class Way(NamedTuple):
    """How a contender takes steps, and the weights that it has come to."""

    advance: Advance
    weights: Callable[[], Iterable[Tensor]]


class BenchError(ValueError):
    """An invalid option; the message names valid ones."""


@dataclass(frozen=True)
class Options:
    """What is measured: one of ``bench_networks``; numbers of chains; contenders whose name holds
    one of ``only`` (all without)."""

    device: str = "cpu"
    network: str = "784-400-400-10"
    chains: tuple[int, ...] = (1, 4)
    repeats: int = 10
    only: tuple[str, ...] = ()
    seed: int = 0
    threads: int = 0  # 0: as many as torch has

    def __post_init__(self) -> None:
        try:
            task(self.network, rows=1, device="cpu")
        except ValueError as error:
            raise BenchError(str(error)) from None
        if not self.chains or min(self.chains) < 1:
            raise BenchError(f"--chains must be at least 1, got {list(self.chains)}")
        if self.repeats < 1 or self.threads < 0:
            given = f"{self.repeats} and {self.threads}"
            raise BenchError(f"--repeats and --threads must not be negative, got {given}")
        names = [name for name, _ in contenders(self)]
        for word in self.only:
            if not any(word.lower() in name.lower() for name in names):
                raise BenchError(f"--only {word}: there are {', '.join(dict.fromkeys(names))}")

    def wants(self, name: str) -> bool:
        """Whether a contender takes part; the one that others are divided by always does."""
        words = [word.lower() for word in self.only]
        return name == REFERENCE or not words or any(word in name.lower() for word in words)


def run(options: Options, *, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Rows with microseconds per chain-step, and their ratio to SGD's, beside where they were
    measured."""
    with _threads(options.threads):
        rows: list[dict[str, Any]] = []
        missing: list[str] = []
        ways: list[tuple[Advance, int]] = []
        own = task(options.network, rows=ROWS, device=options.device, seed=options.seed)
        for (name, chains), build in contenders(options).items():
            if options.wants(name):
                try:
                    advance = build(own).advance
                except ImportError:
                    missing.append(name)
                    say(f"{name} is not installed: pip install 'natural-langevin[bench]'")
                    continue
                rows.append({"name": name, "chains": chains, "microseconds": []})
                ways.append((advance, _block(advance, options.device)))
                say(f"{name}, {chains} chain{'s' * (chains > 1)}: blocks of {ways[-1][1]} steps")
        for repeat in range(options.repeats):
            gc.collect()
            for k in range(len(rows)):
                place = (k + repeat) % len(rows)
                (advance, count), row = ways[place], rows[place]
                taken = _timed(advance, count, options.device)
                row["microseconds"].append(1e6 * taken / (count * row["chains"]))
            say(f"repeat {repeat + 1} of {options.repeats}")
    base = statistics.median(rows[0]["microseconds"])
    for row in rows:
        row["median"] = statistics.median(row["microseconds"])
        row["ratio"] = row["median"] / base
    return {
        "kind": "bench", **origin(options.device), "config": asdict(options), "rows": rows,
        "not_installed": missing,
    }  # fmt: skip


def contenders(options: Options) -> dict[tuple[str, int], Callable[[Task], Way]]:
    """What builds each, by name and number of chains; SGD first. ImportError: it is not
    installed."""
    seed = options.seed
    found: dict[tuple[str, int], Callable[[Task], Way]] = {
        (REFERENCE, 1): partial(sgd, seed=seed), ("SGD + randn", 1): partial(sgld, seed=seed),
        ("Adam", 1): partial(adam, seed=seed), ("IVON", 1): partial(ivon, seed=seed),
        ("posteriors, SGLD", 1): partial(posteriors, seed=seed),
        ("optimizer, QDOP", 1): partial(optimizer, seed=seed),
    }  # fmt: skip
    for chains in options.chains:
        found |= {
            (name, chains): partial(langevin, name=name, chains=chains, seed=seed)
            for name in METRICS
        }
    return found


def minibatches(task: Task, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows drawn with replacement, without end."""
    device = task.x.device
    random = torch.Generator(device).manual_seed(seed)
    while True:
        index = torch.randint(len(task.x), (task.batch_size,), generator=random, device=device)
        yield task.x[index], task.y[index]


def likelihood_of(task: Task) -> likelihoods.Likelihood:
    """The likelihood whose mean log-loss is ``task.loss``."""
    numbers = task.y.is_floating_point()
    return likelihoods.Gaussian(sigma=SIGMA) if numbers else likelihoods.Categorical()


def loop(
    task: Task, seed: int, model: nn.Module, optimizer: torch.optim.Optimizer,
    then: Callable[[], None] = lambda: None,
) -> Way:  # fmt: skip
    """The loop that every tutorial shows, and something after each step."""
    batches = minibatches(task, seed)

    def advance(count: int) -> None:
        for _ in range(count):
            x, y = next(batches)
            optimizer.zero_grad()
            task.loss(model(x), y).backward()
            optimizer.step()
            then()

    return Way(advance, model.parameters)


def sgd(task: Task, seed: int = 0) -> Way:
    """``torch.optim.SGD`` in a plain loop."""
    model = task.build()
    return loop(task, seed, model, torch.optim.SGD(model.parameters(), STEP_SIZE))


def sgld(task: Task, seed: int = 0) -> Way:
    """SGLD by hand: weight decay 1 / (N variance) is the prior, and sqrt(2 eta / N) randn is added
    to every weight."""
    model, rows = task.build(), len(task.x)
    random = torch.Generator(task.x.device).manual_seed(seed)
    decay, scale = 1 / (rows * PRIOR_VARIANCE), math.sqrt(2 * STEP_SIZE / rows)
    own = torch.optim.SGD(model.parameters(), STEP_SIZE, weight_decay=decay)

    @torch.no_grad()
    def diffuse() -> None:
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=random, device=p.device), alpha=scale)

    return loop(task, seed, model, own, diffuse)


def adam(task: Task, seed: int = 0) -> Way:
    """``torch.optim.Adam`` in the same loop."""
    model = task.build()
    return loop(task, seed, model, torch.optim.Adam(model.parameters(), STEP_SIZE))


def optimizer(task: Task, seed: int = 0, *, name: str = "QDOP") -> Way:
    """``optim.NaturalLangevin`` in the same loop, with one of ``METRICS``."""
    model = task.build()
    own = NaturalLangevin(
        model, likelihood_of(task), num_data=len(task.x), lr=STEP_SIZE, seed=seed,
        prior=priors.Gaussian(variance=PRIOR_VARIANCE), preconditioner=METRICS[name](),
    )  # fmt: skip
    return loop(task, seed, model, own)


def ivon(task: Task, seed: int = 0) -> Way:
    """Variational learning by an improved Newton's method, one sample of weights per step."""
    from ivon import IVON

    model, batches = task.build(), minibatches(task, seed)
    own = IVON(model.parameters(), lr=STEP_SIZE, ess=len(task.x))

    def advance(count: int) -> None:
        for _ in range(count):
            x, y = next(batches)
            with own.sampled_params(train=True):
                own.zero_grad()
                task.loss(model(x), y).backward()
            own.step()

    return Way(advance, model.parameters)


def posteriors(task: Task, seed: int = 0) -> Way:
    """SGLD of the package of that name: mean log-likelihood plus log-prior / N, temperature 1/N."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its classes warn about TensorDict's future
        from posteriors.sgmcmc import sgld
    model, batches, rows = task.build(), minibatches(task, seed), len(task.x)

    def log_posterior(params: dict[str, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(model, params, (batch[0],))
        prior = -sum(p.square().sum() for p in params.values()) / (2 * PRIOR_VARIANCE)
        return -task.loss(outputs, batch[1]) + prior / rows, outputs

    own = sgld.build(log_posterior, lr=STEP_SIZE, temperature=1 / rows)
    state = own.init({name: p.detach() for name, p in model.named_parameters()})

    def advance(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state, _ = own.update(state, next(batches))

    return Way(advance, lambda: state.params.values())


def langevin(task: Task, *, name: str, chains: int, seed: int = 0) -> Way:
    """The engine that ``sample`` uses, with one of ``METRICS``."""
    own = Steps(sampler(task, METRICS[name](), chains=chains, seed=seed), task)
    return Way(own.advance, lambda: own.state.params.values())


def sampler(task: Task, metric: preconditioners.Preconditioner, **options: Any) -> Langevin:
    """The sampler of a task; ``options``: further ones of ``Langevin``."""
    return Langevin(
        task.build(), likelihood_of(task), prior=priors.Gaussian(variance=PRIOR_VARIANCE),
        preconditioner=metric, step_size=STEP_SIZE, device=task.x.device, **options,
    )  # fmt: skip


class Steps:
    """A sampler's steps, however many: a run that is longer than its table of rates begins again,
    at the same cost."""

    most = 20_000

    def __init__(self, sampler: Langevin, task: Task) -> None:
        self.engine, self.state = sampler.prepare(
            (task.x, task.y), steps=self.most, batch_size=task.batch_size
        )
        self._done = 0

    def advance(self, count: int) -> None:
        """Takes so many, of all chains."""
        if self._done + count > self.most:
            self.state.step.zero_()
            self._done = 0
        self.state, _ = self.engine.run(self.state, self._done, count)
        self._done += count


def _timed(advance: Advance, count: int, device: str) -> float:
    """Seconds of so many steps."""
    began = time.perf_counter()
    advance(count)
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _block(advance: Advance, device: str) -> int:
    """Steps that take about ``SECONDS``, found by doubling: the first ones compile."""
    for _ in range(3):
        _timed(advance, 1, device)
    count = 1
    while (taken := _timed(advance, count, device)) < SECONDS / 4 and count < 5000:
        count *= 2
    return max(1, min(10_000, round(SECONDS * count / taken)))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Cells of the rows, for people."""
    found = []
    for row in rows:
        extremes = f"{min(row['microseconds']):,.1f} to {max(row['microseconds']):,.1f}"
        figures = f"{row['median']:,.1f}", extremes, f"{row['ratio']:.2f}"
        found.append([row["name"], str(row["chains"]), *figures])
    return found


def picture(results: dict[str, Any], path: str | os.PathLike[str]) -> str:
    """Draws the ratios to SGD, and returns the path, or says why there is no picture."""
    rows = results["rows"]
    try:
        axis = new_figure(figsize=(7, 0.8 + 0.3 * len(rows))).subplots()
    except ImportError:
        return "no picture: pip install 'natural-langevin[bench]' for matplotlib"
    names = [f"{r['name']}, {r['chains']} chains" if r["chains"] > 1 else r["name"] for r in rows]
    bars = axis.barh(names, [row["ratio"] for row in rows], color="#1b6ca8")
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.invert_yaxis()
    axis.axvline(1, color="#404040", linewidth=0.8)
    title = f"{results['config']['network']}: time per chain-step ÷ eager SGD"
    axis.set_title(title, fontsize=10, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.figure.savefig(path, dpi=150)
    return str(path)
