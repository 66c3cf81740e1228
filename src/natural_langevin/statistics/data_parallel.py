"""Data parallelism: processes that each evaluate a part of every minibatch, at one theta.

Everything that is learned from a minibatch is a mean over its samples (the loss, the gradient, the
second moments, the bias rows), so with n_r samples at process r and B in all

    mean over the minibatch = sum_r (n_r / B) mean over the part of r.

What is kept sample by sample (gradients for the full Fisher matrix, outputs from which a likelihood
learns) is put at its own rows among zeros: the same sum then puts the parts together. An empty part
(fewer samples than processes) adds zeros. What is exchanged is here; ``distributed`` knows how.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Part(NamedTuple):
    """Samples ``start`` to ``stop`` of a minibatch of ``total``."""

    start: int
    stop: int
    total: int

    @property
    def rows(self) -> slice:
        """What is evaluated: the samples, or one of them in the place of none."""
        return slice(self.start, self.stop) if self.stop > self.start else slice(0, 1)

    def share(self, mean: Tensor) -> Tensor:
        """What a mean over this part adds to the mean over the minibatch.

        Nothing for an empty part, whatever its stand-in gave: zero times infinity is none."""
        if self.stop == self.start:
            return torch.zeros_like(mean)
        return mean * ((self.stop - self.start) / self.total)


class DataParallel(Protocol):
    """What evaluating a minibatch together needs."""

    def part(self, total: int) -> Part:
        """The part of a minibatch of ``total`` samples that is evaluated here."""

    def add_up(self, tree: Any) -> Any:
        """The sum of all processes' trees, bit for bit the same at each."""


def at_its_rows(tree: Any, part: Part, *, axis: int = 0) -> Any:
    """Tensors with one row per sample of the part -> of the whole minibatch, zeros elsewhere.

    >>> at_its_rows(torch.ones(1), Part(1, 2, 3))
    tensor([0., 1., 0.])
    """

    def spread(rows: Tensor) -> Tensor:
        def zeros(count: int) -> Tensor:
            return rows.new_zeros((*rows.shape[:axis], count, *rows.shape[axis + 1 :]))

        if part.stop == part.start:
            return zeros(part.total)
        return torch.cat([zeros(part.start), rows, zeros(part.total - part.stop)], dim=axis)

    return pytree.tree_map(spread, tree)
