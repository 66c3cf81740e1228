"""What a step costs here: every metric of this library beside SGD, on this machine.

All are built first and then timed in turn, in blocks of steps; every repeat begins with another of
them, so that a slow moment of the machine hits all alike. A figure is the median over repeats of
the microseconds that one step takes one chain. The data are noise with labels from a random linear
map: the time of a step does not depend on what the numbers mean.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, models, preconditioners, priors
from natural_langevin.experiments.origin import origin

REFERENCE = "SGD"
#: The paper's names: its diagonal and quasi-diagonal outer products.
METRICS = {
    "Euclidean": preconditioners.Euclidean, "RMSProp": preconditioners.RMSProp,
    "DOP": preconditioners.DiagonalFisher, "QDOP": preconditioners.QuasiDiagonalFisher,
}  # fmt: skip
#: Small enough that no metric's chains diverge.
STEP_SIZE, PRIOR_VARIANCE, SIGMA = 1e-4, 0.1, 0.5
ROWS, BATCH, SECONDS = 10_000, 100, 0.25

#: Takes so many steps.
Advance = Callable[[int], None]


class BenchError(ValueError):
    """An option that cannot be had; the message says what can."""


@dataclass(frozen=True)
class Options:
    """What is measured: widths of a perceptron from inputs to outputs, of which one is a
    regression; numbers of chains; contenders whose name holds one of ``only`` (all without)."""

    device: str = "cpu"
    network: tuple[int, ...] = (784, 400, 400, 10)
    chains: tuple[int, ...] = (1, 4)
    repeats: int = 10
    only: tuple[str, ...] = ()
    seed: int = 0
    threads: int = 0  # 0: as many as torch has

    def __post_init__(self) -> None:
        if len(self.network) < 2 or min(self.network) < 1:
            raise BenchError("--network needs widths such as 784-400-400-10")
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
        ways: list[tuple[Advance, int]] = []
        for (name, chains), build in contenders(options).items():
            if options.wants(name):
                advance = build()
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
    return {"kind": "bench", **origin(options.device), "config": asdict(options), "rows": rows}


def contenders(options: Options) -> dict[tuple[str, int], Callable[[], Advance]]:
    """What builds each, by name and number of chains; SGD first."""
    found: dict[tuple[str, int], Callable[[], Advance]] = {
        (REFERENCE, 1): partial(sgd, options, noise=False),
        ("SGD + randn", 1): partial(sgd, options, noise=True),
    }
    for chains in options.chains:
        found |= {(name, chains): partial(langevin, options, name, chains) for name in METRICS}
    return found


def data(options: Options) -> tuple[Tensor, Tensor]:
    """Rows and their targets, on the device."""
    generator = torch.Generator().manual_seed(options.seed)
    inputs, outputs = options.network[0], options.network[-1]
    x = torch.rand(ROWS, inputs, generator=generator)
    signal = (x - 0.5) @ torch.randn(inputs, outputs, generator=generator)
    noise = SIGMA * torch.randn(signal.shape, generator=generator)
    y = signal + noise if outputs == 1 else signal.argmax(1)
    return x.to(options.device), y.to(options.device)


def network(options: Options) -> nn.Module:
    """The perceptron, the same every time."""
    inputs, *hidden, outputs = options.network
    return models.mlp(inputs, outputs, hidden, seed=options.seed).to(options.device)


def sgd(options: Options, *, noise: bool) -> Advance:
    """``torch.optim.SGD`` in a plain loop; with ``noise``, SGLD by hand: weight decay is the prior,
    and sqrt(2 eta / N) randn is added to every weight."""
    (x, y), model = data(options), network(options)
    random = torch.Generator(options.device).manual_seed(options.seed)
    decay, scale = 1 / (ROWS * PRIOR_VARIANCE), math.sqrt(2 * STEP_SIZE / ROWS)
    optimizer = torch.optim.SGD(model.parameters(), STEP_SIZE, weight_decay=decay if noise else 0.0)
    loss = nn.CrossEntropyLoss() if options.network[-1] > 1 else nn.MSELoss()

    def advance(count: int) -> None:
        for _ in range(count):
            index = torch.randint(ROWS, (BATCH,), generator=random, device=options.device)
            optimizer.zero_grad()
            loss(model(x[index]), y[index]).backward()
            optimizer.step()
            if noise:
                with torch.no_grad():
                    for p in model.parameters():
                        draw = torch.randn(p.shape, generator=random, device=p.device)
                        p.add_(draw, alpha=scale)

    return advance


def langevin(options: Options, name: str, chains: int) -> Advance:
    """The engine that ``sample`` uses, with one of ``METRICS``."""
    one = options.network[-1] == 1
    sampler = Langevin(
        network(options), likelihoods.Gaussian(sigma=SIGMA) if one else likelihoods.Categorical(),
        prior=priors.Gaussian(variance=PRIOR_VARIANCE), preconditioner=METRICS[name](),
        step_size=STEP_SIZE, chains=chains, seed=options.seed, device=options.device,
    )  # fmt: skip
    steps = 20_000  # a longer run begins again: the cost is the same
    engine, state = sampler.prepare(data(options), steps=steps, batch_size=BATCH)
    done = 0

    def advance(count: int) -> None:
        nonlocal state, done
        if done + count > steps:
            state.step.zero_()
            done = 0
        state, _ = engine.run(state, done, count)
        done += count

    return advance


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
