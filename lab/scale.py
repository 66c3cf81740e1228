"""Measures what lab/notes/scale.md says of steps on 1, 2 and 4 processes of one machine (gloo).

    python -m lab.scale --out results/scale-cpu.json

Every round starts torchrun once with each number of processes, so that whatever else the machine
does meets all of them alike. A worker times, in turns, an exchange alone, a step on its part of the
minibatch without the exchange, the two together as the sampler does them, and its share of four
chains. Bytes are counted, not timed: they must be those of ``scale_model`` to the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lab.pages import markdown
from lab.scale_model import Network, exchanged
from natural_langevin import Langevin, likelihoods, models, preconditioners
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.distributed import Layout, join
from natural_langevin.distributed.process_mesh import DataGroup, ProcessMesh

SIZES, BATCH, CHAINS = (784, (400, 400), 10), 120, 4
METRICS = {
    "Euclidean": preconditioners.Euclidean(),
    "QuasiDiagonalFisher": preconditioners.QuasiDiagonalFisher(),
}
#: Turns of a worker, and steps in each.
TURNS, STEPS = 5, 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.mlp(SIZES[0], SIZES[2], SIZES[1])


class Timed:
    """Something to be repeated, and how long it took each time."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action, self.seconds = action, list[float]()

    def turn(self) -> None:
        started = time.perf_counter()
        self.action()
        self.seconds.append((time.perf_counter() - started) / STEPS)


def stepping(sampler: Langevin, data: Any, batch: int) -> Callable[[], None]:
    engine, state = sampler.prepare(data, steps=TURNS * STEPS + STEPS, batch_size=batch)
    held = [state, 0]

    def some() -> None:
        held[0], _ = engine.run(held[0], held[1], STEPS)
        held[1] += STEPS

    some()  # plans, first allocations
    return some


def worker(out: Path) -> None:
    """One process: writes what it measured to ``out``-RANK.json."""
    torch.set_num_threads(1)
    group = join("cpu")
    generator = torch.Generator().manual_seed(1)
    data = (torch.rand(600, SIZES[0], generator=generator), torch.arange(600) % SIZES[2])
    found: dict[str, Any] = {}
    for name, metric in METRICS.items():
        common: dict[str, Any] = {"preconditioner": metric, "compile": False}
        options = {"likelihood": likelihoods.Categorical(), "chains": 1, **common}
        shared = Langevin(network(), parallel=Layout(data=group.world), **options)
        alone = Langevin(network(), parallel=None, **options)
        spread = Langevin(network(), **(options | {"chains": CHAINS}))
        counted, tree = count_bytes(shared, data)
        peers = peers_of(shared)

        def exchange(tree: Any = tree, peers: Any = peers) -> None:
            for _ in range(STEPS):
                peers.add_up(tree)

        timed = {
            "exchange": Timed(exchange),
            "part": Timed(stepping(alone, data, BATCH // group.world)),
            "shared": Timed(stepping(shared, data, BATCH)),
            "spread": Timed(stepping(spread, data, BATCH)),
        }
        for _ in range(TURNS):
            for one in timed.values():
                one.turn()
        found[name] = {
            "bytes": counted,
            "state_bytes": state_bytes(shared),
            **{key: one.seconds for key, one in timed.items()},
        }
    out.with_name(f"{out.name}-{group.rank}.json").write_text(json.dumps(found))


def peers_of(sampler: Langevin) -> DataGroup:
    """The processes that share its minibatches."""
    assert isinstance(sampler.mesh, ProcessMesh)
    assert sampler.mesh.data is not None
    return sampler.mesh.data


def count_bytes(sampler: Langevin, data: Any) -> tuple[int, Any]:
    """What one step hands to the exchange: how many bytes, and the tree itself."""
    peers, seen = peers_of(sampler), list[Any]()
    add_up = peers.add_up

    def counting(tree: Any) -> Any:
        seen.append(tree)
        return add_up(tree)

    peers.add_up = counting  # type: ignore[method-assign]
    engine, state = sampler.prepare(data, steps=1, batch_size=BATCH)
    engine.run(state, 0, 1)
    del peers.add_up
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(seen)), seen


def state_bytes(sampler: Langevin) -> int:
    """Of everything in the state that grows with the network."""
    state = sampler.init()
    return sum(leaf.nbytes for leaf in pytree.tree_leaves((state.params, state.mean, state.metric)))


def launch(processes: int, out: Path) -> list[dict[str, Any]]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={processes}", __file__, "--worker", "--out", str(out)),
    ]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    files = [out.with_name(f"{out.name}-{rank}.json") for rank in range(processes)]
    found = [json.loads(path.read_text()) for path in files]
    for path in files:
        path.unlink()
    return found


def summary(values: list[float]) -> dict[str, float]:
    """Milliseconds: the median over turns, rounds and ranks, and the middle half."""
    low, middle, high = statistics.quantiles([1000 * v for v in values], n=4)
    return {"median": round(middle, 2), "low": round(low, 2), "high": round(high, 2)}


def table(result: dict[str, Any]) -> str:
    """The measured figures as lab/notes/scale.md has them: medians, the middle half of steps."""
    columns = (
        "processes", "bytes exchanged", "of the model", "state, bytes per parameter",
        "its part ms", "exchange ms", "shared step ms (middle half)", "÷ sum of the two",
        "four chains ms",
    )  # fmt: skip
    lines = []
    for row in result["rows"]:
        ms = row["milliseconds"]
        shared = ms["shared"]
        lines.append((
            row["metric"], str(row["processes"]), f"{row['bytes']:,}",
            f"{row['bytes_of_model']:,.0f}", f"{row['state_bytes'] / row['parameters']:.2f}",
            f"{ms['part']['median']:.0f}", f"{ms['exchange']['median']:.0f}",
            f"{shared['median']:.0f} ({shared['low']:.0f} – {shared['high']:.0f})",
            f"{row['measured_over_model']:.2f}", f"{ms['spread']['median']:.0f}",
        ))  # fmt: skip
    return markdown(columns, lines)


def main(out: Path, rounds: int) -> None:
    counts = (1, 2, 4)
    found: dict[int, list[dict[str, Any]]] = {n: [] for n in counts}
    load = os.getloadavg()
    for _ in range(rounds):
        for n in counts:
            found[n] += launch(n, out)
    sizes = [p.numel() for p in network().parameters()]
    weights = Network(sum(sizes), without_row=sum(SIZES[1]) + SIZES[2])
    rows = []
    for metric in METRICS:
        for n, workers in found.items():
            times = {
                key: [t for one in workers for t in one[metric][key]]
                for key in ("exchange", "part", "shared", "spread")
            }
            middle = {key: statistics.median(values) for key, values in times.items()}
            rows.append(
                {
                    "metric": metric,
                    "processes": n,
                    "bytes": workers[0][metric]["bytes"],
                    "bytes_of_model": exchanged(weights, metric, 1),
                    "state_bytes": workers[0][metric]["state_bytes"],
                    "parameters": weights.parameters,
                    "milliseconds": {key: summary(values) for key, values in times.items()},
                    "measured_over_model": middle["shared"] / (middle["part"] + middle["exchange"]),
                }
            )
    settings = {
        "network": SIZES, "batch": BATCH, "chains_of_spread": CHAINS, "turns": TURNS,
        "steps_per_turn": STEPS, "rounds": rounds, "threads": 1, "backend": "gloo, loopback",
        "mode": "eager", "dtype": "float32",
    }  # fmt: skip
    result = {
        **origin("cpu"),
        "settings": settings,
        "load": {"before": load, "after": os.getloadavg()},
        "rows": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/scale-cpu.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.out)
    else:
        main(arguments.out, arguments.rounds)
