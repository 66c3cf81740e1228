"""What is checked before a run goes on: the code it was started with, and that files are whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import small_run
import warm
from natural_langevin import Langevin, likelihoods
from natural_langevin._internal import provenance
from natural_langevin._internal.tensorfile import WriteError
from natural_langevin.execution.kernels.native import build
from natural_langevin.run.checkpoint import CheckpointError, RunCheckpoint
from small_run import assert_same, sample_until


def test_a_damaged_newest_never_replaces_the_good_one_before_it(tmp_path, monkeypatch, caplog):
    """Killed right after the first save that follows a fallback, the run still goes on."""
    run = {"checkpoint": tmp_path, "every": 2}
    sample_until(monkeypatch, 4, lambda: small_run.sample(**run))  # saved after 4 and 6
    newest, previous = (tmp_path / f"{n}.safetensors" for n in ("checkpoint", "previous"))
    good = previous.read_bytes()
    newest.write_bytes(b"damaged")
    sample_until(monkeypatch, 3, lambda: small_run.sample(**run))  # from 4, saved after 6
    assert "checkpoint.safetensors cannot be used" in caplog.text
    assert "continuing from the previous checkpoint" in caplog.text
    assert previous.read_bytes() == good
    newest.write_bytes(b"damaged again")
    assert_same(small_run.sample(), small_run.sample(**run))


@pytest.mark.parametrize("word", [b"steps", b"seed", b"made_by", b"likelihood"])
def test_a_damaged_header_is_not_called_another_run(tmp_path, monkeypatch, caplog, word):
    """A setting in the newest one that was changed by one bit."""
    run = {"checkpoint": tmp_path, "every": 2}
    sample_until(monkeypatch, 4, lambda: small_run.sample(**run))
    newest = tmp_path / "checkpoint.safetensors"
    content = bytearray(newest.read_bytes())
    content[content.index(word)] ^= 1
    newest.write_bytes(content)
    assert_same(small_run.sample(), small_run.sample(**run))
    assert "checkpoint.safetensors cannot be used" in caplog.text
    assert "damaged" in caplog.text


def scaled_loss(outputs, y):
    return _helper(outputs, y)


def _helper(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def run_with(folder, loss=scaled_loss, model=None):
    sampler = Langevin(
        model or small_run.network(), likelihoods.LogLoss(loss), step_size=5e-4, seed=5, chains=2
    )
    return sampler.sample(
        small_run.data(), 6, batch_size=20, checkpoint=folder, every=2, progress=False
    )


def test_a_loss_whose_body_changed_is_refused_by_name(tmp_path, monkeypatch):
    run_with(tmp_path)

    def scaled_loss(outputs, y):
        """Another text, a comment, the same code."""
        # which is all that counts
        return _helper(outputs, y)

    scaled_loss.__qualname__ = "scaled_loss"
    run_with(tmp_path, scaled_loss)
    same_name = eval("lambda outputs, y: 2 * h(outputs, y)", {"h": _helper})
    same_name.__qualname__ = same_name.__name__ = "scaled_loss"
    with pytest.raises(
        CheckpointError, match=r"made by different code: \w+ of the likelihood changed"
    ):
        run_with(tmp_path, same_name)

    def _helper_changed(outputs, y):
        return 3 * F.cross_entropy(outputs, y, reduction="none")

    monkeypatch.setattr(sys.modules[__name__], "_helper", _helper_changed)
    with pytest.raises(CheckpointError, match="made by different code"):
        run_with(tmp_path)


def network_class(factor: float) -> type[nn.Module]:
    """Two classes that print alike and compute different things."""

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = small_run.network()

        if factor == 1:

            def forward(self, x):
                return self.layer(x)
        else:

            def forward(self, x):
                return 2 * self.layer(x)

    return Mine


def test_a_forward_that_changed_is_refused_by_name(tmp_path):
    run_with(tmp_path, model=network_class(1)())
    run_with(tmp_path, model=network_class(1)())
    with pytest.raises(CheckpointError, match=r"Mine\.forward changed since the run was started"):
        run_with(tmp_path, model=network_class(2)())


def test_another_version_is_said_and_goes_on(tmp_path, monkeypatch, caplog):
    run = {"checkpoint": tmp_path, "every": 2}
    sample_until(monkeypatch, 4, lambda: small_run.sample(**run))
    monkeypatch.setattr(provenance, "__version__", "99.0")
    assert_same(small_run.sample(), small_run.sample(**run))
    assert "started with other versions (natural_langevin" in caplog.text
    assert "99.0 here" in caplog.text


@pytest.mark.skipif(build.library(torch.float32) is None, reason="no C compiler")
def test_native_steps_are_followed_by_native_steps(tmp_path, monkeypatch):
    run = {"checkpoint": tmp_path, "every": 2}
    sample_until(monkeypatch, 4, lambda: small_run.sample(**run))
    refused = r"executed differently \(native there, eager here\).*NATURAL_LANGEVIN_NATIVE=off"
    with pytest.raises(CheckpointError, match=refused):
        small_run.sample(**run, sampler={"compile": False})
    with monkeypatch.context() as patch:
        patch.setenv("NATURAL_LANGEVIN_NATIVE", "off")
        patch.setattr(build, "_KNOWN", {})
        with pytest.raises(CheckpointError, match=refused):
            small_run.sample(**run)
    assert_same(small_run.sample(), small_run.sample(**run))  # neither has changed the folder


def test_eager_steps_are_followed_by_eager_steps_traced_or_not(tmp_path, monkeypatch):
    run, eager = {"checkpoint": tmp_path, "every": 2}, {"compile": False}
    sample_until(monkeypatch, 4, lambda: small_run.sample(**run, sampler=eager))
    if build.library(torch.float32) is not None:
        with pytest.raises(CheckpointError, match=r"native here.*continue with compile=False, or"):
            small_run.sample(**run)
    monkeypatch.setenv("NATURAL_LANGEVIN_NATIVE", "off")
    monkeypatch.setattr(build, "_KNOWN", {})
    assert_same(small_run.sample(sampler=eager), small_run.sample(**run))


KILLED = """
import os, signal, sys, small_run
from natural_langevin.run.collector import SampleCollector
keep = SampleCollector.keep
def mortal(self, state):
    keep(self, state)
    if self.kept == 4:
        os.kill(os.getpid(), signal.SIGKILL)
if "killed" in sys.argv:
    SampleCollector.keep = mortal
found = small_run.sample(checkpoint=sys.argv[1], every=2)
print(found.config["execution"])
"""


@pytest.mark.thorough
@pytest.mark.skipif(build.library(torch.float32) is None, reason="no C compiler")
def test_a_native_run_is_killed_and_the_compiler_gone(tmp_path):
    """The library of before is in the cache still; without a compiler nobody knows whose it is."""
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(KILLED)
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    here = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    gone = here | {"PATH": str(tmp_path), "CC": ""}

    def ended(environment, *words):
        command = [sys.executable, script, folder, *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert ended(here, "killed").returncode == -signal.SIGKILL
    refused = ended(gone)
    assert refused.returncode == 1
    assert "executed differently (native there, eager here)" in refused.stderr.splitlines()[-1]
    assert ended(here).stdout.strip() == "native"
    assert_same(small_run.sample(), small_run.sample(checkpoint=folder, every=2))


def test_a_failed_save_says_what_is_true(tmp_path, monkeypatch):
    tree = {"a": torch.zeros(3)}
    folder = tmp_path / "run"
    saved = RunCheckpoint(folder, {})
    monkeypatch.setattr(
        "natural_langevin._internal.tensorfile.write_tensors",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(WriteError, match=r"no previous checkpoint.*Free some space"):
        saved.save(tree)
    monkeypatch.undo()
    saved.save(tree)
    monkeypatch.setattr(
        "natural_langevin._internal.tensorfile.write_tensors",
        lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")),
    )
    with pytest.raises(WriteError, match=r"previous checkpoint is intact") as error:
        saved.save(tree)
    assert "space" not in str(error.value)
    shutil.rmtree(folder)
    with pytest.raises(WriteError, match="no previous checkpoint"):
        saved.save(tree)
    saved.close()


TERMINATED = """
import sys, time, small_run
from natural_langevin.run.collector import SampleCollector
keep = SampleCollector.keep
def slow(self, state):
    keep(self, state)
    print("kept", self.kept, flush=True)
    time.sleep(0.2)
SampleCollector.keep = slow
small_run.sample(checkpoint=sys.argv[1])
"""


def test_sigterm_writes_a_checkpoint_first(tmp_path, caplog):
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(TERMINATED)
    hearing, printing = os.pipe()
    with Path(os.devnull).open() as nothing:
        process = warm.start([script, folder], stdin=nothing, stdout=printing, stderr=2)
    os.close(printing)
    with os.fdopen(hearing) as heard:
        assert heard.readline() == "kept 1\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert [path.name for path in folder.iterdir()] == ["checkpoint.safetensors"]
    with caplog.at_level("INFO", logger="natural_langevin"):
        assert_same(small_run.sample(), small_run.sample(checkpoint=folder))
    assert "resuming at step 5" in caplog.text
