"""The priors of all parameters of a vector, as one prior."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from natural_langevin.optim.vector import Vector
from natural_langevin.priors import Flat, Gaussian, Prior


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
