"""Where a captured step's time goes on a GPU: launches, kernels, tiles, and the first sample.

    python -m lab.gpu_step steps          time and launches of a step, network by network
    python -m lab.gpu_step tiles          the linear kernel's tile, by number of chains
    python -m lab.gpu_step first          a new process, part by part (give it an empty
                                                 TRITON_CACHE_DIR to have kernels built)

A line of JSON for every figure. For developers of ``execution/kernels``.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

STARTED = time.perf_counter()
import torch  # noqa: E402

TORCH = time.perf_counter()
from lab.gpu import synchronise  # noqa: E402
from lab.speed.ours import sampler  # noqa: E402
from lab.speed.problems import problem  # noqa: E402
from natural_langevin import preconditioners  # noqa: E402
from natural_langevin.dynamics import Underdamped  # noqa: E402

IMPORTED = time.perf_counter()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def prepared(
    network: str, chains: int, *, every: int = 1, metric: str = "", scheme: str = ""
) -> Any:
    task = problem(network, device=DEVICE)
    moves: Any = Underdamped(0.1, scheme) if scheme else None
    made = getattr(preconditioners, metric or "QuasiDiagonalFisher")(
        **{} if metric == "Euclidean" else {"every": every, "adapt": "always"}
    )
    one = sampler(task, chains, made, compile="auto", dynamics=moves)
    engine, state = one.prepare((task.x, task.y), steps=20_000, batch_size=100)
    state, _ = engine.run(state, 0, 30)
    return engine, state


def timed(engine: Any, state: Any, chains: int, seconds: float = 0.15) -> float:
    """Microseconds per chain and step: the median of three."""
    done, found, count = 30, [], 20
    for _ in range(4):
        synchronise(DEVICE)
        before = time.perf_counter()
        state, _ = engine.run(state, done, count)
        synchronise(DEVICE)
        took = time.perf_counter() - before
        done, found = done + count, [*found, took / count / chains * 1e6]
        count = max(20, min(4000, int(seconds / (took / count))))
    return sorted(found[1:])[1]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def profiled(engine: Any, state: Any, count: int = 20) -> dict[str, Any]:
    """Launches of a step, and the kernels with the most time, in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as record:
        engine.run(state, 15_000, count)
        synchronise(DEVICE)
    events = [e for e in record.events() if e.device_type.name == "CUDA"]
    kernels: dict[str, list[float]] = {}
    for event in events:
        kernels.setdefault(event.name[:90], []).append(event.time_range.elapsed_us())
    top = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:14]
    return {
        "launches": round(len(events) / count, 1),
        "busy_us": round(sum(map(sum, kernels.values())) / count, 1),
        "kernels": {k: [round(len(v) / count, 1), round(sum(v) / count, 1)] for k, v in top},
    }


def steps() -> None:
    plain = [("mlp", 1, 1), ("mlp", 1, 4), ("mlp", 64, 1), ("mlp", 64, 4), ("cnn", 1, 1),
             ("13-50-1", 1, 1), ("13-50-1", 4096, 1), ("transformer", 1, 1)]  # fmt: skip
    asked = [(*of, "") for of in plain]
    asked += [("mlp", chains, 1, scheme) for chains in (1, 64) for scheme in ("euler", "baoab")]
    for network, chains, every, scheme in asked if DEVICE == "cuda" else asked[4:6]:
        try:
            began = time.perf_counter()
            engine, state = prepared(network, chains, every=every, scheme=scheme)
            ready = time.perf_counter() - began
            row = {"network": network, "chains": chains, "every": every, "scheme": scheme}
            row |= {"way": engine.way}
            row |= {"us": round(timed(engine, state, chains), 2), "ready_s": round(ready, 2)}
            say(**row, **(profiled(engine, state) if DEVICE == "cuda" and every == 1 else {}))
        except Exception as error:  # the others are still worth knowing
            say(network=network, chains=chains, error=repr(error)[:300])


def tiles() -> None:
    from natural_langevin.execution.kernels import triton_linear as own

    tried = [own.TILE, *(own.Tile(*of) for of in (
        (16, 64, 32, 4, 2), (16, 32, 32, 2, 3), (16, 16, 32, 1, 3), (16, 64, 32, 2, 3),
        (32, 32, 32, 4, 2), (32, 64, 32, 8, 2),
    ))]  # fmt: skip
    for chains, tile in itertools.product((1, 64), tried):
        own.TILE = tile
        row: dict[str, Any] = {"chains": chains, "tile": tile}
        try:
            for every in (1, 4)[: 1 + (chains > 1)]:
                engine, state = prepared("mlp", chains, every=every)
                row[f"every={every}"] = round(timed(engine, state, chains, 0.1), 2)
        except Exception as error:
            row["error"] = repr(error)[:200]
        say(**row)


def first() -> None:
    marks = {"torch": TORCH - STARTED, "library": IMPORTED - TORCH}

    def mark(name: str, before: float) -> float:
        synchronise(DEVICE)
        now = time.perf_counter()
        marks[name] = now - before
        return now

    now = time.perf_counter()
    task = problem("mlp", device=DEVICE)
    one = sampler(task, 1, preconditioners.QuasiDiagonalFisher(), compile="auto")
    now = mark("data and sampler", now)
    posterior = one.sample((task.x, task.y), 20, batch_size=100, thin=20, progress=False)
    now = mark("first sample", now)
    one.sample((task.x, task.y), 20, batch_size=100, thin=20, progress=False)
    mark("second sample", now)
    rounded = {k: round(v, 2) for k, v in marks.items()}
    say(way=posterior.config["execution"], total=round(sum(marks.values()), 2), **rounded)


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    {"steps": steps, "tiles": tiles, "first": first}[sys.argv[1]]()
