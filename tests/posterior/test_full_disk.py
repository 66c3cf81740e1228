"""A full disk and a read-only folder: one clear error, and what was there before is intact."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import small_run
from natural_langevin import Langevin, Posterior, StorageError, likelihoods
from natural_langevin._internal.tensorfile import WriteError
from natural_langevin.posterior.stores import InFolder
from natural_langevin.run.checkpoint import RunCheckpoint
from small_run import assert_same, network


@pytest.fixture(scope="module")
def undisturbed():
    return small_run.sample()


@contextlib.contextmanager
def files_no_larger_than(size: int):
    """Writing beyond fails with EFBIG, as a full disk does with ENOSPC; no privilege needed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 256 KiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
        )
        if os.geteuid() == 0 and shutil.which("mount")
        else None
    )
    if mounted is None or mounted.returncode:
        pytest.skip("mounting a small file system needs root (limits on file sizes are tested)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def read_only(folder: Path, on: bool) -> None:
    subprocess.run(["mount", "-o", f"remount,{'ro' if on else 'rw'}", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Leaves this many bytes of the disk."""
    ballast = folder / "ballast"
    ballast.write_bytes(b"\0" * (shutil.disk_usage(folder).free - leave))
    return ballast


def interrupt_after(monkeypatch, saves: int, then) -> None:
    """Calls ``then`` before the checkpoint that comes after this many."""
    save, seen = RunCheckpoint.save, []

    def counted(self, tree, way):
        seen.append(1)
        if len(seen) == saves + 1:
            then()
        save(self, tree, way)

    monkeypatch.setattr(RunCheckpoint, "save", counted)


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but a run's own lock."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name != ".lock"]
    return {path.name: path.read_bytes() for path in files}


def test_a_disk_that_fills_up_leaves_the_last_checkpoint(undisturbed, small_disk, monkeypatch):
    before: dict[str, bytes] = {}

    def full():
        fill(small_disk, leave=4096)
        before.update(contents(small_disk / "run"))

    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, full)
        with pytest.raises(WriteError, match=r"No space left on device.*intact.*run the same"):
            small_run.sample(checkpoint=small_disk / "run", every=2)
    assert contents(small_disk / "run") == before
    assert len(before) == 2
    (small_disk / "ballast").unlink()
    assert_same(undisturbed, small_run.sample(checkpoint=small_disk / "run", every=2))


def test_a_folder_that_becomes_read_only_leaves_the_last_checkpoint(
    undisturbed, small_disk, monkeypatch
):
    before: dict[str, bytes] = {}

    def lock():
        before.update(contents(small_disk / "run"))
        read_only(small_disk, True)

    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, lock)
        with pytest.raises(WriteError, match="Read-only file system"):
            small_run.sample(checkpoint=small_disk / "run", every=2)
    assert contents(small_disk / "run") == before
    with pytest.raises(WriteError, match="Read-only file system"):  # at once, not a minute later
        small_run.sample(checkpoint=small_disk / "run", every=2)
    read_only(small_disk, False)
    assert_same(undisturbed, small_run.sample(checkpoint=small_disk / "run", every=2))


def test_saving_on_a_full_or_read_only_disk_leaves_what_was_saved(undisturbed, small_disk):
    undisturbed.save(small_disk / "saved")
    before = contents(small_disk / "saved")
    other = small_run.sample(sampler={"seed": 6})
    ballast = fill(small_disk, leave=0)
    with pytest.raises(StorageError, match=r"No space left on device.*intact"):
        other.save(small_disk / "saved")
    read_only(small_disk, True)
    with pytest.raises(StorageError, match=r"Read-only file system.*intact"):
        other.save(small_disk / "saved")
    assert contents(small_disk / "saved") == before
    assert_same(undisturbed, Posterior.load(small_disk / "saved", network()))
    read_only(small_disk, False)
    ballast.unlink()
    other.save(small_disk / "saved")
    assert_same(other, Posterior.load(small_disk / "saved", network()))


def test_too_little_space_for_the_samples_is_noticed_before_the_first_step(small_disk, monkeypatch):
    model = nn.Linear(100, 10)  # 4 kB: a hundred of them are more than the disk has
    sampler = Langevin(model, likelihoods.Categorical(), step_size=1e-5, chains=1)
    x, y = torch.rand(20, 100), torch.arange(20) % 10
    monkeypatch.setattr(InFolder, "put", None)  # no draw is ever made
    with pytest.raises(ValueError, match=r"100 samples .* GiB and the disk of .* keep="):
        sampler.sample((x, y), 100, batch_size=10, store=small_disk / "draws", progress=False)
    fill(small_disk, leave=40_000)
    small_disk.joinpath("draws").mkdir()
    # Somebody else's draws look as if their space could be used again: claiming it fails cleanly.
    monkeypatch.setattr("natural_langevin._internal.capacity.on_disk", lambda folder: 1 << 40)
    with pytest.raises(WriteError, match="No space left on device"):
        sampler.sample((x, y), 100, batch_size=10, store=small_disk / "draws", progress=False)
    assert not list((small_disk / "draws").iterdir())


def test_a_limit_on_file_sizes_leaves_the_last_checkpoint(undisturbed, tmp_path, monkeypatch):
    before: dict[str, bytes] = {}

    def limit():
        before.update(contents(tmp_path))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    with monkeypatch.context() as patch, files_no_larger_than(1 << 30):
        interrupt_after(patch, 3, limit)
        with pytest.raises(WriteError, match=r"File too large.*intact"):
            small_run.sample(checkpoint=tmp_path, every=2)
    assert contents(tmp_path) == before
    assert_same(undisturbed, small_run.sample(checkpoint=tmp_path, every=2))


def test_a_limit_on_file_sizes_leaves_what_was_saved(undisturbed, tmp_path):
    undisturbed.save(tmp_path)
    before = contents(tmp_path)
    other = small_run.sample(sampler={"seed": 6})
    for size in map(len, before.values()):  # a byte too many in samples, in the rest, in the words
        with files_no_larger_than(size - 1), pytest.raises(WriteError, match="File too large"):
            other.save(tmp_path)
        assert contents(tmp_path) == before
    assert_same(undisturbed, Posterior.load(tmp_path, network()))


def test_draws_beyond_a_limit_on_file_sizes_fail_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(InFolder, "put", None)
    with files_no_larger_than(1000), pytest.raises(WriteError, match="File too large"):
        small_run.sample(store=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["checkpoint", "store"])
def test_a_file_where_a_folder_should_be_is_refused_before_the_first_step(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WriteError, match="cannot write"):
            small_run.sample(**{place: folder})
    assert (tmp_path / "file").read_text() == "mine"


def test_saving_where_a_file_is_is_refused(undisturbed, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WriteError, match="cannot write the posterior"):
        undisturbed.save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
