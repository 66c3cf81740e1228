"""Section "latency": how long a new process waits, for the import and for its first answer.

Every figure comes from fresh interpreters, as wall and as CPU seconds (of all threads). Imports:
what ``import natural_langevin`` adds after ``import torch``. First sample: from before
``import torch`` until ``Langevin(...).sample(...)`` of a few steps returns, and what a second and a
new sampler's call of it take in the same process. The README's first example, from the start of
the interpreter to its answer; "empty cache": with no native library built yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import natural_langevin
from lab.first_answer import example
from lab.gpu import synchronise
from lab.speed.measure import Say, spread
from lab.speed.ours import sampler
from lab.speed.problems import SMALL, problem
from lab.speed.settings import Settings
from natural_langevin import preconditioners

IMPORTS = """
import json, time
started, cpu = time.perf_counter(), time.process_time()
import torch
middle, middle_cpu = time.perf_counter(), time.process_time()
import natural_langevin
print(json.dumps({
    "torch": middle - started, "torch_cpu": middle_cpu - cpu,
    "beyond": time.perf_counter() - middle, "beyond_cpu": time.process_time() - middle_cpu,
}))
"""

FIRST_SAMPLE = """
import json, sys, time
asked = json.loads(sys.argv[1])
started, cpu = time.perf_counter(), time.process_time()
import torch
import natural_langevin
from lab.speed.latency import samples
torch.set_num_threads(asked["threads"])
samples(started, cpu, asked)
"""

#: What is added to the README's first example.
TOLD = """
import json, resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "way": posterior.config["execution"], "steps": posterior.config["steps"],
    "cpu": used.ru_utime + used.ru_stime,
}))
"""


def section(settings: Settings, say: Say) -> dict[str, Any]:
    """What a user waits for: imports, first samples, the README's example."""
    times = 1 if settings.quick else 5
    imports = [_fresh([IMPORTS]) for _ in range(times)]
    found: dict[str, Any] = {
        "method": __doc__,
        "import_torch_seconds": spread([run["torch"] for run in imports]),
        "import_torch_cpu_seconds": spread([run["torch_cpu"] for run in imports]),
        "import_beyond_torch_seconds": spread([run["beyond"] for run in imports]),
        "import_beyond_torch_cpu_seconds": spread([run["beyond_cpu"] for run in imports]),
        "first_sample": {},
    }
    say(f"latency: import beyond torch {found['import_beyond_torch_seconds']['median']:.2f} s")
    asked = {
        "device": settings.device, "sizes": settings.sizes, "threads": settings.threads,
        "precision": settings.precision, "seed": settings.seed,
    }  # fmt: skip
    for network in ("mlp",) if settings.quick else ("mlp", *SMALL, "cnn", "transformer"):
        text = json.dumps(asked | {"network": network})
        runs = [_fresh([FIRST_SAMPLE, text]) for _ in range(1 if settings.quick else 3)]
        found["first_sample"][network] = {
            key: runs[0][key] if key == "way" else spread([run[key] for run in runs])
            for key in runs[0]
        }
        say(f"latency: first sample of {network}: {runs[0]['first']:.1f} s after the start")
    if not settings.quick and torch.device(settings.device).type == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            found["example"] = {
                "empty cache": _example(1, folder), "warm cache": _example(3, folder),
            }  # fmt: skip
        say(f"latency: the example {found['example']['warm cache']['seconds']['median']:.1f} s")
    return found


def _example(times: int, cache: str) -> dict[str, Any]:
    """``times`` runs of the README's example with this folder for the native library."""
    seconds, runs = [], []
    for _ in range(times):
        started = time.perf_counter()
        runs.append(_fresh([example() + TOLD], environment={"NATURAL_LANGEVIN_CACHE": cache}))
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": spread(seconds), "cpu_seconds": spread([run["cpu"] for run in runs]),
        "steps": runs[0]["steps"], "way": runs[0]["way"],
    }  # fmt: skip


#: Steps of a first sample: enough for a CUDA graph to be recorded and replayed.
FIRST_STEPS = 20


def samples(started: float, cpu: float, asked: dict[str, Any]) -> None:
    """In a fresh process: seconds since ``started`` at the end of a first call of ``sample``; how
    long a second one and a new sampler's take. Prints them as JSON."""
    torch.set_float32_matmul_precision(asked["precision"])
    task = problem(asked["network"], device=asked["device"], seed=asked["seed"], **asked["sizes"])
    found: dict[str, Any] = {"data": time.perf_counter() - started}
    one = sampler(task, 1, preconditioners.QuasiDiagonalFisher(), compile="auto")
    for name in ("first", "second", "new"):
        if name == "new":
            one = sampler(task, 1, preconditioners.QuasiDiagonalFisher(), compile="auto")
        posterior = one.sample(
            (task.x, task.y), FIRST_STEPS, batch_size=task.batch_size, thin=FIRST_STEPS,
            progress=False,
        )  # fmt: skip
        synchronise(task.device)
        found[name] = time.perf_counter() - started
        found[f"{name}_cpu"] = time.process_time() - cpu
        started, cpu = time.perf_counter(), time.process_time()
    print(json.dumps(found | {"way": posterior.config["execution"]}))


def _fresh(words: list[str], *, environment: dict[str, str] | None = None) -> Any:
    """Runs a program in a new interpreter with this package; its last line is JSON."""
    here = str(Path(natural_langevin.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    whole = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | (environment or {})
    command = [sys.executable, "-c", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=whole)
    if done.returncode:
        raise RuntimeError(f"a fresh interpreter failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])
