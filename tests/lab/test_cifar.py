"""CIFAR-10's binary files: where they are found, that they are verified, and how they are read."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.data import cifar, cifar10
from natural_langevin.data import CorruptDataError, DataError, DataUnavailableError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six small files with their own checksums, in a user's folder; no cache, no network."""
    random = np.random.default_rng(0)
    monkeypatch.setattr(cifar, "_ROWS", 4)
    monkeypatch.setattr(cifar, "_SIZE", 4 * 3073)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NATURAL_LANGEVIN_DATA", raising=False)
    own = tmp_path / "data" / "cifar10"
    own.mkdir(parents=True)
    for name in cifar.FILES:
        rows = random.integers(0, 256, (4, 3073), dtype=np.uint8)
        rows[:, 0] = random.integers(0, 10, 4)
        (own / name).write_bytes(rows.tobytes())
        digest = hashlib.sha1(rows.tobytes(), usedforsecurity=False).hexdigest()
        monkeypatch.setitem(cifar.FILES, name, digest)
    return own


def test_planes_become_colours_and_batches_stay_in_order(folder: Path) -> None:
    data = cifar10(folder.parent, download=False)
    assert data.train_x.shape == (20, 32, 32, 3)
    assert data.test_x.shape == (4, 32, 32, 3)
    raw = np.frombuffer((folder / "data_batch_2.bin").read_bytes(), np.uint8).reshape(4, 3073)
    assert int(data.train_y[5]) == raw[1, 0]
    green = torch.from_numpy(raw[1, 1 + 1024 : 1 + 2048].reshape(32, 32).copy())
    assert torch.equal((data.train_x[5, :, :, 1] * 255).round().byte(), green)


def test_a_damaged_file_is_refused(folder: Path) -> None:
    content = bytearray((folder / "test_batch.bin").read_bytes())
    content[7] ^= 1
    (folder / "test_batch.bin").write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"test_batch\.bin is not CIFAR-10's"):
        cifar10(folder, download=False)


def test_without_files_the_error_says_where_it_looked(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()
    with pytest.raises(DataUnavailableError, match=r"holds no data_batch_1\.bin.*\n.*Remedy"):
        cifar10(folder.parent, download=False)


def test_a_folder_that_is_none_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_dir = .*nowhere is not a folder: give"):
        cifar10(tmp_path / "nowhere", download=False)
