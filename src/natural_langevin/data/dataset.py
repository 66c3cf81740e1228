"""``Dataset``: the form of every dataset in memory.

scikit-learn's 8x8 digits: a small MNIST that needs no download.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np
import torch

from natural_langevin._internal.extras import needing


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A labelled training set and test set, held in memory.

    Shapes, with D features:
        train_x (N, D) float32 in [0, 1]    train_y (N,) int64 in {0, ..., num_classes - 1}
        test_x  (M, D) float32 in [0, 1]    test_y  (M,) int64

    `source` says in words where the data came from.

    >>> x = torch.zeros(3, 2)
    >>> y = torch.tensor([0, 1, 1])
    >>> Dataset("toy", x, y, x[:1], y[:1], num_classes=2, source="made up")
    Dataset('toy', train=3x2, test=1x2, num_classes=2, source='made up')
    """

    name: str
    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    num_classes: int
    source: str

    def __repr__(self) -> str:
        """Sizes only: the generated one would print four tensors."""
        train, test = ("x".join(map(str, x.shape)) for x in (self.train_x, self.test_x))
        return (
            f"Dataset({self.name!r}, train={train}, test={test}, "
            f"num_classes={self.num_classes}, source={self.source!r})"
        )


_TEST_SIZE = 360
_SPLIT_SEED = 0  # part of the dataset's definition: the same 360 test images everywhere
_LARGEST_PIXEL = 16.0


def digits() -> Dataset:
    """1,437 training and 360 test images of handwritten digits, always the same split.

    x is (N, 64) float32, the pixel / 16; y is (N,) int64. The split is stratified by class.
    Needs scikit-learn, which carries the images.

    >>> digits()
    Dataset('digits', train=1437x64, test=360x64, num_classes=10, source="scikit-learn's digits")
    """
    with needing("the digits need scikit-learn", "sklearn"):
        datasets = importlib.import_module("sklearn.datasets")
        model_selection = importlib.import_module("sklearn.model_selection")
    pixels, labels = datasets.load_digits(return_X_y=True)
    train, test = model_selection.train_test_split(
        np.arange(len(labels)), test_size=_TEST_SIZE, random_state=_SPLIT_SEED, stratify=labels
    )
    x = torch.from_numpy(pixels.astype(np.float32)).div_(_LARGEST_PIXEL)
    y = torch.from_numpy(labels.astype(np.int64))
    return Dataset(
        name="digits",
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        num_classes=10,
        source="scikit-learn's digits",
    )
