"""The places of existing idx files: the user's folder, then the cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from natural_langevin._internal.cache_root import cache_root
from natural_langevin.data import sources
from natural_langevin.data.errors import CorruptDataError, DataError, WrongDatasetError
from natural_langevin.data.sources import IdxFile, ImageSource

DATA_VARIABLE = "NATURAL_LANGEVIN_DATA"

logger = logging.getLogger("natural_langevin")


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
