"""The library is built once, kept, and not missed where it cannot be built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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


#: Has all loaded but the library. For every line of its input, a list of environments, it forks a
#: process each, all of which run the sample at the same time, and prints what they said.
FORKING = """
import json, os, sys, tempfile, traceback
import torch, natural_langevin
for line in sys.stdin:
    children = []
    for environment in json.loads(line):
        said = [tempfile.TemporaryFile("w+") for _ in range(2)]
        children.append((os.fork(), said))
        if children[-1][0] == 0:
            os.environ.update(environment)
            os.dup2(said[0].fileno(), 1)
            os.dup2(said[1].fileno(), 2)
            try:
                exec(sys.argv[1], {"__name__": "__main__"})
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    found = []
    for child, said in children:
        assert os.waitpid(child, 0)[1] == 0
        for file in said:
            file.seek(0)
        found.append([file.read() for file in said])
    print(json.dumps(found), flush=True)
"""


def start(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process of its own, since a library is loaded once per process."""
    settings = {k: v for k, v in os.environ.items() if k not in ("CC", "NATURAL_LANGEVIN_NATIVE")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=settings | environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def at_once() -> Iterator[Callable[..., list[list[str]]]]:
    """Samples in processes with these environments: [what it printed, what it logged] of each."""
    with start(FORKING, SAMPLE) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def sampled(*environments: dict[str, str]) -> list[list[str]]:
            print(json.dumps(environments), file=server.stdin, flush=True)
            answer = server.stdout.readline()
            assert answer, server.stderr and server.stderr.read()
            return json.loads(answer)

        yield sampled
        server.communicate()


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
    tmp_path: Path, quick_compiler: str, at_once: Callable[..., list[list[str]]]
) -> None:
    cache = tmp_path / "cache"
    settings = {"NATURAL_LANGEVIN_CACHE": str(cache), "CC": quick_compiler}
    said = [out.split() for out, _ in at_once(settings, settings)]
    assert [way for way, _ in said] == ["native", "native"]
    assert said[0] == said[1]
    (built,) = cache.glob("*.so")
    assert not list(cache.glob(".build-*"))
    when = built.stat().st_mtime_ns
    assert at_once(settings)[0][0].split() == said[0]
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


def test_without_a_compiler_the_general_way_serves(
    tmp_path: Path, at_once: Callable[..., list[list[str]]]
) -> None:
    settings = {"NATURAL_LANGEVIN_CACHE": str(tmp_path), "CC": "no-such-compiler"}
    ((out, err),) = at_once(settings)
    assert out.split()[:1] == ["eager"], err
    assert err.count("no native engine (no C compiler found (looked for no-such-compiler))") == 1


def test_it_can_be_switched_off(at_once: Callable[..., list[list[str]]]) -> None:
    ((out, err),) = at_once({"NATURAL_LANGEVIN_NATIVE": "off"})
    assert out.split()[:1] == ["eager"], err
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
