"""The library is built once, kept, and not missed where it cannot be built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import natural_langevin
from natural_langevin.execution.kernels.native import compiler
from natural_langevin.execution.kernels.native.build import library

SAMPLE = """
import logging, torch
from torch import nn
from natural_langevin import Langevin, likelihoods
logging.basicConfig(level="WARNING")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.linspace(-1, 1, 60).reshape(20, 3)
sampler = Langevin(net, likelihoods.Gaussian(sigma=0.5), step_size=1e-3, chains=2)
posterior = sampler.sample((x, x[:, :1]), steps=30, batch_size=10, progress=False)
print(posterior.config["execution"], float(posterior.samples["0.weight"].sum()))
"""

needs_compiler = pytest.mark.skipif(library(torch.float32) is None, reason="no C compiler")


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    """A process of its own, since a library is loaded once per process."""
    settings = {k: v for k, v in os.environ.items() if k not in ("CC", "NATURAL_LANGEVIN_NATIVE")}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=settings | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def quick_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiler at hand, told last not to optimise, which is where its seconds go."""
    script = tmp_path / "bin" / "quick-cc"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{compiler.find_compiler()}" "$@" -O0\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))  # for what is built in this process
    return str(script)


@needs_compiler
def test_two_processes_build_at_once_and_a_third_finds_it(
    tmp_path: Path, quick_compiler: str
) -> None:
    cache = tmp_path / "cache"
    settings = {"NATURAL_LANGEVIN_CACHE": str(cache), "CC": quick_compiler}
    both = [start(SAMPLE, **settings) for _ in range(2)]
    said = [p.communicate(timeout=300)[0].split() for p in both]
    assert [way for way, _ in said] == ["native", "native"]
    assert said[0] == said[1]
    (built,) = cache.glob("*.so")
    assert not list(cache.glob(".build-*"))
    when = built.stat().st_mtime_ns
    third = start(SAMPLE, **settings)
    assert third.communicate(timeout=300)[0].split() == said[0]
    assert built.stat().st_mtime_ns == when


@needs_compiler
def test_a_library_in_the_package_needs_no_compiler(tmp_path: Path, quick_compiler: str) -> None:
    """What a wheel carries: the portable library, beside the sources."""
    package = Path(natural_langevin.__file__).parent
    skipped = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(package, tmp_path / package.name, ignore=skipped)
    folder = tmp_path / compiler.HERE.relative_to(package.parent)
    name = compiler.prebuilt_name("float32")
    compiler.build(folder / name, "float32", tune=compiler.PORTABLE)
    cache = tmp_path / "cache"
    process = start(SAMPLE, PYTHONPATH=str(tmp_path), CC="none", NATURAL_LANGEVIN_CACHE=str(cache))
    out, err = process.communicate(timeout=300)
    assert out.split()[:1] == ["native"], err
    assert not cache.exists()


def test_without_a_compiler_the_general_way_serves(tmp_path: Path) -> None:
    process = start(SAMPLE, NATURAL_LANGEVIN_CACHE=str(tmp_path), CC="no-such-compiler")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.split()[0] == "eager"
    assert err.count("no native engine (no C compiler found (looked for no-such-compiler))") == 1


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    out, err = start(SAMPLE, NATURAL_LANGEVIN_NATIVE="off").communicate(timeout=300)
    assert out.split()[0] == "eager"
    assert "native" not in err


LONG = """
import os, signal, threading, time
import torch
from torch import nn
from natural_langevin import Langevin, likelihoods
net = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))
x = torch.randn(600, 300)
sampler = Langevin(net, likelihoods.Gaussian(sigma=0.5), step_size=1e-6, chains=4)
engine, state = sampler.prepare((x, x[:, :1]), steps=10_000_000 // 100, batch_size=300)
engine.run(state, 0, 1)
print("ready", engine.way, flush=True)
ready, sent = time.process_time(), []

def interrupt():
    while time.process_time() < ready + 0.1:  # in the middle of the steps
        time.sleep(0.01)
    sent.append(time.process_time())
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    engine.run(state, 1, 99_998)
except KeyboardInterrupt:
    print("interrupted", time.process_time() - sent[0], flush=True)
"""


@needs_compiler
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_noticed() -> None:
    """Within seconds of its processor's time, however busy the machine is."""
    out, _ = start(LONG).communicate(timeout=300)
    ready, interrupted = out.splitlines()
    assert ready.split() == ["ready", "native"]
    said, after = interrupted.split()
    assert said == "interrupted"
    assert float(after) < 5
