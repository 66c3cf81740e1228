"""Killed and resumed, a run ends with the same bits; a checkpoint of another run is refused."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import Langevin, likelihoods
from natural_langevin.checkpoint import CheckpointError

SCRIPT = """
import sys, torch
from tests_checkpoint_setup import run
run(sys.argv[1])
"""

SETUP = """
import torch
from torch import nn
from natural_langevin import Langevin, likelihoods

def run(folder, **changes):
    torch.manual_seed(0)
    activation = changes.pop("activation", nn.Tanh)()
    net = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3))
    x = torch.rand(90, 4)
    y = torch.arange(90) % 3
    settings = dict(step_size=5e-4, chains=2, seed=5) | changes.pop("sampler", {})
    sampler = Langevin(net, likelihoods.Categorical(), **settings)
    run = dict(steps=400, batch_size=20, burn_in=30, thin=7, every=20, progress=False)
    data = changes.pop("data", (x, y))
    return sampler.sample(data, **(run | changes), checkpoint=folder)
"""


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    (folder / "tests_checkpoint_setup.py").write_text(SETUP)
    namespace: dict = {}
    exec(SETUP, namespace)
    return folder, namespace["run"]


def assert_same(one, other):
    for group in ("samples", "mean", "last"):
        for name, value in getattr(one, group).items():
            assert torch.equal(getattr(other, group)[name], value), (group, name)
    assert torch.equal(one.trace, other.trace)


def test_killed_at_random_moments_it_ends_with_the_same_bits(setup, tmp_path):
    code, run = setup
    undisturbed = run(None)
    folder = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": str(code)}
    generator = torch.Generator().manual_seed(3)
    steps_seen = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], env=environment)
        newest = folder / "checkpoint.safetensors"
        began = time.monotonic()
        before = newest.stat().st_mtime_ns if newest.exists() else 0
        # Wait for one more checkpoint, then kill somewhere in the work after it.
        while process.poll() is None and time.monotonic() - began < 60:
            if newest.exists() and newest.stat().st_mtime_ns != before:
                break
            time.sleep(0.01)
        time.sleep(0.3 * float(torch.rand((), generator=generator)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps_seen.append(process.returncode)
    assert steps_seen[0] == -signal.SIGKILL
    assert_same(undisturbed, run(folder))


def test_a_finished_run_comes_back_at_once(setup, tmp_path):
    _, run = setup
    first = run(tmp_path)
    assert_same(first, run(tmp_path))
    assert first.draws == (400 - 30) // 7


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampler": {"seed": 6}}, "seed"),
        ({"sampler": {"step_size": 2e-3}}, "step_size"),
        ({"thin": 8}, "thin"),
        ({"activation": nn.ReLU}, "model"),
        ({"sampler": {"step_size": torch.tensor([5e-4, 5.00001e-4])}}, "rates"),
        ({"sampler": {"mean_rate": 0.5}}, "mean_rate"),
        ({"data": (torch.ones(90, 4), torch.arange(90) % 3)}, "data"),
    ],
)
def test_another_run_is_refused_with_the_difference_named(setup, tmp_path, changes, named):
    _, run = setup
    run(tmp_path, steps=60)
    with pytest.raises(CheckpointError, match=named):
        run(tmp_path, steps=60, **changes)
    assert run(tmp_path, steps=60).draws == (60 - 30) // 7


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(setup, tmp_path):
    _, run = setup
    undisturbed = run(tmp_path)
    newest = tmp_path / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert_same(undisturbed, run(tmp_path))


def test_two_damaged_checkpoints_are_one_clear_error(setup, tmp_path):
    _, run = setup
    run(tmp_path)
    for name in ("checkpoint", "previous"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"previous\.safetensors"):
        run(tmp_path)


def test_a_data_loader_cannot_be_checkpointed(tmp_path):
    x, y = torch.rand(20, 4), torch.arange(20) % 3
    sampler = Langevin(nn.Linear(4, 3), likelihoods.Categorical(), step_size=1e-3, chains=1)
    with pytest.raises(ValueError, match="tensors"):
        sampler.sample(
            DataLoader(TensorDataset(x, y), batch_size=5), 4, checkpoint=tmp_path, progress=False
        )


def test_functions_are_recognised_across_processes():
    from natural_langevin.fingerprints import words

    assert "0x" not in words(likelihoods.LogLoss(lambda out, y: out))
    assert "0x" not in words(lambda step: 1e-3)


def test_what_a_killed_process_was_writing_is_removed(setup, tmp_path):
    _, run = setup
    leftover = tmp_path / ".checkpoint.safetensors.0123.part"
    leftover.write_bytes(b"half a checkpoint")
    run(tmp_path, steps=60)
    assert not leftover.exists()
