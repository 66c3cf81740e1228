"""Network inputs from the encoded columns: long tails compressed, and optionally decorrelated.

Encoded columns have mean 0 and deviation 1, but amounts or ages may have a long tail, and similar
columns leave directions of tiny variance on which the target may still depend. So every column goes
through the transform of Yeo & Johnson (2000),

    v = ((1 + x)^p - 1) / p  for x >= 0,   v = -((1 - x)^(2 - p) - 1) / (2 - p)  for x < 0,

whose power p (logarithms at 0 and at 2; kept between these, so that v grows without bound) makes
the training rows most like a Gaussian. An amount over several orders of size, in which deviations
tell the largest apart alone, is counted from its end in a unit of its own: x is (x - origin) / unit
there, and p = 0 (p = 2 where the long tail is below). And *decorrelated* inputs are the principal
components of v, each of variance 1.

Of classes, columns have no power. Up to c deviations (FAR of classes, FURTHER of numbers, whose
trends go on) v stays as it is, and goes on as a logarithm,

    sign(v) (c + ln(1 + |v| - c))  for |v| > c:

a pixel that is nearly always empty is 40 deviations out where it is not, and one such row is enough
to make a chain diverge, and networks that did not see it confidently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

#: Components of less than this share of the largest variance are rounding, and are left out.
LEAST_VARIANCE = 1e-9
#: More inputs than this are not decorrelated: the matrix would be most of what is stored.
MOST_INPUTS = 200
#: Deviations from which a column goes on as a logarithm: of classes, and of numbers.
FAR, FURTHER = 3.0, 6.0
#: Rows that the powers are found from, and steps of the grid that is searched.
ROWS, POWERS = 5000, 41
#: Where half of the rows lie within so many deviations of the column's end, a column has a unit of
#: its own: the distance from there that this part of the rows is below.
NEAR, UNIT = 0.05, 0.1


@dataclass(frozen=True, eq=False)
class Inputs:
    """``power`` (width,), 1 for a column that stays as it is; ``mean``, ``scale``: of v;
    ``rotation`` (width, inputs): of decorrelated inputs; ``dtype``: of what comes out; ``limit``:
    from where on logarithms are taken (None: nowhere); ``origin``, ``unit`` (width,): what columns
    are counted from, and in (None: 0 and 1)."""

    power: Tensor
    mean: Tensor
    scale: Tensor
    rotation: Tensor | None = None
    dtype: torch.dtype = torch.float32
    limit: float | None = None
    origin: Tensor | None = None
    unit: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Inputs of the network, (n, inputs)."""
        v = self._standardised(x)
        return (v if self.rotation is None else v @ self.rotation).to(self.dtype)

    def _standardised(self, x: Tensor) -> Tensor:
        x = x.double()
        if self.origin is not None and self.unit is not None:
            x = (x - self.origin) / self.unit
        v = (yeo_johnson(x, self.power) - self.mean) / self.scale
        if self.limit is None:
            return v
        beyond = (v.abs() - self.limit).clamp_min(0.0)
        return v.clamp(-self.limit, self.limit) + v.sign() * beyond.log1p()

    def __str__(self) -> str:
        return "" if self.rotation is None else "decorrelated inputs"

    @property
    def width(self) -> int:
        """Inputs of the network."""
        return len(self.power) if self.rotation is None else self.rotation.shape[1]

    def decorrelated(self, x: Tensor) -> Inputs | None:
        """The same with principal components of these training rows; None where they would be no
        others: one column, too many, or fewer rows than columns."""
        if not 1 < len(self.power) <= min(MOST_INPUTS, len(x) - 1):
            return None
        v = self._standardised(x)
        v = v - v.mean(0)
        variance, directions = torch.linalg.eigh(v.T @ v / len(v))
        kept = variance > LEAST_VARIANCE * variance.max()
        if not bool(kept.any()):
            return None
        return replace(self, rotation=directions[:, kept] / variance[kept].sqrt())

    def to_json(self) -> dict[str, Any]:
        """As plain values, for learned.json."""
        found = {name: getattr(self, name).tolist() for name in ("power", "mean", "scale")}
        for name in ("rotation", "origin", "unit"):
            value = getattr(self, name)
            found[name] = None if value is None else value.tolist()
        return found | {"double": self.dtype == torch.float64, "limit": self.limit}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Inputs:
        """As ``to_json`` wrote it."""
        found: dict[str, Any] = {
            name: None if v is None else torch.tensor(v, dtype=torch.float64)
            for name, v in value.items()
            if name not in ("double", "limit")
        }
        dtype = torch.float64 if value["double"] else torch.float32
        return Inputs(**found, dtype=dtype, limit=value.get("limit"))


def plain_inputs(
    width: int, dtype: torch.dtype = torch.float32, limit: float | None = None
) -> Inputs:
    """The encoded columns as they are, up to ``limit``.

    >>> plain_inputs(1, limit=3.0)(torch.tensor([[-2.0], [3 + torch.e - 1]])).flatten().tolist()
    [-2.0, 4.0]
    """
    one = torch.ones(width, dtype=torch.float64)
    return Inputs(one, torch.zeros_like(one), one, dtype=dtype, limit=limit)


def fit_inputs(x: Tensor, dtype: torch.dtype = torch.float32, limit: float | None = None) -> Inputs:
    """From the encoded training rows (n, width), up to ``limit``. Columns of two values, such as
    categories, have no power of their own.

    >>> x = torch.linspace(-2, 4, 50).double().exp()[:, None]
    >>> float(fit_inputs(x / x.std()).power)
    0.0
    """
    x = x.double()
    some = x[:: max(1, len(x) // ROWS)]
    grid = torch.linspace(0, 2, POWERS, dtype=torch.float64)
    # ln of the Gaussian likelihood of v, at its best mean and variance, and the Jacobian's part
    jacobian = (some.sign() * some.abs().log1p()).sum(0)
    fits = torch.stack(
        [
            -len(some) / 2 * yeo_johnson(some, p).var(0, correction=0).clamp_min(1e-300).log()
            + (p - 1) * jacobian
            for p in grid
        ]
    )
    power = grid[fits.argmax(0)] if len(x) else torch.ones(x.shape[1], dtype=torch.float64)
    two = torch.tensor([len(column.unique()) <= 2 for column in some.T], dtype=torch.bool)
    power = torch.where(two, 1.0, power)
    origin, unit = torch.zeros_like(power), torch.ones_like(power)
    if len(some) > 1:
        above = (some - some.mean(0)).pow(3).sum(0) > 0
        end = torch.where(above, x.amin(0), x.amax(0))
        away = (some - end).abs()
        own = away.quantile(UNIT, dim=0)
        swallowed = (away.median(0).values < NEAR) & (own > 0) & ~two
        origin, unit = torch.where(swallowed, end, 0.0), torch.where(swallowed, own, 1.0)
        power = torch.where(swallowed, torch.where(above, 0.0, 2.0), power)
    v = yeo_johnson((x - origin) / unit, power)
    deviation = v.std(0, correction=0)
    moved = (power != 1) & (deviation > 0)
    mean, scale = torch.where(moved, v.mean(0), 0.0), torch.where(moved, deviation, 1.0)
    return Inputs(power, mean, scale, dtype=dtype, limit=limit, origin=origin, unit=unit)


def yeo_johnson(x: Tensor, power: Tensor) -> Tensor:
    """v of the module's formula; ``power`` of every column, or of all.

    >>> yeo_johnson(torch.tensor([-3.0, 0.0, 3.0]), torch.tensor(1.0)).tolist()
    [-3.0, 0.0, 3.0]
    """
    power = power.expand_as(x)
    log = x.abs().log1p()
    exponent = torch.where(x >= 0, power, 2 - power)
    # expm1(p l) / p is l at p = 0
    tiny = exponent < 1e-6
    grown = torch.expm1(exponent * log) / torch.where(tiny, 1.0, exponent)
    return x.sign() * torch.where(tiny, log, grown)
