"""Where a step's time and memory go: kernels by kind, operators by shape, allocations by line.

    python -m lab.speed.step_profile resnet18 "Langevin QDOP, 1" --tf32 --out profile.json
    python -m lab.speed.step_profile lstm "Langevin QDOP, 1" --device cpu

Rows are those of ``lab.speed_networks``, and "SGD" (eager). ``groups``: milliseconds of a step by
kind of kernel; ``longest``: kernel by kernel; ``memory`` (on a GPU): what was allocated at the peak
of making the row and of its first steps, in MiB by the innermost line of this project or of a model
that asked for it ("backward": none of them did).
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from lab.speed_networks import PROBLEMS, Measured, Row, contenders, sgd

#: Kinds of kernels, by the first pattern that a name holds.
KINDS = {
    "layout": r"nchwToNhwc|nhwcToNchw|genericTranspose|Cat|copy|Copy",
    "convolution": r"cudnn|wgrad|dgrad|fprop|implicit|convolve",
    "product": r"gemm|gemv|cutlass|cublas|Kernel2",
    "norms of the network": r"Moments|GammaBeta|ComputeInternal|ComputeFused|GroupNorm|_norm",
    "sum": r"reduce_kernel|Reduce|softmax",
    "ours": r"^_?(update|linear|triton|move|begin|end|noise|forward|backward)",
}  # fmt: skip


def kind_of(kernel: str) -> str:
    return next((kind for kind, name in KINDS.items() if re.search(name, kernel)), "elementwise")


def peak_by_line(trace: list[dict[str, Any]], most: int = 30) -> dict[str, Any]:
    """What was allocated when most was, in MiB by the line that asked for it."""
    live: dict[int, dict[str, Any]] = {}
    now = peak = 0
    at_peak: list[dict[str, Any]] = []
    for event in trace:  # first the height, then who stood there: one list is copied, at the end
        now += _change(live, event)
        peak = max(peak, now)
    live, now = {}, 0
    for event in trace:
        now += _change(live, event)
        if now == peak:
            at_peak = list(live.values())
            break
    found: Counter[str] = Counter()
    for event in at_peak:
        found[_line(event.get("frames", []))] += event["size"]
    rows = [[round(size / 2**20, 1), line] for line, size in found.most_common(most)]
    return {"peak_MiB": peak / 2**20, "lines": rows}


def _change(live: dict[int, dict[str, Any]], event: dict[str, Any]) -> int:
    if event["action"] == "alloc":
        live[event["addr"]] = event
        return int(event["size"])
    if event["action"] == "free_completed" and event["addr"] in live:
        return -int(live.pop(event["addr"])["size"])
    return 0


def _line(frames: list[dict[str, Any]]) -> str:
    named = [f for f in frames if f["filename"].endswith(".py")]
    own = [f for f in named if re.search(r"natural_langevin|/lab/|nn/modules", f["filename"])]
    if not own:
        return "backward"
    places = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in own[:3]]
    return " < ".join(places)


def profile(network: str, name: str, device: torch.device) -> dict[str, Any]:
    rows = contenders(device, ["optimizer", "langevin"], ["QDOP", "RMSProp", "Euclidean"])
    row = next(r for r in [Row("SGD", 1, sgd), *rows] if r.name == name)
    task, on_gpu = PROBLEMS[network].task(device), device.type == "cuda"
    if on_gpu:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=400_000)
    one = Measured(row, task)
    found: dict[str, Any] = {"network": network, "row": name, "memory_MiB": one.memory}
    if on_gpu:
        trace = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
        torch.cuda.memory._record_memory_history(enabled=None)
        found["memory"] = peak_by_line(trace)
    for _ in range(3):
        one.block(0.2)
    found["ms"] = min(one.ms)
    found["profile"] = told = one.profile(most=10_000)
    groups: Counter[str] = Counter()
    for kernel, _, ms in told["longest"]:
        groups[kind_of(kernel)] += ms
    found["groups"] = dict(groups.most_common())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("network", choices=list(PROBLEMS))
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    found = []
    for name in args.rows:
        started = time.monotonic()
        found.append(profile(args.network, name, torch.device(args.device)))
        found[-1]["seconds"] = time.monotonic() - started
        short = {k: v for k, v in found[-1].items() if k != "profile"}
        print(json.dumps(short), flush=True)
        for kernel, count, ms in found[-1]["profile"]["longest"][:25]:
            print(f"  {ms:8.3f} ms {count:7.1f} x {kernel}")
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
