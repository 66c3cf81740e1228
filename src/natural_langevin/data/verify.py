"""Verification of a file's structure and checksum."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from . import idx, sources
from .errors import CorruptDataError, WrongDatasetError
from .sources import IdxFile

# gzip never makes data much longer: whatever exceeds the raw size by more is not our file.
_GZIP_SLACK = 1 << 16


def size_limit(file: IdxFile) -> int:
    """The most bytes that `file`, compressed or not, may take."""
    return file.size + _GZIP_SLACK


def read(path: Path, file: IdxFile) -> NDArray[np.uint8]:
    """The array in `path`, which is compressed when its name ends in .gz; shape `file.shape`."""
    with path.open("rb") as handle:
        return read_handle(handle, file, compressed=path.suffix == ".gz", label=str(path))


def read_handle(
    handle: BinaryIO, file: IdxFile, *, compressed: bool, label: str
) -> NDArray[np.uint8]:
    """As `read`, from an open file; `label` names it in errors. Reads a bounded number of bytes."""
    blob = handle.read(size_limit(file) + 1)
    return decode(blob, file, compressed=compressed, label=label)


def decode(blob: bytes, file: IdxFile, *, compressed: bool, label: str) -> NDArray[np.uint8]:
    """The array of shape `file.shape` in `blob`, or a CorruptDataError saying what is wrong."""
    raw = blob
    try:
        if compressed:
            raw = _gunzip(blob, limit=file.size)
        array = idx.parse(raw, shape=file.shape)
        if file.classes is not None and int(array.max(initial=0)) >= file.classes:
            raise CorruptDataError(
                f"it holds the label {array.max()}, the largest allowed is {file.classes - 1}"
            )
    except CorruptDataError as error:
        raise _refusal(label, file, str(error), raw) from None
    if not _is_authentic(raw, blob, file, compressed=compressed):
        found = _sha256(raw)
        problem = f"its content was altered: SHA-256 {found}, expected {file.sha256}"
        raise _refusal(label, file, problem, raw)
    return array


def _gunzip(blob: bytes, *, limit: int) -> bytes:
    """At most `limit` + 1 decompressed bytes, so that a gzip bomb stays small."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(blob)) as stream:
            return stream.read(limit + 1)
    except EOFError:
        raise CorruptDataError(
            f"it is truncated: the gzip stream breaks off after {len(blob)} bytes"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CorruptDataError(f"it is not an intact gzip file: {error}") from None


def _is_authentic(raw: bytes, blob: bytes, file: IdxFile, *, compressed: bool) -> bool:
    # The raw checksum comes first: it also accepts a file that somebody compressed again.
    if _sha256(raw) == file.sha256:
        return True
    if not compressed or file.gzip_md5 is None:
        return False
    return hashlib.md5(blob, usedforsecurity=False).hexdigest() == file.gzip_md5


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _refusal(label: str, file: IdxFile, problem: str, raw: bytes) -> CorruptDataError:
    """The error for `label`; says so when the bytes are those of another file that is known."""
    message = f"{label} is not {file.name}: {problem}"
    digest = _sha256(raw)
    for source in sources.KNOWN:
        for other in source.files:
            if other.sha256 == digest:
                message += f" (it is {source.title}'s {other.name})"
                return (CorruptDataError if file in source.files else WrongDatasetError)(message)
    return CorruptDataError(message)
