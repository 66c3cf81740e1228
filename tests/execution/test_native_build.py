"""The library is built once, kept, and not missed where it cannot be built."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import natural_langevin
import warm
from natural_langevin.execution.kernels.native import compiler
from natural_langevin.execution.kernels.native.build import library

#: The package that is loaded is taken for another one, where that is asked.
SAMPLE = """
import logging, os, sys, torch
if "ANOTHER_PACKAGE" in os.environ:
    for name in [name for name in sys.modules if name.split(".")[0] == "natural_langevin"]:
        del sys.modules[name]
    sys.path.insert(0, os.environ["ANOTHER_PACKAGE"])
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


@pytest.fixture
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """The sample in processes of their own, since a library is loaded once per process, with these
    environments and all at the same time: [what it printed, what it logged] of each."""
    script = tmp_path / "sample.py"
    script.write_text(SAMPLE)
    for name in ("CC", "NATURAL_LANGEVIN_NATIVE"):
        monkeypatch.delenv(name, raising=False)

    def sampled(*environments: dict[str, str]) -> list[list[str]]:
        started = []
        for k, environment in enumerate(environments):
            files = [(tmp_path / f"said-{k}-{n}").open("w+") for n in range(2)]
            with Path(os.devnull).open() as nothing:
                process = warm.start(
                    [script], environment=environment,
                    stdin=nothing, stdout=files[0], stderr=files[1],
                )  # fmt: skip
            started.append((process, files))
        found = []
        for process, files in started:
            process.wait(timeout=300)
            for file in files:
                file.seek(0)
            found.append([file.read() for file in files])
            for file in files:
                file.close()
        return found

    return sampled


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
    (built,) = cache.rglob("*.*")
    when = built.stat().st_mtime_ns
    assert at_once(settings)[0][0].split() == said[0]
    assert built.stat().st_mtime_ns == when


@needs_compiler
def test_a_library_in_the_package_needs_no_compiler(
    tmp_path: Path, at_once: Callable[..., list[list[str]]], quick_compiler: str
) -> None:
    """What a wheel carries: the portable library, beside the sources."""
    package = Path(natural_langevin.__file__).parent
    skipped = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(package, tmp_path / package.name, ignore=skipped)
    folder = tmp_path / compiler.HERE.relative_to(package.parent)
    name = compiler.prebuilt_name("float32")
    compiler.build(folder / name, "float32", tune=compiler.PORTABLE)
    cache = tmp_path / "cache"
    ((out, err),) = at_once(
        {"ANOTHER_PACKAGE": str(tmp_path), "CC": "none", "NATURAL_LANGEVIN_CACHE": str(cache)}
    )
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
def test_ctrl_c_is_noticed(tmp_path: Path) -> None:
    """Within seconds of its processor's time, however busy the machine is."""
    script = tmp_path / "script.py"
    script.write_text(LONG)
    ready, interrupted = warm.run([script]).splitlines()
    assert ready.split() == ["ready", "native"]
    said, after = interrupted.split()
    assert said == "interrupted"
    assert float(after) < 5
