"""A prior of local receptive fields: every unit of the first layer has a place in the image.

    w_ui ~ N(0, variance E_ui^2)      E_ui ~ ROUGH + exp(-|pixel i - centre u|^2 / (2 width^2))

The centres lie on a square lattice over the image, ``width`` is a share of its side, and the mean
of E_ui^2 over a unit's pixels is 1, so that ``variance`` means what it does without a place
(``width`` 0). The network is the same: away from its place a unit may look where the data ask for
it, at a price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lab.beyond.deskew import square_side
from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin.priors.base import Prior, check_number_or_vector

#: What a unit's standard deviation keeps far away, before it is scaled.
ROUGH = 0.1


def envelope(units: int, pixels: int, width: float) -> Tensor:
    """E_ui^2, (unit, pixel), with mean 1 over pixels; ``width`` 0: ones.

    >>> [round(v, 2) for v in envelope(1, 9, 0.3)[0].tolist()]
    [0.4, 1.06, 0.4, 1.06, 3.15, 1.06, 0.4, 1.06, 0.4]
    """
    if not width:
        return torch.ones(units, pixels, dtype=torch.float64)
    side, rows = square_side(pixels), math.isqrt(units - 1) + 1
    place = (torch.arange(units)[:, None] // torch.tensor([rows, 1])) % rows  # (unit, 2)
    centre = (place + 0.5) / rows
    pixel = (torch.cartesian_prod(torch.arange(side), torch.arange(side)) + 0.5) / side
    away = (pixel - centre[:, None]).double().square().sum(-1)  # (unit, pixel)
    squares = (ROUGH + torch.exp(-away / (2 * width**2))).square()
    return squares / squares.mean(1, keepdim=True)


@dataclass(frozen=True)
class Local(Prior):
    """The prior above for a tensor (unit, pixel), with a variance and a width for every chain.

    ln alpha = sum_ui -w_ui^2 / (2 variance E_ui^2) - ln(2 pi variance E_ui^2) / 2.
    """

    variance: Tensor
    width: Tensor
    #: variance E^2 of every chain, (chain, unit, pixel), once the tensor is known.
    every: Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number_or_vector("variance", self.variance, positive=True)
        check_number_or_vector("width", self.width, positive=False)

    def for_tensor(self, parameter: Tensor | None) -> Prior:
        if parameter is None:
            return self
        units, pixels = parameter.shape
        known = {w: envelope(units, pixels, w) for w in set(self.width.tolist())}
        squares = torch.stack([known[w] for w in self.width.tolist()])
        every = (per_chain(self.variance.cpu(), squares) * squares).to(parameter)
        return Local(self.variance, self.width, every)

    def _every(self, theta: Tensor) -> Tensor:
        if self.every is None:
            raise ValueError("a local prior must know its tensor first: use for_tensor")
        return self.every.to(theta)

    def log_density(self, theta: Tensor) -> Tensor:
        variance = self._every(theta)
        terms = theta.square() / variance + torch.log(2 * math.pi * variance)
        return -0.5 * terms.flatten(1).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        return -theta / self._every(theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        z = random.normal(key, math.prod(shape)).to(dtype).reshape(-1, *shape)
        return self._every(z).sqrt() * z

    @property
    def precision(self) -> float | Tensor:
        return 1 / self.variance if self.every is None else (1 / self.every).mean((1, 2))

    @property
    def precisions(self) -> Tensor | None:
        return None if self.every is None else 1 / self.every

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"variance": self.variance, "width": self.width}
