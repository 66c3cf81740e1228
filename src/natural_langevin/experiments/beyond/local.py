"""A prior of local receptive fields that know of each other, for the first layer of an image.

Every unit has a place in the image; units are ``filters`` of them at each of rows x rows places.

    w_ui = sqrt(variance) E(d) s_kd       d = pixel i - centre of u, k the filter of u
    E(d) ~ ROUGH + exp(-|d|^2 / (2 width^2))
    s_kd = sqrt(share) f_kd + sqrt(1 - share) z_ui      f, z ~ N(0, 1), f common to all places

The centres lie on a square lattice over the image, ``width`` is a share of its side, and the mean
of E^2 is 1, so that ``variance`` means what it does without a place (``width`` 0). ``share`` is the
correlation of weights of one filter that look at the same point from different places: 0, units
know nothing of each other; near 1, the layer is nearly a convolution. The network is the same: all
weights are free, and a unit may look where the data ask for it, at a price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin.priors.base import Prior, check_number_or_vector

#: What a unit's standard deviation keeps far away, before it is scaled.
ROUGH = 0.1


class Lattice(NamedTuple):
    """Places of units, and which of their weights belong together.

    The weights of a filter are (place, pixel), flattened; so many units as make no whole filter are
    a filter of fewer places."""

    away: Tensor  # (place, pixel): |d|^2 in squares of the image's side
    group: Tensor  # (place pixel,): the number of d
    members: Tensor  # (d, place): where the weights with this d are; beyond the last for none
    filters: int

    @staticmethod
    def over(units: int, pixels: int, rows: int) -> Lattice:
        """``rows`` x ``rows`` places for ``units`` that see a square image."""
        side = math.isqrt(pixels)
        if side * side != pixels:
            raise ValueError(f"images must be square, got {pixels} pixels")
        rows = min(rows, math.isqrt(units))
        along = ((torch.arange(rows) + 0.5) * side / rows).long()
        centre, pixel = (torch.cartesian_prod(a, a) for a in (along, torch.arange(side)))
        d = pixel - centre[:, None]  # (place, pixel, 2)
        across = 2 * side - 1
        group = ((d[..., 0] + side - 1) * across + d[..., 1] + side - 1).flatten()
        members = torch.full((across**2, rows**2), len(group))
        members[group, torch.arange(len(group)) // pixels] = torch.arange(len(group))
        return Lattice(d.double().square().sum(-1) / pixels, group, members, -(-units // rows**2))

    def envelope(self, width: float) -> Tensor:
        """E^2, (place, pixel), with mean 1; ``width`` 0: ones."""
        if not width:
            return torch.ones_like(self.away)
        squares = (ROUGH + torch.exp(-self.away / (2 * width**2))).square()
        return squares / squares.mean()


@dataclass(frozen=True)
class Local(Prior):
    """The prior above for a tensor (unit, pixel); variance, width and share for every chain.

    With s = w / (sqrt(variance) E), of n weights of one filter and d, c = share / (1 - share + n
    share), and sums over weights i and over such groups g,

        ln alpha = -1/2 [(sum_i s_i^2 - sum_g c_g (sum_{i in g} s_i)^2) / (1 - share)
                         + sum_i ln(2 pi variance E_i^2)
                         + sum_g (n_g - 1) ln(1 - share) + ln(1 - share + n_g share)].
    """

    variance: Tensor
    width: Tensor
    share: Tensor
    rows: int = 5
    #: What is known once the tensor is: sqrt(variance) E of every chain, (chain, unit, pixel); the
    #: lattice; how many weights every group has, (filter, d); and c of every chain.
    scale: Tensor | None = field(default=None, repr=False, compare=False)
    lattice: Lattice | None = field(default=None, repr=False, compare=False)
    counts: Tensor | None = field(default=None, repr=False, compare=False)
    pull: Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number_or_vector("variance", self.variance, positive=True)
        check_number_or_vector("width", self.width, positive=False)
        check_number_or_vector("share", self.share, positive=False)
        if not ((self.share >= 0) & (self.share < 1)).all():
            raise ValueError(f"share must lie in [0, 1), got {self.share.tolist()}")

    def for_tensor(self, parameter: Tensor | None) -> Prior:
        if parameter is None:
            return self
        units, pixels = parameter.shape
        lattice = Lattice.over(units, pixels, self.rows)
        known = {w: lattice.envelope(w) for w in set(self.width.tolist())}
        squares = torch.stack([known[w] for w in self.width.tolist()])
        squares = squares.repeat(1, lattice.filters, 1)[:, :units]
        variances = per_chain(self.variance.cpu().double(), squares) * squares
        there = torch.ones(1, units, pixels, dtype=torch.float64)
        counts = _sums(there, lattice)[0]
        share = per_chain(self.share.cpu().double(), counts[None])
        pull = share / (1 - share + counts * share)
        moved = Lattice(*(t.to(parameter.device) for t in lattice[:3]), lattice.filters)
        return Local(
            self.variance, self.width, self.share, self.rows,
            variances.sqrt().to(parameter), moved, counts.to(parameter), pull.to(parameter),
        )  # fmt: skip

    def _known(self) -> tuple[Tensor, Lattice, Tensor, Tensor]:
        if self.scale is None or self.lattice is None or self.counts is None or self.pull is None:
            raise ValueError("a local prior must know its tensor first: use for_tensor")
        return self.scale, self.lattice, self.counts, self.pull

    def log_density(self, theta: Tensor) -> Tensor:
        scale, lattice, counts, pull = self._known()
        scale, share = scale.to(theta), self.share.to(theta)
        s = theta / scale
        squares = s.square().sum((1, 2)) - (pull.to(theta) * _sums(s, lattice) ** 2).sum((1, 2))
        one = per_chain(share, pull)
        groups = (counts - 1) * torch.log1p(-one) + torch.log1p((counts - 1) * one)
        groups = torch.where(counts > 0, groups, 0.0).sum((1, 2)).to(theta)
        logs = 2 * scale.log().sum((1, 2)) + theta[0].numel() * math.log(2 * math.pi)
        return -0.5 * (squares / (1 - share) + logs + groups)

    def gradient(self, theta: Tensor) -> Tensor:
        scale, lattice, _, pull = self._known()
        scale = scale.to(theta)
        s = theta / scale
        if bool((self.share > 0).any()):
            s = s - _spread(pull.to(theta) * _sums(s, lattice), lattice, theta.shape)
        return -s / (scale * per_chain(1 - self.share.to(theta), theta))

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        scale, lattice, counts, _ = self._known()
        own = math.prod(shape)
        z = random.normal(key, own + counts.numel()).to(dtype)
        common = _spread(z[:, own:].reshape(-1, *counts.shape), lattice, (len(z), *shape))
        share = per_chain(self.share.to(z), common)
        s = share.sqrt() * common + (1 - share).sqrt() * z[:, :own].reshape(-1, *shape)
        return scale.to(z) * s

    @property
    def precision(self) -> float | Tensor:
        if self.scale is None:
            return 1 / (self.variance * (1 - self.share))
        scale, lattice, _, pull = self._known()
        left = 1 - _spread(pull, lattice, scale.shape)
        return (left / scale.square()).mean((1, 2)) / (1 - self.share.to(scale))

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"variance": self.variance, "width": self.width, "share": self.share}


def _sums(s: Tensor, lattice: Lattice) -> Tensor:
    """(chain, unit, pixel) -> sums over the places of a filter, (chain, filter, d)."""
    whole = lattice.filters * len(lattice.group)
    flat = torch.nn.functional.pad(s.flatten(1), (0, whole - s[0].numel()))
    flat = torch.nn.functional.pad(flat.reshape(len(s), lattice.filters, -1), (0, 1))
    return flat[:, :, lattice.members].sum(-1)


def _spread(sums: Tensor, lattice: Lattice, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """(chain, filter, d) -> what belongs to each weight, (chain, unit, pixel)."""
    found = sums[:, :, lattice.group].flatten(1)
    return found[:, : math.prod(shape[1:])].reshape(len(sums), *shape[1:])
