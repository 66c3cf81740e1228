"""What the native engine takes of a run's settings, as the numbers that it reads.

Every function returns None (or raises ``Unsupported``) for what it does not know. Types are compared
exactly: a subclass may mean something else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin import likelihoods, preconditioners, priors
from natural_langevin.execution.kernels.native.layout import (
    LIKELIHOODS,
    METRICS,
    PRIOR_NUMBERS,
    PRIORS,
)


class Unsupported(Exception):
    """Something that the native engine does not take, in words."""


class Targets(NamedTuple):
    """A likelihood's targets, row by row."""

    classes: Tensor | None  # (row,) int64
    values: Tensor | None  # (row, outputs)
    offset: Tensor | None = None  # (row,): added to every loss


class LikelihoodNumbers(NamedTuple):
    kind: int
    variance: float


#: The metric's number, and the group of its state that holds J's diagonal.
_METRICS = {
    preconditioners.Euclidean: ("euclidean", None),
    preconditioners.RMSProp: ("rmsprop", "square"),
    preconditioners.DiagonalFisher: ("diagonal", "second"),
    preconditioners.QuasiDiagonalFisher: ("quasi-diagonal", "second"),
}


def metric(preconditioner: Any) -> tuple[int, str | None]:
    found = _METRICS.get(type(preconditioner))
    if found is None or preconditioner.targets != "data":
        raise Unsupported(f"the metric {preconditioner!r}")
    return METRICS.index(found[0]), found[1]


def prior(one: Any, size: int, chains: int, dtype: torch.dtype) -> tuple[int, Tensor]:
    """Kind, and (chain, PRIOR_NUMBERS): precision, mean, and two more."""
    if type(one) is priors.Flat:
        return PRIORS.index("flat"), torch.zeros(chains, PRIOR_NUMBERS, dtype=dtype)
    if type(one) is priors.Gaussian:
        variance = torch.as_tensor(one.variance, dtype=dtype)
        return PRIORS.index("gaussian"), _columns(chains, dtype, 1 / variance, one.mean)
    if type(one) is priors.NormalInverseGamma:
        numbers = _columns(chains, dtype, 0.0, one.mean, one.alpha, one.beta)
        return PRIORS.index("normal_inverse_gamma"), numbers
    raise Unsupported(f"the prior {one!r}")


def _columns(chains: int, dtype: torch.dtype, *values: Any) -> Tensor:
    columns = torch.zeros(chains, PRIOR_NUMBERS, dtype=dtype)
    for k, value in enumerate(values):
        columns[:, k] = torch.as_tensor(value, dtype=dtype)
    return columns


def likelihood(one: Any) -> LikelihoodNumbers:
    if type(one) is likelihoods.Categorical:
        return LikelihoodNumbers(LIKELIHOODS.index("categorical"), 0.0)
    if type(one) is likelihoods.Bernoulli:
        return LikelihoodNumbers(LIKELIHOODS.index("bernoulli"), 0.0)
    if type(one) is likelihoods.Gaussian:
        variance = 0.0 if one.sigma == "rmse" else float(one.sigma) ** 2
        return LikelihoodNumbers(LIKELIHOODS.index("gaussian"), variance)
    raise Unsupported(f"the likelihood {one!r}")


def targets(one: Any, y: Tensor, outputs: int, dtype: torch.dtype) -> Targets:
    """``y`` (row, ...) as the likelihood reads it."""
    if type(one) is likelihoods.Categorical:
        if y.ndim != 1:
            raise Unsupported("several classes per sample")
        return Targets(y.to(torch.int64).contiguous(), None)
    values = y.reshape(len(y), -1).to(dtype).contiguous()
    if values.shape[1] != outputs:
        raise Unsupported(f"{values.shape[1]} targets for {outputs} outputs")
    return Targets(None, values)
