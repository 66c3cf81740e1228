"""The optimizer's steps on a device against those of a CPU in float64: networks, metrics, ways.

    python -m lab.optimizer_check --device cuda          # or as part of make gpu-check

On a GPU the optimizer records its own part of a step after a few of them ("own graphs"), and with
``capturable=True`` the loop records all of it ("one graph"). Steps are as many as each needs to be
recorded and replayed several times, with batches that differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin import dynamics, likelihoods, preconditioners, priors
from natural_langevin.cli.experiments.bench_networks import GPT, residual_network
from natural_langevin.optim import NaturalLangevin

STEPS, BATCH = 10, 6
#: Relative to the largest entry of a tensor.
TOLERANCE = 1e-4
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: residual_network([8, 16], 1),
    "gpt": lambda: GPT(1, 16, 8, 16, 2),
}
METRICS: dict[str, Callable[[], preconditioners.Preconditioner]] = {
    "quasi-diagonal": preconditioners.QuasiDiagonalFisher,
    "quasi-diagonal, every second step": lambda: preconditioners.QuasiDiagonalFisher(every=2),
    "diagonal": preconditioners.DiagonalFisher,
    "unit": preconditioners.UnitFisher,
    "rmsprop": preconditioners.RMSProp,
    "euclidean": preconditioners.Euclidean,
}
MOTIONS: dict[str, Callable[[], dynamics.Integrator]] = {
    "overdamped": dynamics.Overdamped,
    "underdamped, baoab": lambda: dynamics.Underdamped(0.3, "baoab"),
    "overdamped, less heat": lambda: dynamics.Overdamped(correct_heat=True),
}
WAYS = ("own graphs", "one graph")


def batches(network: str, device: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        if network == "gpt":
            x = torch.randint(0, 16, (BATCH, 8), generator=generator)
            y = torch.randint(0, 16, (BATCH, 8), generator=generator)
        else:
            x = torch.randn(BATCH, 3, 8, 8, generator=generator).to(dtype)
            y = torch.randint(0, 10, (BATCH,), generator=generator)
        found.append((x.to(device), y.to(device)))
    return found


def run(
    network: str, metric: str, motion: str, way: str, device: str, dtype: torch.dtype
) -> list[Tensor]:
    """Parameters, means and metric after all steps."""
    torch.manual_seed(0)
    model = NETWORKS[network]().to(device, dtype)
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=200, lr=1e-4, prior=priors.Gaussian(0.1),
        preconditioner=METRICS[metric](), dynamics=MOTIONS[motion](), check_loss=False,
        capturable=way == "one graph",
    )  # fmt: skip
    data = batches(network, device, dtype)
    x, y = (tensor.clone() for tensor in data[0])

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()

    advance: Callable[[], Any] = step
    for number, batch in enumerate(data):
        x.copy_(batch[0])
        y.copy_(batch[1])
        if number == 4 and way == "one graph" and device == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            advance = graph.replay
        advance()
    kept = [value for own in optimizer.state.values() for value in own.values()]
    return [t.detach().cpu().double() for t in (*model.parameters(), *kept)]


def outcome(difference: Callable[[], float], tolerance: float) -> dict[str, Any]:
    """What a row says of a comparison."""
    started, error, problem = time.monotonic(), None, None
    try:
        error = difference()
        problem = None if error < tolerance else f"differs by {error:.1e}"
    except Exception as trouble:  # the others are still worth checking
        problem = f"{type(trouble).__name__}: {trouble}".split("\n")[0][:300]
    seconds = round(time.monotonic() - started, 2)
    return {"difference": error, "problem": problem, "seconds": seconds}


def line(name: str, row: dict[str, Any]) -> str:
    """A row, for people."""
    problem, error = row["problem"], row["difference"]
    return f"{'ok  ' if problem is None else 'FAIL'} {name}: {problem or f'{error:.1e}'}"


def check(network: str, metric: str, motion: str, way: str, device: str) -> dict[str, Any]:
    """One line of the record."""

    def difference() -> float:
        right = run(network, metric, motion, "own graphs", "cpu", torch.float64)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            found = run(network, metric, motion, way, device, torch.float32)
        pairs = zip(found, right, strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in pairs)

    return {
        "dynamics": f"optimizer, {network}, {motion}",
        "metric": metric,
        "chains": 1,
        "way": way,
        **outcome(difference, TOLERANCE),
    }


def run_all(device: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every network with every metric, and every motion with the quasi-diagonal one."""
    rows = []
    pairs = [*((m, "overdamped") for m in METRICS), *(("quasi-diagonal", m) for m in MOTIONS)]
    for network, (metric, motion), way in itertools.product(NETWORKS, dict.fromkeys(pairs), WAYS):
        rows.append(check(network, metric, motion, way, device))
        say(line(f"{rows[-1]['dynamics']} · {metric} · {way}", rows[-1]))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="lab.optimizer_check")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    rows = run_all(parser.parse_args().device, lambda line: print(line, flush=True))
    failed = sum(row["problem"] is not None for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} cases agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
