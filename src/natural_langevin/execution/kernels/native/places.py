"""Which inputs every output of a convolution or a pool reads, as a table of feature numbers.

A sample's features are numbered in the order in which they lie. The tables are made by sending
these numbers through the same cutting into patches that a layer does, so that one way serves one,
two and three dimensions, any stride, padding and dilation. A number past the last feature stands
for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from natural_langevin.statistics.rules.base import by_position
from natural_langevin.statistics.rules.convolution import patches


class Places(NamedTuple):
    """``table`` (position, input of a patch) of a convolution, (output, feature) of a pool."""

    kind: str  # of layout.KINDS
    table: Tensor  # int32
    inputs: int  # features of a sample
    share: float = 1.0  # of an average


class UnknownPlacesError(Exception):
    """A form of the layer that has no table here."""


def convolution(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> Places:
    """Of ``x`` (n, channel, *pixels), with a bias or without."""
    kernel = weight.shape[2:]
    if groups != 1 or x.ndim != weight.ndim or x.shape[1] != weight.shape[1]:
        raise UnknownPlacesError
    stride, dilation = _each(stride, kernel), _each(dilation, kernel)
    if padding == "valid":
        padding = 0
    if padding == "same":
        missing = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(m // 2, m - m // 2) for m in missing]
    else:
        sides = [(p, p) for p in _each(padding, kernel)]
    numbers = _padded(_numbers(x), sides)
    found = by_position(patches(numbers, kernel, stride, dilation, 1))
    return _places("convolution", found[0, 0], x)


def pool(
    kind: str, x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
) -> Places:
    """The largest or the mean of every window of ``x`` (n, channel, *pixels)."""
    kernel = _each(kernel_size, x.shape[2:])
    stride = kernel if stride is None or stride == [] else _each(stride, kernel)
    sides = [(p, p) for p in _each(padding, kernel)]
    found = patches(
        _padded(_numbers(x), sides), kernel, stride, _each(dilation, kernel), x.shape[1]
    )
    return _places(kind, by_position(found)[0].flatten(0, 1), x)


def adaptive_pool(kind: str, x: Tensor, output_size: Any) -> Places:
    """Windows that share ``x`` evenly into ``output_size``."""
    pixels = x.shape[2:]
    size = [p if s is None else s for s, p in zip(_each(output_size, pixels), pixels, strict=True)]
    if any(p % s for s, p in zip(size, pixels, strict=True)):
        raise UnknownPlacesError  # windows of several sizes
    return pool(kind, x, [p // s for s, p in zip(size, pixels, strict=True)])


def reduction(kind: str, x: Tensor, dim: Any) -> Places:
    """The largest or the mean along some axes."""
    axes = {d % x.ndim for d in ((dim,) if isinstance(dim, int) else tuple(dim))}
    if 0 in axes or not axes:
        raise UnknownPlacesError
    kept = [d for d in range(1, x.ndim) if d not in axes]
    found = _numbers(x)[0].permute([d - 1 for d in (*kept, *sorted(axes))])
    outputs = torch.Size(x.shape[d] for d in kept).numel()
    return _places(kind, found.reshape(outputs, -1), x)


def _each(value: Any, like: Sequence[int]) -> list[Any]:
    values = list(value) if isinstance(value, Sequence) else [value]
    values = values * len(like) if len(values) == 1 else values
    if len(values) != len(like):
        raise UnknownPlacesError
    return values


def _numbers(x: Tensor) -> Tensor:
    return torch.arange(x[0].numel()).reshape(1, *x.shape[1:])


def _padded(numbers: Tensor, sides: list[tuple[int, int]]) -> Tensor:
    return F.pad(numbers, [n for side in reversed(sides) for n in side], value=numbers.numel())


def _places(kind: str, table: Tensor, x: Tensor) -> Places:
    share = 1.0 / table.shape[1] if kind == "average_pool" else 1.0
    return Places(kind, table.to(torch.int32).contiguous(), x[0].numel(), share)
