"""What a step costs for the networks that people have, beside SGD on the same machine.

    python -m lab.speed_networks --out speed_networks.json          # CUDA where there is one
    python -m lab.speed_networks --device cpu --networks perceptron cnn layernorm
    python -m lab.speed_networks --tf32 --only optimizer            # a part of the table

Every network has rows of its own: SGD eagerly (the reference) and, on a GPU, as a CUDA graph;
``optim.NaturalLangevin`` with each metric; ``Langevin`` with one chain and with four. Repeats are
interleaved, each a block of about ``--seconds``; a figure is the median over repeats of
milliseconds per step (of one chain), with quartiles, the ratio to SGD, the seconds of the first
call, and on a GPU the memory that a row's steps had allocated at most. One file is enough: it
needs torch and natural_langevin alone.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors
from natural_langevin._internal.provenance import versions
from natural_langevin.experiments.speed.networks import GPT, LastOfLSTM, residual_network
from natural_langevin.optim import NaturalLangevin

ROWS_OF_DATA = 1_024
STEPS = 4_000  # of a sampler's table of rates; a block is shorter
LR = 1e-6
METRICS: dict[str, Callable[[], preconditioners.Preconditioner]] = {
    "QDOP": preconditioners.QuasiDiagonalFisher,
    "QDOP every=4": lambda: preconditioners.QuasiDiagonalFisher(every=4),
    "RMSProp": preconditioners.RMSProp,
    "Euclidean": preconditioners.Euclidean,
}


# Networks -----------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A network, a minibatch's size, and what its inputs and labels look like."""

    network: Callable[[], nn.Module]
    batch: int
    inputs: tuple[int, ...]  # of one sample
    classes: int
    tokens: bool = False  # inputs are tokens, and every one of them has a label

    def data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        shape = (ROWS_OF_DATA, *self.inputs)
        if self.tokens:
            x = torch.randint(0, self.classes, shape, generator=generator)
        else:
            x = torch.randn(shape, generator=generator)
        labels = shape if self.tokens else shape[:1]
        y = torch.randint(0, self.classes, labels, generator=generator)
        return x.to(device), y.to(device)


def _perceptron(*sizes: int, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), *([nn.LayerNorm(b)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers[: -2 if norm else -1])


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


PROBLEMS = {
    "perceptron": Problem(lambda: _perceptron(784, 400, 400, 10), 100, (784,), 10),
    "cnn": Problem(_cnn, 100, (1, 28, 28), 10),
    "layernorm": Problem(lambda: _perceptron(20, 64, 64, 10, norm=True), 100, (20,), 10),
    "transformer": Problem(lambda: GPT(2, 64, 32, 64, 4), 32, (32,), 64, True),
    "lstm": Problem(lambda: LastOfLSTM(8, 32, 10), 100, (16, 8), 10),
    "small residual": Problem(lambda: residual_network([16, 32], 1), 50, (3, 16, 16), 10),
    "residual": Problem(lambda: residual_network([32], 4), 100, (3, 32, 32), 10),
    "resnet18": Problem(lambda: residual_network([64, 128, 256, 512], 2), 128, (3, 32, 32), 10),
    "gpt": Problem(lambda: GPT(6, 512, 128, 256, 8), 32, (128,), 256, True),
}
ON_A_GPU = ["perceptron", "residual", "resnet18", "gpt"]
ON_A_CPU = ["perceptron", "cnn", "layernorm", "transformer", "lstm", "small residual"]


# Contenders ---------------------------------------------------------------------------------------

Advance = Callable[[int], Any]


class Batches:
    """Minibatches in a fixed order."""

    def __init__(self, problem: Problem, data: tuple[Tensor, Tensor]) -> None:
        self.x, self.y = (tensor.split(problem.batch)[:-1] for tensor in data)
        self._next = 0

    def __call__(self) -> tuple[Tensor, Tensor]:
        self._next = (self._next + 1) % len(self.x)
        return self.x[self._next], self.y[self._next]


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), y.flatten())


def sgd(problem: Problem, data: tuple[Tensor, Tensor], device: torch.device) -> Advance:
    model = problem.network().to(device)
    optimizer, batches = torch.optim.SGD(model.parameters(), lr=LR), Batches(problem, data)

    def advance(count: int) -> None:
        for _ in range(count):
            x, y = batches()
            optimizer.zero_grad()
            _loss(model(x), y).backward()
            optimizer.step()

    return advance


def graphed_sgd(problem: Problem, data: tuple[Tensor, Tensor], device: torch.device) -> Advance:
    """The same, recorded once and replayed: forward, backward and update."""
    model = problem.network().to(device)
    optimizer, batches = torch.optim.SGD(model.parameters(), lr=LR), Batches(problem, data)
    x, y = (tensor.clone() for tensor in batches())

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        _loss(model(x), y).backward()
        optimizer.step()

    return _recorded(step, (x, y), batches)


def _recorded(step: Callable[[], Any], static: tuple[Tensor, Tensor], batches: Batches) -> Advance:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def advance(count: int) -> None:
        for _ in range(count):
            for into, value in zip(static, batches(), strict=True):
                into.copy_(value)
            graph.replay()

    return advance


def optimizer_of(model: nn.Module, metric: str, **options: Any) -> NaturalLangevin:
    return NaturalLangevin(
        model, likelihoods.Categorical(), num_data=50_000, lr=LR, prior=priors.Gaussian(0.1),
        preconditioner=METRICS[metric](), check_loss=False, **options,
    )  # fmt: skip


def ours(metric: str) -> Callable[..., Advance]:
    """``NaturalLangevin`` in the same loop as SGD."""

    def make(problem: Problem, data: tuple[Tensor, Tensor], device: torch.device) -> Advance:
        model = problem.network().to(device)
        optimizer, batches = optimizer_of(model, metric), Batches(problem, data)

        def advance(count: int) -> None:
            for _ in range(count):
                x, y = batches()
                optimizer.zero_grad()
                _loss(model(x), y).backward()
                optimizer.step()

        advance(1)
        return advance

    return make


def recorded_ours(metric: str) -> Callable[..., Advance]:
    """``NaturalLangevin(capturable=True)``: forward, backward and step as one CUDA graph."""

    def make(problem: Problem, data: tuple[Tensor, Tensor], device: torch.device) -> Advance:
        model = problem.network().to(device)
        optimizer, batches = optimizer_of(model, metric, capturable=True), Batches(problem, data)
        x, y = (tensor.clone() for tensor in batches())

        def step() -> None:
            optimizer.zero_grad()
            _loss(model(x), y).backward()
            optimizer.step()

        return _recorded(step, (x, y), batches)

    return make


def langevin(
    metric: str, chains: int, autocast: torch.dtype | None = None
) -> Callable[..., Advance]:
    """``Langevin``, as ``sample`` runs it."""

    def make(problem: Problem, data: tuple[Tensor, Tensor], device: torch.device) -> Advance:
        sampler = Langevin(
            problem.network(), likelihoods.Categorical(), prior=priors.Gaussian(0.1),
            preconditioner=METRICS[metric](), step_size=LR, chains=chains, device=device,
            autocast=autocast,
        )  # fmt: skip
        engine, state = sampler.prepare(data, steps=STEPS, batch_size=problem.batch)
        done = 0

        def advance(count: int) -> str:
            nonlocal state, done
            if done + count > STEPS:
                state.step.zero_()
                done = 0
            state, _ = engine.run(state, done, count)
            done += count
            return str(engine.way)

        advance(1)
        return advance

    return make


class Row:
    """A contender and what was measured of it."""

    def __init__(self, name: str, chains: int, make: Callable[..., Advance]) -> None:
        self.name, self.chains, self.make = name, chains, make
        self.advance: Advance | None = None
        self.first, self.block, self.memory = 0.0, 1, 0.0
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.error = ""


def contenders(device: torch.device, parts: list[str], metrics: list[str]) -> list[Row]:
    rows = [Row("SGD", 1, sgd)]
    if device.type == "cuda":
        rows.append(Row("SGD, CUDA graph", 1, graphed_sgd))
    for metric in metrics:
        if "optimizer" in parts:
            rows.append(Row(f"optimizer {metric}", 1, ours(metric)))
            if device.type == "cuda" and metric in ("QDOP", "RMSProp"):
                rows.append(Row(f"optimizer {metric}, CUDA graph", 1, recorded_ours(metric)))
        if "langevin" in parts and "every" not in metric and metric != "Euclidean":
            rows += [Row(f"Langevin {metric}, {c}", c, langevin(metric, c)) for c in (1, 4)]
        if "langevin" in parts and metric == "QDOP" and device.type == "cuda":
            rows.append(Row("Langevin QDOP, 1, bfloat16", 1, langevin("QDOP", 1, torch.bfloat16)))
    return rows


# Measuring ----------------------------------------------------------------------------------------


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(row: Row, device: torch.device, count: int) -> tuple[float, float]:
    """Seconds, and seconds of all threads."""
    assert row.advance is not None
    wait(device)
    started, cpu = time.perf_counter(), time.process_time()
    row.advance(count)
    wait(device)
    return time.perf_counter() - started, time.process_time() - cpu


def make_ready(row: Row, problem: Problem, data: Any, device: torch.device, block: float) -> None:
    started = time.perf_counter()
    try:
        torch.manual_seed(0)
        row.advance = row.make(problem, data, device)
        wait(device)
        row.first = time.perf_counter() - started
        timed(row, device, 3)
        if device.type == "cuda":
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        seconds = min(timed(row, device, 2)[0] / 2 for _ in range(2))
        if device.type == "cuda":
            row.memory = (torch.cuda.max_memory_allocated(device) - before) / 2**20
        row.block = max(2, min(1_000, round(block / seconds)))
    except Exception as error:  # one row must not end the others
        row.error, row.advance = f"{type(error).__name__}: {error}"[:300], None


def spread(values: list[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values
    return {"median": statistics.median(values), "q1": quartiles[0], "q3": quartiles[-1]}


def measure(name: str, args: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    problem = PROBLEMS[name]
    data = problem.data(device)
    rows = contenders(device, args.only, args.metrics)
    for row in rows:
        make_ready(row, problem, data, device, args.seconds)
        print(f"{name}: {row.name}: {row.error or f'ready in {row.first:.1f} s'}", file=sys.stderr)
    running = [row for row in rows if row.advance is not None]
    for repeat in range(args.repeats):
        turn = repeat % len(running)
        gc.collect()
        for row in running[turn:] + running[:turn]:
            wall, cpu = timed(row, device, row.block)
            row.wall.append(1e3 * wall / (row.block * row.chains))
            row.cpu.append(1e3 * cpu / (row.block * row.chains))
    weights = sum(p.numel() for p in problem.network().parameters())
    found = []
    for row in rows:
        one: dict[str, Any] = {
            "network": name, "weights": weights, "batch": problem.batch, "row": row.name,
            "chains": row.chains, "error": row.error,
        }  # fmt: skip
        if row.wall:
            one |= {
                "first_call_seconds": row.first, "block": row.block, "step_memory_MiB": row.memory,
                "ms_per_chain_step": spread(row.wall), "cpu_ms_per_chain_step": spread(row.cpu),
                "ratio": statistics.median(row.wall) / statistics.median(rows[0].wall),
                "cpu_ratio": statistics.median(row.cpu) / statistics.median(rows[0].cpu),
            }  # fmt: skip
        found.append(one)
    return found


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["error"]:
            print(f"{row['network']:15} {row['row']:24} {row['error'][:90]}")
            continue
        print(
            f"{row['network']:15} {row['row']:24} {row['ms_per_chain_step']['median']:9.3f} ms  "
            f"x{row['ratio']:.2f} (CPU time x{row['cpu_ratio']:.2f})  "
            f"first {row['first_call_seconds']:.1f} s  {row['step_memory_MiB']:.0f} MiB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="*", choices=list(PROBLEMS))
    parser.add_argument("--only", nargs="*", default=["optimizer", "langevin"])
    parser.add_argument("--metrics", nargs="*", default=list(METRICS), choices=list(METRICS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a block")
    parser.add_argument("--tf32", action="store_true", help="TF32 products on a GPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    started = time.time()
    names = args.networks or (ON_A_GPU if device.type == "cuda" else ON_A_CPU)
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += measure(name, args, device)
        show(rows[-len(contenders(device, args.only, args.metrics)) :])
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report = {
        "what": "milliseconds per step and chain; ratio to eager SGD of the same network",
        "configuration": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "machine": platform.platform(),
        "versions": versions(),
        "seconds": time.time() - started,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    else:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
