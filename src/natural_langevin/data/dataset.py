"""``Dataset``: the form of every dataset in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
