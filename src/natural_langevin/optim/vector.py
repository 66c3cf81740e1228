"""All parameters of a step in one vector: a handful of operations, however many tensors there are.

What a step costs beside the passes of the network is the number of its operations. An integrator
and a diagonal metric work element by element, so they are given one parameter, this vector:
(chain of one, length). Its noise is read from the chain's stream in as few runs as there are:
tensors begin at multiples of 32 there, so a run has draws between them that nobody uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from natural_langevin import random
from natural_langevin.priors import Flat, Gaussian, Prior

#: The name of the one parameter that a vector is.
VECTOR = "vector"


class Run(NamedTuple):
    """Draws ``start`` to ``end`` of a noise stream."""

    start: int
    end: int


class Vector:
    """Where tensors stand in a vector.

    ``like``: this rank's rows of every parameter, by name. ``drawn``: where the draws of those
    rows begin in the chain's noise stream."""

    def __init__(self, like: Mapping[str, Tensor], drawn: Mapping[str, int]) -> None:
        first = next(iter(like.values()))
        self.names, self.device, self.dtype = list(like), first.device, first.dtype
        self._templates = [torch.empty_like(p, device="meta") for p in like.values()]
        self.sizes = [p.numel() for p in self._templates]
        *self.starts, self.length = itertools.accumulate(self.sizes, initial=0)
        gaps = [-p.numel() % random.BLOCK for p in self._templates]
        self.runs: list[Run] = []
        for name, p, gap in zip(self.names, self._templates, gaps, strict=True):
            end = drawn[name] + p.numel() + gap
            if self.runs and self.runs[-1].end == drawn[name]:
                self.runs[-1] = Run(self.runs[-1].start, end)
            elif p.numel():
                self.runs.append(Run(drawn[name], end))
        between = [torch.empty(gap, device="meta") for gap in gaps]
        self._in_runs = [
            tensor for pair in zip(self._templates, between, strict=True) for tensor in pair
        ]
        self._has_gaps, self._empty = any(gaps), any(not p.numel() for p in self._templates)

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor for every name, as a vector: (1, length)."""
        return _flatten_dense_tensors(tensors)[None]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The tensors that a vector (1, length) is made of, in its memory."""
        found = _unflatten_dense_tensors(vector[0], self._templates)
        if not self._empty:
            return list(found)
        pairs = zip(found, self._templates, strict=True)  # torch forgets the shape of nothing
        return [view if view.numel() else view.new_empty(like.shape) for view, like in pairs]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The same by name, with a chain axis: (1, *shape)."""
        return {k: v[None] for k, v in zip(self.names, self.views(vector), strict=True)}

    def without_gaps(self, draws: Tensor) -> Tensor:
        """The draws of all runs, end to end (1, ...), as a vector."""
        if not self._has_gaps:
            return draws
        return self.joined(_unflatten_dense_tensors(draws[0], self._in_runs)[::2])


class VectorPrior(Prior):
    """Gaussian and flat priors in one operation; any other on its own tensor.

    ``precision`` is a number where all agree, and else one for every element: (1, length)."""

    def __init__(self, vector: Vector, priors: Mapping[str, Prior]) -> None:
        self._vector, own = vector, [priors[name] for name in vector.names]
        self._others = {i: p for i, p in enumerate(own) if type(p) not in (Gaussian, Flat)}
        self._same = own[0] if all(_equal(own[0], p) for p in own) else None
        self._precision = own[0].precision
        if self._same is not None:
            return
        self._precision = torch.zeros(1, vector.length, dtype=vector.dtype, device=vector.device)
        self._mean = torch.zeros_like(self._precision)
        for prior, precision, mean in zip(
            own, vector.views(self._precision), vector.views(self._mean), strict=True
        ):
            precision.copy_(torch.as_tensor(prior.precision, dtype=vector.dtype))
            if type(prior) is Gaussian:
                given = torch.as_tensor(prior.mean, dtype=vector.dtype)
                mean.copy_(given[0] if given.ndim > 1 else given)  # of every weight: (1, *shape)
        self._pull = self._precision.clone() if self._others else self._precision
        for i in self._others:
            vector.views(self._pull)[i].zero_()

    def gradient(self, theta: Tensor) -> Tensor:
        if self._same is not None:
            return self._same.gradient(theta)
        found = (self._mean - theta) * self._pull
        if self._others:
            theirs, into = self._vector.views(theta), self._vector.views(found)
            for i, prior in self._others.items():
                into[i].copy_(prior.gradient(theirs[i][None])[0])
        return found

    @property
    def precision(self) -> float | Tensor:
        return self._precision


def _equal(one: Prior, other: Prior) -> bool:
    """Whether both are the same, and the same for every element."""
    if type(one) is Flat and type(other) is Flat:
        return True
    if type(one) is not Gaussian or type(other) is not Gaussian:
        return False
    settings = (one.variance, one.mean, other.variance, other.mean)
    numbers = all(isinstance(value, (int, float)) for value in settings)
    return numbers and settings[:2] == settings[2:]
