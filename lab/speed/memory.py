"""Section "memory": bytes per parameter and chain that QDOP needs beyond the network's activations.

The peak T of a run is measured at two chain counts and two batch sizes. What grows with the chains
is theirs; of it, what grows with the batch are activations (the native engine has none per chain):

    per chain at B = (T(c', B) - T(c, B)) / (c' - c)
    activations    = B (per chain at B - per chain at B/2) / (B/2)
    beyond         = (per chain - activations) / parameters

On CUDA T is ``torch.cuda.max_memory_allocated`` of the steps after the first (the capture of the
CUDA graph among them, whose pool holds the temporaries) less what was allocated before the sampler
was made. On a CPU T is the bytes of all tensors alive after the first steps, likewise, plus the
highest sum of allocations that torch's memory profiler sees within three further steps. Data order
and the table of rates are made tiny, so that they do not count.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lab.gpu import synchronise
from lab.speed.measure import Say
from lab.speed.ours import sampler
from lab.speed.problems import Problem, problem
from lab.speed.settings import Settings
from natural_langevin import preconditioners

STEPS = 32
CHAINS = {"cpu": (1, 4), "cuda": (4, 16)}


def section(settings: Settings, say: Say) -> dict[str, Any]:
    """Peak memory of a run at three sizes, and what a chain and a sample add to it."""
    few, many = CHAINS[torch.device(settings.device).type]
    sizes = {"batch_size": 100, **settings.sizes}
    batch = sizes.pop("batch_size")
    sizes["num_data"] = 2 * batch
    points: list[dict[str, Any]] = []
    # The first run pays for the libraries' workspaces: it is not counted.
    for count, (chains, rows) in enumerate(
        ((few, batch), (few, batch), (many, batch), (few, batch // 2), (many, batch // 2))
    ):
        task = problem("mlp", device=settings.device, seed=settings.seed, batch_size=rows, **sizes)
        found = measure(task, chains)
        if count == 0:
            continue
        points.append(found)
        say(f"memory: {chains} chains, batch {rows}: {points[-1]['peak_bytes'] / 1e6:.1f} MB")
    return {"method": __doc__, "preconditioner": "QuasiDiagonalFisher", "points": points} | derive(
        points
    )


def derive(points: list[dict[str, Any]]) -> dict[str, Any]:
    """The equations above."""
    first, second, half_first, half = points
    batch, chains, parameters = second["batch_size"], second["chains"], second["parameters"]
    more = chains - first["chains"]
    per_chain = (second["peak_bytes"] - first["peak_bytes"]) / more
    at_half = (half["peak_bytes"] - half_first["peak_bytes"]) / more
    activations = batch * (per_chain - at_half) / (batch - half["batch_size"])
    return {
        "state_bytes_per_parameter": second["state_bytes"] / chains / parameters,
        "bytes_per_chain": per_chain,
        "activation_bytes_per_chain": activations,
        "beyond_activations_bytes_per_parameter": (per_chain - activations) / parameters,
    }


def measure(task: Problem, chains: int) -> dict[str, Any]:
    """Peak memory of some steps of one sampler, above what was allocated before."""
    peak = _peak_cuda if task.device.type == "cuda" else _peak_cpu
    gc.collect()
    before = _allocated(task.device)
    metric = preconditioners.QuasiDiagonalFisher()
    engine, state = sampler(task, chains, metric, compile="auto").prepare(
        (task.x, task.y), steps=STEPS, batch_size=task.batch_size
    )
    done = 0

    def advance(count: int) -> None:
        nonlocal state, done
        state, _ = engine.run(state, done, count)
        synchronise(task.device)
        done += count

    advance(1)  # compiles
    total = peak(task.device, advance) - before
    return {
        "chains": chains,
        "batch_size": task.batch_size,
        "parameters": task.parameters,
        "way": engine.way,
        "state_bytes": sum(t.nbytes for t in pytree.tree_leaves(state)),
        "peak_bytes": total,
    }


def _allocated(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _alive()


def _peak_cuda(device: torch.device, advance: Callable[[int], None]) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    advance(5)
    return torch.cuda.max_memory_allocated(device)


def _peak_cpu(device: torch.device, advance: Callable[[int], None]) -> int:
    advance(3)
    gc.collect()
    alive = _alive()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        advance(3)
    return alive + highest_sum(profile)


def highest_sum(profile: Any) -> int:
    """The largest running total of allocations less releases, in bytes."""
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest


def _alive() -> int:
    """Bytes of all tensors that Python knows; views of one memory count once."""
    sizes = {}
    for thing in gc.get_objects():
        # No subclasses: the compiler's fake tensors claim a device and have no memory.
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            with contextlib.suppress(NotImplementedError):  # what vmap leaves behind is a shell
                storage = thing.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
