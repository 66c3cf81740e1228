"""Section "latency": how long a new process waits, for the import and for its first step.

Every figure comes from fresh interpreters. Import time is what ``import natural_langevin`` adds
after ``import torch``. The first step is timed from the call of ``Langevin(...)`` until one step of
QDOP is done: eagerly, compiled with an empty compiler cache, and compiled once more with the cache
that the run before filled.
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
from natural_langevin import preconditioners
from natural_langevin.experiments.speed.measure import Say, spread, synchronise
from natural_langevin.experiments.speed.ours import STEPS, sampler
from natural_langevin.experiments.speed.problems import problem
from natural_langevin.experiments.speed.settings import Settings

IMPORTS = """
import json, time
started = time.perf_counter()
import torch
with_torch = time.perf_counter()
import natural_langevin
print(json.dumps({"torch": with_torch - started, "beyond": time.perf_counter() - with_torch}))
"""

FIRST_STEP = """
import json, sys
from natural_langevin.experiments.speed.latency import first_step
print(json.dumps(first_step(**json.loads(sys.argv[1]))))
"""


def section(settings: Settings, say: Say) -> dict[str, Any]:
    """What a user waits for: imports, and the first step in a process of its own."""
    imports = [_fresh([IMPORTS]) for _ in range(1 if settings.quick else 5)]
    beyond = [run["beyond"] for run in imports]
    say(f"latency: import natural_langevin beyond torch {spread(beyond)['median']:.2f} s")
    found: dict[str, Any] = {
        "method": __doc__,
        "import_torch_seconds": spread([run["torch"] for run in imports]),
        "import_beyond_torch_seconds": spread(beyond),
        "first_step": {},
    }
    chains = max(settings.chains[:2])
    asked = {
        "device": settings.device, "sizes": settings.sizes, "threads": settings.threads,
        "precision": settings.precision, "seed": settings.seed, "chains": chains,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        kinds = [("eager", False)]
        if settings.compile and not settings.quick:
            kinds += [("compiled, empty cache", True), ("compiled, warm cache", True)]
        for name, compile in kinds:
            text = json.dumps(asked | {"compile": compile})
            found["first_step"][name] = _fresh([FIRST_STEP, text], cache=Path(folder))
            say(f"latency: first step, {name}: {found['first_step'][name]['first_step']:.1f} s")
    return found


def first_step(
    *,
    device: str,
    sizes: dict[str, Any],
    threads: int,
    precision: str,
    seed: int,
    chains: int,
    compile: bool,
) -> dict[str, float]:
    """In a fresh process: seconds since ``Langevin(...)`` was called, after one and two steps."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    task = problem("mlp", device=device, seed=seed, **sizes)
    synchronise(task.device)
    started = time.perf_counter()
    metric = preconditioners.QuasiDiagonalFisher()
    engine, state = sampler(task, chains, metric, compile=compile).prepare(
        (task.x, task.y), steps=STEPS, batch_size=task.batch_size
    )
    found = {"chains": float(chains), "prepared": time.perf_counter() - started}
    for step, name in enumerate(("first_step", "second_step")):  # the second captures on CUDA
        state, _ = engine.run(state, step, 1)
        synchronise(task.device)
        found[name] = time.perf_counter() - started
    return found


def _fresh(words: list[str], *, cache: Path | None = None) -> Any:
    """Runs a program in a new interpreter with this package; its last line is JSON."""
    here = str(Path(natural_langevin.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    if cache is not None:
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
    command = [sys.executable, "-c", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"a fresh interpreter failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])
