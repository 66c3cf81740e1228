"""Units: a run in standard ones, and its draws in the user's.

The recipe's prior, start and step sizes are made for numbers of mean 0 and size 1. Data of other
sizes are sampled from as

    x~ = (x - a) / b        y~ = (y - m) / s        (a, b, m, s: one number for every column)

and the draws are brought back through the weights: those of the layer that sees x, and those of the
layer that says y,

    W~ x~ + c~ = (W~ / b) x + c~ - (W~ / b) a        s (W~ h + c~) + m = (s W~) h + s c~ + m.

What is handed on, networks and predictions, files and scores, is then in the user's units and
needs to know nothing of them. The prior is one of the weights in standard units: what asks for it
(``in_standard_units``) looks at them there. ``config["units"]`` has the numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods import Likelihood, Scaled
from natural_langevin.posterior.draws import Draws

AnyDraws = TypeVar("AnyDraws", bound=Draws)


@dataclass(frozen=True)
class Columns:
    """Where the columns of x or y lie and how large they are, (value - location) / scale, and the
    ``layer`` that sees or says them. One number stands for all columns. ``far``: the columns with
    cells far out, which a run takes as the least or the largest number given here."""

    layer: str
    location: tuple[float, ...]
    scale: tuple[float, ...]
    far: tuple[tuple[int, float, float], ...] = ()

    def tamed(self, values: Tensor) -> Tensor:
        """Rows (n, column) whose far cells are as near as a run takes them."""
        if not self.far:
            return values
        found = values.clone()
        for column, least, largest in self.far:
            found[:, column] = values[:, column].clamp(least, largest)
        return found

    def standard(self, values: Tensor) -> Tensor:
        """Rows of these columns in standard units."""
        values = self.tamed(values)
        location, scale = self._of_rows(values)
        return ((values.double() - location) / scale).to(values.dtype)

    def given(self, values: Tensor) -> Tensor:
        """The same the other way round."""
        location, scale = self._of_rows(values)
        return (values.double() * scale + location).to(values.dtype)

    def numbers(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale, (column,) each, in float64."""
        found = torch.tensor([self.location, self.scale], dtype=torch.float64, device=like.device)
        return found[0], found[1]

    def _of_rows(self, values: Tensor) -> list[Tensor]:
        """Location and scale, in the shape of a row."""
        return [n if len(n) == 1 else n.reshape(values.shape[1:]) for n in self.numbers(values)]


@dataclass(frozen=True)
class Units:
    """Of the inputs, of the targets, or of both. ``spread``: the second half of the outputs are the
    logarithms of variances. ``width``: the weight that is the logarithm of the noise's size, where
    it is sampled; all columns of y then have one scale."""

    x: Columns | None = None
    y: Columns | None = None
    spread: bool = False
    width: str | None = None

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Units | None:
        """The units of a posterior with this configuration, if they are not its data's own."""
        found = config.get("units")
        if found is None:
            return None
        try:
            x, y = (found[k] and Columns(**_tuples(found[k])) for k in ("x", "y"))
            return Units(x, y, bool(found["spread"]), found.get("width"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"units must be those of a run, got {found!r:.80}") from error

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for ``config["units"]``."""
        return asdict(self)

    @property
    def shift(self) -> float:
        """What a target's -ln p is larger in its own units, in nats."""
        return 0.0 if self.y is None else sum(math.log(s) for s in self.y.scale)

    def data(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Rows in standard units."""
        return (
            x if self.x is None else self.x.standard(x),
            y if self.y is None else self.y.standard(y),
        )

    def given(self, params: Mapping[str, Tensor]) -> Params:
        """Weights {name: (..., *shape)} of standard units as the user's data need them."""
        found = dict(params)
        if self.x is not None:
            _see(found, self.x, back=False)
        if self.y is not None:
            _say(found, self.y, self.spread, self.width, back=False)
        return found

    def standard(self, params: Mapping[str, Tensor]) -> Params:
        """The same the other way round."""
        found = dict(params)
        if self.y is not None:
            _say(found, self.y, self.spread, self.width, back=True)
        if self.x is not None:
            _see(found, self.x, back=True)
        return found

    def standard_likelihood(self, likelihood: Likelihood) -> Likelihood:
        """Of targets in standard units. A width that was given is one number for all columns, and
        so is then their scale."""
        return likelihood if self.y is None else likelihood.in_units(self.y.scale[0])

    def given_likelihood(self, likelihood: Likelihood) -> Likelihood:
        """``likelihood``, the user's own, as it says what was sampled: noise that was learned by
        the columns' sizes is of different size in each."""
        if self.y is None or self.spread or len(set(self.y.scale)) == 1:
            return likelihood
        return Scaled(likelihood, self.y.scale)

    def learned_factor(self) -> float:
        """What a learned squared width is multiplied by: of columns of one size alone."""
        if self.y is None or len(set(self.y.scale)) > 1:
            return 1.0
        return self.y.scale[0] ** 2

    def hand_back(self, posterior: Draws, likelihood: Likelihood) -> None:
        """All but the weights of a posterior that was sampled in standard units, in the user's:
        ``likelihood`` is his."""
        factor = self.learned_factor()
        posterior.learned = {k: v * factor for k, v in posterior.learned.items()}
        posterior.trace = posterior.trace.clone()
        posterior.trace[:, 1:] += self.shift
        posterior.likelihood = self.given_likelihood(likelihood)
        posterior.config = posterior.config | {
            "likelihood": repr(posterior.likelihood), "units": self.as_dict(),
        }  # fmt: skip


def in_standard_units(posterior: AnyDraws) -> tuple[AnyDraws, Units]:
    """A posterior as it was sampled, and the units that data have there; itself where these are
    the data's own."""
    units = Units.from_config(posterior.config)
    if units is None:
        return posterior, Units()
    found = copy.copy(posterior)
    for name in ("samples", "mean", "last"):
        setattr(found, name, units.standard(getattr(posterior, name)))
    factor = units.learned_factor()
    found.learned = {k: v / factor for k, v in posterior.learned.items()}
    found.likelihood = units.standard_likelihood(posterior.likelihood)
    found.config = {k: v for k, v in posterior.config.items() if k != "units"}
    return found, units


def _see(params: Params, columns: Columns, *, back: bool) -> None:
    """Weights of the layer that sees x, (..., out, in, *kernel), and its bias if any."""
    weight, bias = f"{columns.layer}.weight".lstrip("."), f"{columns.layer}.bias".lstrip(".")
    w, (location, scale) = params[weight], columns.numbers(params[weight])
    given = w.double() if back else w.double() / scale
    params[weight] = (given * scale if back else given).to(w.dtype)
    if any(columns.location):
        moved, b = (given * location).sum(-1), params[bias]
        params[bias] = (b.double() + (moved if back else -moved)).to(b.dtype)


def _say(params: Params, columns: Columns, spread: bool, width: str | None, *, back: bool) -> None:
    """Weights of the layer that says y, (..., out, in), and its bias; ``width``: of the noise."""
    weight, bias = f"{columns.layer}.weight".lstrip("."), f"{columns.layer}.bias".lstrip(".")
    w, b = params[weight], params[bias]
    location, scale = columns.numbers(w)
    if width is not None:
        u, shift = params[width], math.log(columns.scale[0])
        params[width] = (u.double() + (-shift if back else shift)).to(u.dtype)
    if spread:  # of ln variances, or of their ratios to the width's square
        location = torch.cat([location, (2 if width is None else 0) * scale.log()])
        scale = torch.cat([scale, torch.ones_like(scale)])
    if back:
        params[weight] = (w.double() / scale[:, None]).to(w.dtype)
        params[bias] = ((b.double() - location) / scale).to(b.dtype)
    else:
        params[weight] = (w.double() * scale[:, None]).to(w.dtype)
        params[bias] = (b.double() * scale + location).to(b.dtype)


def _tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _tuple(v) for k, v in found.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list | tuple) else value
