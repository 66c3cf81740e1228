"""Metrics of a vector: how a preconditioner of named tensors is applied to all of them at once.

A metric that couples nothing works element by element, and is given the vector as its one
parameter. The quasi-diagonal one is so but for its bias rows: what a bias and its weights tell each
other is one operation for a layer, all else one for the vector. Any other is given the tensors by
name, which lie in the vector's memory.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, Units, average
from natural_langevin.optim.vector import VECTOR, Vector
from natural_langevin.preconditioners import Damping, Factor, Metric, Preconditioner
from natural_langevin.preconditioners.base import damped
from natural_langevin.preconditioners.quasi_diagonal import QuasiDiagonalFisher, unit_factor
from natural_langevin.statistics import Statistics


def vector_metric(inner: Preconditioner, vector: Vector, units: Units) -> Preconditioner:
    """``inner`` for the one parameter ``VECTOR``."""
    if is_elementwise(inner):
        return inner
    if type(inner) is QuasiDiagonalFisher:
        return QuasiDiagonalVector(inner, vector, units)
    return NamedMetric(inner, vector, units)


def is_elementwise(inner: Preconditioner) -> bool:
    """Whether every element of C follows from the same element of gradient and statistics."""
    return inner.couples == "none"


class _Wrapped(Preconditioner):
    """Another metric's settings. Abstract."""

    def __init__(self, inner: Preconditioner, vector: Vector, units: Units) -> None:
        self.inner, self.vector = inner, vector
        own = set(vector.names)
        self.units = {b: ws for b, ws in units.items() if b in own}
        self.fresh, self.damping, self.decay = inner.fresh, inner.damping, inner.decay
        self.every, self.adapt, self.targets = inner.every, inner.adapt, inner.targets
        self.requests, self.couples = inner.requests, inner.couples

    @property
    def refresh_steps(self) -> int:
        return self.inner.refresh_steps

    def damping_from(self, curvature: float | Tensor) -> float | Tensor:
        return self.inner.damping_from(curvature)


class QuasiDiagonalVector(_Wrapped):
    """Algorithm 4 with J_ii and J_0i as two vectors; J_0i is 0 where there is no bias row."""

    def init(self, params: Params, units: Units) -> Metric:
        one = params[VECTOR]
        return {
            "second": {VECTOR: torch.ones_like(one)},
            "cross": {VECTOR: torch.zeros_like(one)},
        }

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        second = average(metric["second"][VECTOR], statistics.second[VECTOR], rate)
        cross = metric["cross"][VECTOR]
        if VECTOR in statistics.cross:  # else no layer has a bias
            cross = average(cross, statistics.cross[VECTOR][VECTOR], rate)
        return {"second": {VECTOR: second}, "cross": {VECTOR: cross}}

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        second, cross = metric["second"][VECTOR], metric["cross"][VECTOR]
        epsilon = damping[VECTOR]
        a_00 = self._of_biases(damped(second, epsilon).rsqrt_())
        row, diagonal = unit_factor(a_00, cross, second, epsilon)

        def forward(z: Params) -> Params:
            out = diagonal * z[VECTOR]
            products = row * z[VECTOR]
            for layer in self._layers:
                layer.biases(out).add_(layer.weights(products).sum(-1))
            return {VECTOR: out}

        def transpose(v: Params) -> Params:
            out = self._of_biases(v[VECTOR]).mul_(row)
            return {VECTOR: out.addcmul_(diagonal, v[VECTOR])}

        return Factor(forward, transpose)

    def _of_biases(self, values: Tensor) -> Tensor:
        """At every weight its bias's value, and 0 at parameters without a bias."""
        found = torch.zeros_like(values)
        for layer in self._layers:
            layer.weights(found).copy_(layer.spread(values))
        return found

    @cached_property
    def _layers(self) -> list[_Layer]:
        starts = dict(zip(self.vector.names, self.vector.starts, strict=True))
        sizes = dict(zip(self.vector.names, self.vector.sizes, strict=True))
        return [
            _Layer(starts[b], starts[w], sizes[b], sizes[w] // sizes[b])
            for b, ws in self.units.items()
            for w in (ws if sizes[b] else ())
        ]


class _Layer(NamedTuple):
    """Where the biases and the weights of a layer's units begin, how many units there are, and how
    many weights each has."""

    bias: int
    weight: int
    units: int
    inputs: int

    def biases(self, vector: Tensor) -> Tensor:
        """(units,)"""
        return vector.as_strided((self.units,), (1,), self.bias)

    def spread(self, vector: Tensor) -> Tensor:
        """The biases, every one as often as its unit has weights: (units, inputs)."""
        return vector.as_strided((self.units, self.inputs), (1, 0), self.bias)

    def weights(self, vector: Tensor) -> Tensor:
        """(units, inputs)"""
        return vector.as_strided((self.units, self.inputs), (self.inputs, 1), self.weight)


class NamedMetric(_Wrapped):
    """Any other metric, whose values stay a tree by name."""

    def init(self, params: Params, units: Units) -> Metric:
        return self.inner.init(self.vector.named(params[VECTOR]), self.units)

    def update(
        self, metric: Metric, gradient: Params, statistics: Statistics, rate: Tensor
    ) -> Metric:
        return self.inner.update(metric, self.vector.named(gradient[VECTOR]), statistics, rate)

    def refreshed(self, metric: Metric, *, first: bool) -> Metric:
        return self.inner.refreshed(metric, first=first)

    def factor(self, metric: Metric, damping: Damping) -> Factor:
        epsilon = damping[VECTOR]
        own: dict[str, float | Tensor] = dict.fromkeys(self.vector.names, 0.0)
        if isinstance(epsilon, Tensor) and epsilon.numel() > 1:  # the same all over a tensor
            values = self.vector.views(epsilon)
            own |= {k: e.flatten()[0] for k, e in zip(own, values, strict=True) if e.numel()}
        else:
            own = dict.fromkeys(own, epsilon)
        inner = self.inner.factor(metric, own)
        return Factor(
            lambda z: self._joined(inner.forward(self.vector.named(z[VECTOR]))),
            lambda v: self._joined(inner.transpose(self.vector.named(v[VECTOR]))),
        )

    def _joined(self, named: Params) -> Params:
        return {VECTOR: self.vector.joined([named[k][0] for k in self.vector.names])}
