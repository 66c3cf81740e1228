"""Handwriting set upright: an image is sheared until its rows no longer drift to one side.

    x' = x - share s (y - y0)      s = cov(x, y) / var(y)

over an image's brightness, y0 its mean row: a classical normalisation of MNIST (LeCun, Bottou,
Bengio and Haffner, 1998, section III). It is a fixed function of one image, the same for training
and test, and adds no image to the data; ``share`` 0 leaves the pixels as they are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

#: Images that are sheared at once: in float64, with their grids, 10,000 of 28 x 28 take 200 MB.
AT_ONCE = 10_000


def square_side(pixels: int) -> int:
    """The side of a square image of so many pixels."""
    side = math.isqrt(pixels)
    if side * side != pixels:
        raise ValueError(f"images must be square, got {pixels} pixels")
    return side


def deskewed(x: Tensor, share: float) -> Tensor:
    """Images x (n, pixels) with a ``share`` of their slant taken out.

    >>> slanted = torch.eye(5).reshape(1, 25)
    >>> deskewed(slanted, 1.0).reshape(5, 5).argmax(1).tolist()
    [2, 2, 2, 2, 2]
    """
    if not share:
        return x
    side = square_side(x.shape[1])
    return torch.cat([_sheared(rows.reshape(-1, side, side), share) for rows in x.split(AT_ONCE)])


def _sheared(given: Tensor, share: float) -> Tensor:
    images = given.double()
    side = images.shape[1]
    place = torch.arange(side, dtype=images.dtype, device=images.device)
    darkest = images.amin((1, 2), keepdim=True)
    bright = images - darkest  # what comes in from outside the image is as dark as that
    mass = bright / bright.sum((1, 2), keepdim=True).clamp_min(1e-12)
    down = place - mass.sum(2) @ place[:, None]  # (n, row), from the mean row
    across = place - mass.sum(1) @ place[:, None]
    variance = (mass.sum(2) * down.square()).sum(1)
    covariance = torch.einsum("nyx,ny,nx->n", mass, down, across)
    # A single bright row has no slant.
    slant = torch.where(variance > 1e-6, covariance / variance.clamp_min(1e-6), 0.0)
    source = place + share * slant[:, None, None] * down[:, :, None]  # (n, row, column)
    # In units of grid_sample: -1 and 1 are the outer edges of an image.
    columns, rows = ((2 * at + 1) / side - 1 for at in (source, place[:, None].expand_as(source)))
    grid = torch.stack([columns, rows], -1)
    sheared = functional.grid_sample(bright[:, None], grid, align_corners=False)[:, 0] + darkest
    return sheared.flatten(1).to(given.dtype)
