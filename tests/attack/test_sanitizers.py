"""The native engine under the compiler's sanitizers: races between threads, memory, arithmetic.

A library of its own is built for each, and run by a process that has the sanitizer's runtime from
its start. `make test` has the same runs without one, in tests/execution/test_native_threads.py and
test_native_hostile.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from natural_langevin.execution.kernels.native import compiler

RUN = """
import torch
from torch import nn
from natural_langevin import Langevin, likelihoods, preconditioners as P

torch.set_num_threads(3)
g = torch.Generator().manual_seed(0)
x, numbers, classes = torch.randn(200, 8, generator=g), torch.randn(200, 1), torch.arange(200) % 3
cases = [(likelihoods.Categorical(), 3, classes, P.QuasiDiagonalFisher(damping=0.1), chains, width)
         for chains in (1, 2, 5) for width in (7, 300)]
cases += [
    (likelihoods.Gaussian("rmse"), 1, numbers, P.DiagonalFisher(targets="model"), 1, 300),
    (likelihoods.Gaussian("rmse"), 1, numbers, P.UnitFisher(damping=0.1), 2, 100),
    (likelihoods.Ordinal(3), 1, classes, P.RMSProp(damping=0.1), 3, 9),
]
for likelihood, outputs, y, metric, chains, width in cases:
    net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, outputs))
    sampler = Langevin(net, likelihood, step_size=1e-4, chains=chains, preconditioner=metric)
    engine, state = sampler.prepare((x, y.clone()), steps=40, batch_size=99)
    engine.run(state, 0, 40)
    assert engine.way == "native", engine.way
    if y.dtype == torch.int64:  # labels that change during the run
        engine.stream.y[3] = 10**6
        try:
            engine.run(state, 0, 40)
        except ValueError as error:
            assert "row 3" in str(error)
        else:
            raise AssertionError("a class that does not exist went unnoticed")
print("cases", len(cases))
"""


BUILD = """
import torch
from natural_langevin.execution.kernels.native.build import library
library(torch.float32)
"""


def runtime(kind: str) -> str | None:
    """The sanitizer's shared library, where the compiler has one."""
    found = subprocess.run(
        [str(compiler.find_compiler()), f"-print-file-name=lib{kind}.so"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return found if Path(found).is_absolute() else None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flag", "kind"), [("thread", "tsan"), ("address,undefined", "asan")], ids=["tsan", "asan"]
)
def test_nothing_is_found(tmp_path, record_property, flag, kind):
    preloaded = runtime(kind)
    if preloaded is None:
        pytest.skip(f"the compiler has no lib{kind}")
    cc = tmp_path / "cc"
    cc.write_text(
        f'#!/bin/sh\nexec "{compiler.find_compiler()}" "$@" -O1 -g '
        f"-fsanitize={flag} -fno-omit-frame-pointer\n"
    )
    cc.chmod(0o755)
    environment = os.environ | {"CC": str(cc), "NATURAL_LANGEVIN_CACHE": str(tmp_path / "cache")}
    # The compiler itself does not run under a sanitizer; what it made is kept, and not loaded here.
    subprocess.run([sys.executable, "-c", BUILD], env=environment, capture_output=True, check=False)
    assert list(tmp_path.glob("cache/*/*.so"))
    options = f"exitcode=0:log_path={tmp_path}/found:detect_leaks=0"
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env=environment | {
            "LD_PRELOAD": preloaded,
            "TSAN_OPTIONS": options + ":ignore_noninstrumented_modules=1",
            "ASAN_OPTIONS": options,
            "UBSAN_OPTIONS": f"log_path={tmp_path}/found:print_stacktrace=1",
        },
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("cases "), done.stderr[-4000:]
    record_property("cases", int(done.stdout.split()[1]))
    said = [path.read_text() for path in tmp_path.glob("found*")]
    assert not said, said[0][:4000]
