"""Images turned, blurred, covered with noise and flattened, each at five strengths.

Images are (n, side * side), or in colour (n, side, side, colours), with pixels in [0, 1]; strength
0 leaves them as they are.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

#: Degrees; standard deviation in pixels of 28; of the noise; what is left of the contrast.
STRENGTHS: dict[str, tuple[float, ...]] = {
    "rotation": (15, 30, 45, 60, 75),
    "blur": (0.5, 1.0, 1.5, 2.0, 3.0),
    "noise": (0.1, 0.2, 0.3, 0.4, 0.6),
    "contrast": (0.75, 0.5, 0.35, 0.2, 0.1),
}


def corrupted(x: Tensor, kind: str, strength: int) -> Tensor:
    """``strength`` 1 to 5 of a ``kind``; the noise is always the same.

    >>> x = torch.zeros(1, 16); x[0, 5] = 1.0
    >>> float(corrupted(x, "contrast", 5).max() - corrupted(x, "contrast", 5).min())
    0.10000000149011612
    """
    if kind not in STRENGTHS or not 1 <= strength <= 5:
        raise ValueError(
            f"a kind among {', '.join(STRENGTHS)} and a strength from 1 to 5, got {kind!r} and "
            f"{strength!r}"
        )
    value, colour = STRENGTHS[kind][strength - 1], x.ndim == 4
    side = x.shape[1] if colour else math.isqrt(x.shape[1])
    images = x.movedim(-1, 1) if colour else x.reshape(-1, 1, side, side)
    if kind == "rotation":
        found = rotated(images, value)
    elif kind == "blur":
        found = blurred(images, value * side / 28)
    elif kind == "noise":
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(images.shape, generator=generator).to(images.device)
        found = (images + value * z).clamp(0, 1)
    else:
        mean = images.mean((1, 2, 3), keepdim=True)
        found = mean + value * (images - mean)
    return found.movedim(1, -1) if colour else found.reshape(x.shape)


def rotated(images: Tensor, degrees: float) -> Tensor:
    """(n, colours, side, side), counter-clockwise around the middle; what comes in is black."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = images.new_tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def blurred(images: Tensor, deviation: float) -> Tensor:
    """A Gaussian filter; pixels beyond the border are black."""
    reach = max(1, math.ceil(3 * deviation))
    offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    weights = torch.exp(-0.5 * (offsets / deviation) ** 2)
    weights = weights / weights.sum()
    single = images.reshape(-1, 1, *images.shape[2:])  # colour by colour
    across = F.conv2d(single, weights.reshape(1, 1, 1, -1), padding=(0, reach))
    return F.conv2d(across, weights.reshape(1, 1, -1, 1), padding=(reach, 0)).reshape(images.shape)
