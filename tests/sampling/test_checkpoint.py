"""Stopped and resumed, a run ends with the same bits; a checkpoint of another run is refused.

Killing it at random moments is in ``storage/test_kill.py``."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import small_run
from natural_langevin import Langevin, StorageError, likelihoods, preconditioners, priors
from natural_langevin.run.checkpoint import CheckpointError, RunCheckpoint
from natural_langevin.run.collector import SampleCollector
from small_run import StopHereError, assert_same, network, stop_after, the_file

EVERY = 2


def run(folder, **settings):
    return small_run.sample(checkpoint=folder, every=EVERY, **settings)


@pytest.fixture(scope="module")
def undisturbed():
    return small_run.sample()


@pytest.mark.parametrize("place", ["device", "cpu", "folder"])
@pytest.mark.parametrize("draws", [1, 3, 8])
def test_a_stopped_run_ends_with_the_same_bits(undisturbed, tmp_path, monkeypatch, place, draws):
    store = tmp_path / "draws" if place == "folder" else place
    with monkeypatch.context() as patch:
        stop_after(patch, draws)
        with pytest.raises(StopHereError):
            run(tmp_path, store=store)
    assert_same(undisturbed, run(tmp_path, store=store))


def test_a_finished_run_comes_back_at_once(undisturbed, tmp_path, monkeypatch):
    run(tmp_path, store=tmp_path / "draws")
    before = the_file(tmp_path / "draws", "draws").stat()
    monkeypatch.setattr(SampleCollector, "keep", None)  # nothing is drawn again
    assert_same(undisturbed, run(tmp_path, store=tmp_path / "draws"))
    assert the_file(tmp_path / "draws", "draws").stat() == before


def test_a_checkpoint_does_not_hold_the_samples_that_are_on_disk(tmp_path):
    run(tmp_path, store=tmp_path / "draws")
    with safe_open(tmp_path / "checkpoint.safetensors", framework="pt") as file:
        samples = [k for k in file.keys() if "samples" in k]  # noqa: SIM118
        # A check of each of the eight draws, and the identity of their file.
        assert [file.get_slice(k).get_shape() for k in samples] == [[1, 8], [1, 16]]


def test_a_checkpoint_without_its_samples_is_refused(undisturbed, tmp_path):
    run(tmp_path, store=tmp_path / "draws")
    path = the_file(tmp_path / "draws", "draws")
    whole = path.read_bytes()
    with pytest.raises(StorageError, match="are not in"):
        run(tmp_path, store=tmp_path / "elsewhere")
    small_run.sample(store=tmp_path / "draws")  # drawn again: the same bits, but not that file
    with pytest.raises(StorageError, match="are not in"):
        run(tmp_path, store=tmp_path / "draws")
    path.write_bytes(whole[:-1])
    with pytest.raises(StorageError, match="are not in"):
        run(tmp_path, store=tmp_path / "draws")
    path.write_bytes(whole)
    assert_same(undisturbed, run(tmp_path, store=tmp_path / "draws"))


def other_values(changed: str) -> nn.Module:
    net = network()
    with torch.no_grad():
        net.get_parameter(changed).view(-1)[0] += 1e-6
    return net


X, Y = small_run.data()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampler": {"seed": 6}}, "seed"),
        ({"sampler": {"step_size": 2e-3}}, "step_size"),
        ({"sampler": {"step_size": torch.tensor([5e-4, 5.00001e-4])}}, "rates"),
        ({"sampler": {"mean_rate": 0.5}}, "mean_rate"),
        ({"sampler": {"prior": priors.Gaussian(variance=0.2)}}, "prior"),
        ({"sampler": {"prior": priors.Flat()}}, "prior"),
        ({"sampler": {"prior": {"*.bias": priors.Flat(), "*": priors.Gaussian(0.1)}}}, "prior"),
        ({"sampler": {"prior": priors.Gaussian(torch.tensor([0.1, 0.1000001]))}}, "prior_values"),
        ({"sampler": {"preconditioner": preconditioners.DiagonalFisher()}}, "preconditioner"),
        (
            {"sampler": {"preconditioner": preconditioners.QuasiDiagonalFisher(damping=2e-4)}},
            "preconditioner",
        ),
        ({"sampler": {"temperature": 0.5}}, "temperature"),
        ({"sampler": {"temperature": torch.tensor([1.0, 0.9])}}, "temperature"),
        ({"sampler": {"chains": 3}}, "chains"),
        ({"sampler": {"num_data": 61}}, "num_data"),
        ({"sampler": {"init": "fan_in"}}, "init"),
        ({"sampler": {"compile": True}}, "mode"),
        ({"sampler": {"model": network(nn.ReLU)}}, "model"),
        ({"sampler": {"model": other_values("0.weight")}}, "model"),
        ({"steps": 11}, "steps"),
        ({"batch_size": 19}, "batch_size"),
        ({"burn_in": 3}, "burn_in"),
        ({"thin": 2}, "thin"),
        ({"keep": 4}, "thin"),
        ({"store": "cpu"}, "store"),
        ({"sample_dtype": torch.bfloat16}, "sample_dtype"),
        ({"data": (X + 1e-6, Y)}, "data"),
        ({"data": (X, 1 - Y)}, "data"),
        ({"data": (X[:59], Y[:59])}, "data"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_another_run_is_refused_with_the_difference_named(finished, changes, named):
    with pytest.raises(CheckpointError, match=rf"another run:.*\b{named}\b.*differ \("):
        run(finished, **changes)


def test_a_network_made_anew_says_that_its_weights_are_others(finished):
    """Whoever starts a killed script again without a seed meets this."""
    with pytest.raises(CheckpointError, match=r"weights.*torch\.manual_seed\(0\) before"):
        run(finished, sampler={"model": other_values("0.weight")})
    with pytest.raises(CheckpointError, match=r"same settings and data$"):
        run(finished, steps=11)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    run(folder)
    return folder


def test_another_likelihood_is_refused(finished):
    loss = likelihoods.LogLoss(lambda outputs, y: F.cross_entropy(outputs, y, reduction="none"))
    sampler = Langevin(network(), loss, step_size=5e-4, seed=5, chains=2)
    with pytest.raises(CheckpointError, match="likelihood"):
        sampler.sample(
            (X, Y), 12, batch_size=20, burn_in=4, thin=1, checkpoint=finished, progress=False
        )


def test_after_all_refusals_the_run_itself_still_goes_on(undisturbed, finished):
    assert_same(undisturbed, run(finished))
    assert_same(undisturbed, small_run.sample(checkpoint=finished, every=5, keep=8))


@pytest.mark.parametrize("damage", ["cut", "a bit", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(undisturbed, tmp_path, damage):
    run(tmp_path, store=tmp_path / "draws")
    newest = tmp_path / "checkpoint.safetensors"
    content = bytearray(newest.read_bytes())
    content[-20] ^= 4
    if damage == "gone":
        newest.unlink()
    else:
        newest.write_bytes(content[:1000] if damage == "cut" else content)
    assert_same(undisturbed, run(tmp_path, store=tmp_path / "draws"))


def test_two_damaged_checkpoints_are_one_clear_error(tmp_path):
    run(tmp_path)
    for name in ("checkpoint", "previous"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"previous\.safetensors"):
        run(tmp_path)


@pytest.mark.parametrize("every", [0, -5, 1.5, True])
def test_a_wrong_every_is_refused(tmp_path, every):
    with pytest.raises((ValueError, TypeError), match="every must be"):
        small_run.sample(checkpoint=tmp_path, every=every)


def test_a_data_loader_cannot_be_checkpointed(tmp_path):
    x, y = torch.rand(20, 4), torch.arange(20) % 3
    sampler = Langevin(nn.Linear(4, 3), likelihoods.Categorical(), step_size=1e-3, chains=1)
    with pytest.raises(ValueError, match="tensors"):
        sampler.sample(
            DataLoader(TensorDataset(x, y), batch_size=5), 4, checkpoint=tmp_path, progress=False
        )


def test_functions_are_recognised_across_processes():
    from natural_langevin._internal.fingerprints import stable_repr

    assert "0x" not in stable_repr(likelihoods.LogLoss(lambda out, y: out))
    assert "0x" not in stable_repr(lambda step: 1e-3)


def test_tensors_are_recognised_without_their_numbers():
    from natural_langevin._internal.fingerprints import stable_repr

    few, many = priors.Gaussian(torch.tensor([0.1, 0.5])), torch.arange(5000.0).view(50, 100)
    assert stable_repr(few) == repr(few)
    texts = [
        stable_repr(priors.Gaussian(0.1, mean=mean)) for mean in (many, many + 1, many.clone())
    ]
    assert texts[0].startswith("Gaussian(variance=0.1, mean=tensor(50x100, ")
    assert texts[0] == texts[2] != texts[1]
    assert len(texts[0]) < 80


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    leftover = tmp_path / ".checkpoint.safetensors.0123.part"
    leftover.write_bytes(b"half a checkpoint")
    run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint.safetensors",
        "previous.safetensors",
    ]


def interrupt_at(monkeypatch, draws: int) -> None:
    keep = SampleCollector.keep

    def interrupted(self, state):
        keep(self, state)
        if self.kept == draws:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SampleCollector, "keep", interrupted)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_writes_a_checkpoint_first(undisturbed, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            small_run.sample(checkpoint=tmp_path)  # once a minute: none was due
    assert "interrupted at step 7" in caplog.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with caplog.at_level("INFO"):
        assert_same(undisturbed, small_run.sample(checkpoint=tmp_path))
    assert "resuming at step 7" in caplog.text


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_does_not_wait(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 3)

    def again(self, tree, way):
        signal.raise_signal(signal.SIGINT)  # to this thread: kill may reach another one first
        raise AssertionError("the signal comes first")

    monkeypatch.setattr(RunCheckpoint, "save", again)
    with pytest.raises(KeyboardInterrupt):
        small_run.sample(checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("place", ["device", "folder"])
def test_without_a_checkpoint_ctrl_c_ends_with_the_draws_so_far(
    undisturbed, tmp_path, monkeypatch, caplog, place
):
    interrupt_at(monkeypatch, 3)
    found = small_run.sample(store=tmp_path if place == "folder" else place)
    assert "interrupted at step 7" in caplog.text
    assert found.draws == 3
    assert found.config["limit"] == "interrupt"
    assert found.config["steps"] == 7
    for name, samples in undisturbed.samples.items():
        assert samples[:, :3].equal(found.samples[name][:])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_before_the_first_draw_and_for_whole_runs_ctrl_c_raises(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            SampleCollector, "keep", lambda self, state: signal.raise_signal(signal.SIGINT)
        )
        with pytest.raises(KeyboardInterrupt):
            small_run.sample()
    interrupt_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        small_run.sample(partial=False)
