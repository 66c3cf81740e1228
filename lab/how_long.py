"""How long 1,000 steps take on a dozen networks, and what they need: the table of docs/how_long.md.

    python -m lab.how_long --out results/how-long-cpu.json
    python -m lab.how_long --device cuda --tf32 --out results/how-long-h200.json
    python -m lab.claims                               # the page, from both files

Every network runs in a process of its own, as ``Langevin(...).sample`` runs it: QDOP, one chain and
four. Seconds are those of the clock on a GPU and CPU-seconds of all threads on a CPU, which
other programs on the machine hardly change. Memory is the peak of the steps above what the process
had before. ``--networks`` measures a part and keeps the rest of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.command import say
from lab.gpu import synchronise
from lab.jobs import NoAnswerError, answer, started
from lab.results import write_results
from lab.speed_networks import PROBLEMS, Problem, langevin
from natural_langevin._internal.capacity import in_memory
from natural_langevin.cli.experiments.origin import origin


def _head() -> nn.Module:
    """A classifier on frozen features of BERT's size: what a sampled last layer costs."""
    return nn.Linear(768, 2)


#: By name: what it is, and its problem; those of ``lab.speed_networks`` and four more.
NETWORKS: dict[str, tuple[str, Problem]] = {
    "table": ("perceptron 13-50-2", Problem(
        lambda: nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 2)), 100, (13,), 2)),
    "two layers": ("perceptron 20-100-100-3", Problem(
        lambda: nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(),
                              nn.Linear(100, 3)), 100, (20,), 3)),
    "perceptron": ("perceptron 784-400-400-10", PROBLEMS["perceptron"]),
    "cnn": ("CNN, two convolutions, 28 × 28", PROBLEMS["cnn"]),
    "layernorm": ("perceptron with LayerNorm, 20-64-64-10", PROBLEMS["layernorm"]),
    "lstm": ("LSTM, 32 units, 16 steps", PROBLEMS["lstm"]),
    "transformer": ("transformer 2 × 64, 32 tokens", PROBLEMS["transformer"]),
    "small residual": ("residual, 16 and 32 channels, 16 × 16", PROBLEMS["small residual"]),
    "residual": ("residual, 32 channels, 32 × 32", PROBLEMS["residual"]),
    "bert head": ("last layer of a BERT (frozen body, features cached)", Problem(
        _head, 100, (768,), 2)),
    "resnet18": ("ResNet-18 with GroupNorm, 32 × 32", PROBLEMS["resnet18"]),
    "gpt": ("GPT 6 × 512, 128 tokens", PROBLEMS["gpt"]),
}  # fmt: skip


def peak(device: torch.device) -> float:
    """Bytes that were in use at most."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def clock(device: torch.device) -> float:
    synchronise(device)
    return time.perf_counter() if device.type == "cuda" else time.process_time()


def measure(name: str, chains: int, device: torch.device, seconds: float) -> dict[str, Any]:
    """One network with so many chains: what its steps take."""
    task = NETWORKS[name][1].task(device)
    before = peak(device)
    advance = langevin("QDOP", chains)(task)
    pace, way = float("inf"), ""
    for _ in range(8):  # the first steps trace and compile
        began = clock(device)
        way = advance(2)
        last, pace = pace, (clock(device) - began) / 2
        if pace > 0.7 * last:
            break
    steps = max(1, min(2_000, int(seconds / max(1e-6, pace))))
    rates = []
    for _ in range(5):
        began = clock(device)
        advance(steps)
        rates.append((clock(device) - began) / steps)
    weights = sum(p.numel() for p in task.build().parameters())
    return {
        "network": name, "chains": chains, "weights": weights, "batch": task.batch_size,
        "seconds_per_1000_steps": [1000 * r for r in rates], "memory_bytes": peak(device) - before,
        "steps": steps, "way": way,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--chains", nargs="*", type=int, default=[1, 4])
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block of steps")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    if args.one:
        print(json.dumps(measure(args.networks[0], args.chains[0], device, args.seconds)))
        return
    old = json.loads(args.out.read_text())["rows"] if args.out and args.out.exists() else []
    rows = {(r["network"], r["chains"]): r for r in old}
    for name in args.networks:
        for chains in args.chains:
            words = ["--one", "--networks", name, "--chains", str(chains), "--device", args.device]
            words += ["--seconds", str(args.seconds), *(["--tf32"] if args.tf32 else [])]
            try:
                rows[name, chains] = answer(started("lab.how_long", words))
            except NoAnswerError as error:
                say(f"{name}, {chains} chains: {error}")
                continue
            print(rows[name, chains], flush=True)
            if args.out:
                _write(args, device, list(rows.values()))


def _write(args: argparse.Namespace, device: torch.device, rows: list[Any]) -> None:
    cuda, here = device.type == "cuda", origin(args.device)
    here["machine"] |= {
        "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
        "memory_bytes": in_memory(device),
    }  # fmt: skip
    write_results(args.out, here | {
        "what": "seconds of the clock" if cuda else "CPU-seconds of all threads",
        "config": {"metric": "QDOP", "seconds": args.seconds, "tf32": args.tf32, "seed": 0},
        "rows": rows,
    })  # fmt: skip


if __name__ == "__main__":
    main()
