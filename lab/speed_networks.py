"""What a step costs for the networks that people have, beside SGD on the same machine.

    python -m lab.speed_networks --out speed_networks.json          # CUDA where there is one
    python -m lab.speed_networks --device cpu --networks perceptron cnn layernorm
    python -m lab.speed_networks --tf32 --only optimizer            # a part of the table
    python -m lab.speed_networks --device cpu --networks tiny --profile

Every row is a process of its own, in which eager SGD of the same network takes turns with it:
SGD as a CUDA graph, ``optim.NaturalLangevin`` with each metric, eagerly and recorded, ``Langevin``
with one chain and with four. A line of JSON for each as soon as it is known: milliseconds per step
(of one chain), median and quartiles over ``--repeats`` blocks of about ``--seconds``; the ratio to
SGD, the median over repeats of each pair's; the seconds of the first call; on a GPU the memory at
most, and with ``--profile`` the milliseconds of kernels, those of the host and the longest kernels.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import torch
from torch import nn

from lab import gpu
from lab.jobs import NoAnswerError, answer, dismiss, started
from lab.results import write_results
from natural_langevin import likelihoods, preconditioners, priors
from natural_langevin.cli.experiments import bench
from natural_langevin.cli.experiments.bench_networks import BUILT, GPT, Task, residual_network
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.optim import NaturalLangevin

ROWS_OF_DATA = 1_024
WARM_UP = 6.0  # seconds of a CPU's row
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

    def task(self, device: torch.device) -> Task:
        """With rows of data, on a device."""
        generator = torch.Generator().manual_seed(1)
        shape = (ROWS_OF_DATA, *self.inputs)
        if self.tokens:
            x = torch.randint(0, self.classes, shape, generator=generator)
        else:
            x = torch.randn(shape, generator=generator)
        labels = shape if self.tokens else shape[:1]
        y = torch.randint(0, self.classes, labels, generator=generator)
        return Task(lambda: self.network().to(device), x.to(device), y.to(device), self.batch)


def _perceptron(*sizes: int, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), *([nn.LayerNorm(b)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers[: -2 if norm else -1])


PROBLEMS = {
    "perceptron": Problem(lambda: _perceptron(784, 400, 400, 10), 100, (784,), 10),
    "cnn": Problem(BUILT["cnn"], 100, (1, 28, 28), 10),
    "layernorm": Problem(lambda: _perceptron(20, 64, 64, 10, norm=True), 100, (20,), 10),
    "transformer": Problem(lambda: GPT(2, 64, 32, 64, 4), 32, (32,), 64, True),
    "lstm": Problem(BUILT["lstm"], 100, (16, 8), 10),
    "small residual": Problem(lambda: residual_network([16, 32], 1), 50, (3, 16, 16), 10),
    "residual": Problem(lambda: residual_network([32], 4), 100, (3, 32, 32), 10),
    "resnet18": Problem(BUILT["resnet18"], 128, (3, 32, 32), 10),
    "tiny": Problem(lambda: residual_network([8, 16], 1), 10, (3, 8, 8), 10),
    "gpt": Problem(BUILT["gpt"], 32, (128,), 256, True),
}
ON_A_GPU = ["resnet18", "gpt", "residual"]
ON_A_CPU = ["perceptron", "cnn", "layernorm", "transformer", "lstm", "small residual"]


# Contenders ---------------------------------------------------------------------------------------

Advance = Callable[[int], Any]
#: What makes a contender's steps on a task.
Make = Callable[[Task], Advance]


def sgd(task: Task) -> Advance:
    """``torch.optim.SGD`` in a plain loop."""
    return bench.sgd(task).advance


def natural(metric: str, **options: Any) -> Callable[[nn.Module], NaturalLangevin]:
    """The optimizer of a network."""
    return lambda model: NaturalLangevin(
        model, likelihoods.Categorical(), num_data=50_000, lr=LR, prior=priors.Gaussian(0.1),
        preconditioner=METRICS[metric](), check_loss=False, **options,
    )  # fmt: skip


def ours(metric: str) -> Make:
    """``NaturalLangevin`` in the same loop as SGD."""

    def make(task: Task) -> Advance:
        model = task.build()
        advance = bench.loop(task, 0, model, natural(metric)(model)).advance
        advance(1)
        return advance

    return make


def recorded(optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]) -> Make:
    """Forward, backward and step of an optimizer as one CUDA graph."""

    def make(task: Task) -> Advance:
        model, batches = task.build(), bench.minibatches(task, 0)
        optimizer, (x, y) = optimizer_of(model), next(batches)

        def step() -> None:
            optimizer.zero_grad()
            task.loss(model(x), y).backward()
            optimizer.step()

        replay = gpu.recorded(step)

        def advance(count: int) -> None:
            for _ in range(count):
                for into, value in zip((x, y), next(batches), strict=True):
                    into.copy_(value)
                replay()

        return advance

    return make


def langevin(metric: str, chains: int, **options: Any) -> Make:
    """``Langevin``, as ``sample`` runs it."""

    def make(task: Task) -> Advance:
        steps = bench.Steps(bench.sampler(task, METRICS[metric](), chains=chains, **options), task)

        def advance(count: int) -> str:
            steps.advance(count)
            return str(steps.engine.way)

        advance(1)
        return advance

    return make


class Row(NamedTuple):
    """A contender."""

    name: str
    chains: int
    make: Make


def contenders(device: torch.device, parts: list[str], metrics: list[str]) -> list[Row]:
    rows = []
    for metric in metrics if "optimizer" in parts else ():
        rows.append(Row(f"optimizer {metric}", 1, ours(metric)))
        if device.type == "cuda" and "every" not in metric:
            graph = recorded(natural(metric, capturable=True))
            rows.append(Row(f"optimizer {metric}, CUDA graph", 1, graph))
    for metric in metrics if "langevin" in parts else ():
        if metric == "QDOP":
            rows += [Row(f"Langevin {metric}, {c}", c, langevin(metric, c)) for c in (1, 4)]
            if device.type == "cuda":
                bfloat16 = langevin("QDOP", 1, autocast=torch.bfloat16)
                rows.append(Row("Langevin QDOP, 1, bfloat16", 1, bfloat16))
            rows.append(Row("Langevin QDOP, 1, eager", 1, langevin("QDOP", 1, compile=False)))
        elif metric == "RMSProp":
            rows.append(Row(f"Langevin {metric}, 4", 4, langevin(metric, 4)))
    if device.type == "cuda":
        plain = recorded(lambda model: torch.optim.SGD(model.parameters(), lr=LR))
        rows.append(Row("SGD, CUDA graph", 1, plain))
    return rows


# Measuring ----------------------------------------------------------------------------------------


def clock(device: torch.device) -> tuple[str, Callable[[], float]]:
    """CPU time of one thread, whatever else the machine does; elsewhere the time that passes."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return "CPU time", time.process_time
    return "time", time.perf_counter


class Measured:
    """A row that has been made, and its times."""

    def __init__(self, row: Row, task: Task) -> None:
        self.row, self.device, self.ms = row, (device := task.x.device), list[float]()
        on_gpu = device.type == "cuda"
        before = torch.cuda.memory_allocated(device) if on_gpu else 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        started = time.perf_counter()
        torch.manual_seed(0)
        self.advance = row.make(task)
        gpu.synchronise(device)
        self.first_call = time.perf_counter() - started
        peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
        self.timed(3)
        while not on_gpu and row.name != "SGD":  # what is repeated is traced after two seconds
            self.timed(20)
            if time.perf_counter() - started - self.first_call > WARM_UP:
                break
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        self.seconds = min(self.timed(2) for _ in range(2))
        steady = torch.cuda.max_memory_allocated(device) if on_gpu else 0
        self.memory = {"making": (peak - before) / 2**20, "steps": (steady - before) / 2**20}

    def timed(self, count: int) -> float:
        """Seconds per step of all chains."""
        _, now = clock(self.device)
        gpu.synchronise(self.device)
        started = now()
        self.advance(count)
        gpu.synchronise(self.device)
        return (now() - started) / count

    def block(self, seconds: float) -> float:
        """Milliseconds per step and chain, over a block of about so many seconds."""
        count = max(2, min(1_000, round(seconds / self.seconds)))
        self.ms.append(1e3 * self.timed(count) / self.row.chains)
        return self.ms[-1]

    def profile(self, most: int = 30) -> dict[str, Any]:
        """Of a step of all chains: milliseconds until the host has launched it, milliseconds of
        kernels, the longest of them, and what operations of which shapes they are for (where the
        step is no graph)."""
        gpu.synchronise(self.device)
        started = time.perf_counter()
        self.advance(5)
        host = (time.perf_counter() - started) / 5
        gpu.synchronise(self.device)
        kinds = [torch.profiler.ProfilerActivity.CPU]
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=kinds, record_shapes=True) as found:
            self.advance(2)
            gpu.synchronise(self.device)
        key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        operations = [e for e in found.key_averages(True) if e.device_type.name == "CPU"]
        operations.sort(key=lambda e: -getattr(e, key))
        events = found.key_averages()
        where = "CUDA" if on_gpu else "CPU"
        steps = [e for e in events if e.device_type.name == where]
        events = [e for e in steps if not e.key.startswith("Optimizer.")]
        events.sort(key=lambda e: -getattr(e, key))
        total = sum(getattr(e, key) for e in events)
        longest = [[e.key[:110], e.count / 2, getattr(e, key) / 2e3] for e in events[:most]]
        by_shape = [
            [e.key, str(e.input_shapes)[:90], e.count / 2, getattr(e, key) / 2e3]
            for e in operations[:60]
        ]
        return {
            "host_ms": 1e3 * host,
            "kernels_ms": total / 2e3,
            "launches": sum(e.count for e in events) / 2,
            "longest": longest,
            "operations": by_shape,
        }


def spread(values: list[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values
    return {"median": statistics.median(values), "q1": quartiles[0], "q3": quartiles[-1]}


def measure(network: str, row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """One row, with SGD taking turns."""
    task = PROBLEMS[network].task(torch.device(args.device))
    reference, one = Measured(Row("SGD", 1, sgd), task), Measured(row, task)
    gc.collect()
    ratios = []
    for repeat in range(args.repeats):
        turn = (reference, one) if repeat % 2 else (one, reference)
        for contender in turn:
            contender.block(args.seconds)
        ratios.append(one.ms[-1] / reference.ms[-1])
    found = {
        "network": network, "row": row.name, "chains": row.chains, "batch": task.batch_size,
        "weights": sum(p.numel() for p in task.build().parameters()),
        "ratio": spread(ratios), "ms_per_chain_step": spread(one.ms),
        "sgd_ms": spread(reference.ms), "first_call_seconds": one.first_call,
        "memory_MiB": one.memory, "sgd_memory_MiB": reference.memory,
    }  # fmt: skip
    if args.profile:
        found["profile"] = one.profile()
        if row.name == "optimizer Euclidean":
            found["sgd_profile"] = reference.profile()
    return found


# Processes ----------------------------------------------------------------------------------------


def child(args: argparse.Namespace) -> None:
    """Measures one row when it is told to, and prints it."""
    if args.device != "cpu":
        torch.zeros(1, device=args.device)  # while another row is being measured
    network, name = args.child
    row = next(
        r for r in contenders(torch.device(args.device), args.only, args.metrics) if r.name == name
    )
    sys.stdin.readline()
    try:
        found = measure(network, row, args)
    except Exception as error:
        found = {"network": network, "row": name, "error": f"{type(error).__name__}: {error}"[:600]}
    print(json.dumps(found), flush=True)


def finish(process: Popen[str], network: str, row: Row, limit: float) -> dict[str, Any]:
    """Lets a process measure its row; whatever happens to it, there is a row."""
    try:
        return answer(process, limit)
    except NoAnswerError as error:
        return {"network": network, "row": row.name, "error": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="*", choices=list(PROBLEMS))
    parser.add_argument("--only", nargs="*", default=["optimizer", "langevin"])
    parser.add_argument("--metrics", nargs="*", default=list(METRICS), choices=list(METRICS))
    parser.add_argument("--rows", nargs="*", help='which, in this order: "resnet18: Langevin*"')
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a block")
    parser.add_argument("--tf32", action="store_true", help="TF32 products on a GPU")
    parser.add_argument("--profile", action="store_true", help="also what kernels a step has")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one row")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds of all rows")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    if args.child:
        child(args)
        return
    device, began = torch.device(args.device), time.time()
    names = args.networks or (ON_A_GPU if device.type == "cuda" else ON_A_CPU)
    jobs = [(n, row) for n in names for row in contenders(device, args.only, args.metrics)]
    if args.rows:
        named = {f"{n}: {row.name}": (n, row) for n, row in jobs}
        wanted = [name for p in args.rows for name in named if fnmatch.fnmatchcase(name, p)]
        jobs = [named[name] for name in dict.fromkeys(wanted)]
    ahead = 1 if device.type == "cuda" else 0
    waiting: list[Popen[str]] = []
    rows: list[dict[str, Any]] = []
    for i, job in enumerate(jobs):
        left = args.budget - (time.time() - began)
        if left < 1:
            rows.append({"network": job[0], "row": job[1].name, "error": "no time left"})
        else:
            waiting += [
                started("lab.speed_networks", [*sys.argv[1:], "--child", network, row.name])
                for network, row in jobs[len(waiting) : i + 1 + ahead]
            ]
            rows.append(finish(waiting[i], *job, limit=min(args.limit, left)))
        print(json.dumps(rows[-1]), flush=True)
    for process in waiting:
        if process.poll() is None:
            dismiss(process)
    report = {
        "what": "milliseconds per step and chain; ratio to eager SGD of the same network",
        "configuration": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "threads": torch.get_num_threads(),
        "clock": clock(device)[0],
        **origin(args.device),
        "seconds": time.time() - began,
        "rows": rows,
    }
    if args.out:
        write_results(args.out, report)


if __name__ == "__main__":
    main()
