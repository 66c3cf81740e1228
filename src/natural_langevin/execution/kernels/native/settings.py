"""A run's settings as the numbers that the native engine reads.

Every function raises ``UnsupportedError`` for what it does not know. Types are compared exactly: a
subclass may mean something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from natural_langevin import likelihoods, preconditioners, priors
from natural_langevin.execution.kernels.layer import KINDS
from natural_langevin.execution.kernels.native.layout import (
    LIKELIHOODS,
    METRICS,
    PRIOR_NUMBERS,
    PRIORS,
)
from natural_langevin.statistics import Gradients


class UnsupportedError(Exception):
    """Something that the native engine does not take, in words."""


def refuse_indirect(gradients: Gradients) -> None:
    """Gradients must be a whole minibatch's own, in the precision of the network."""
    if gradients.microbatch is not None or gradients.data_parallel is not None:
        raise UnsupportedError("minibatches in pieces")
    if gradients.clip is not None or gradients.network.dtype is not None:
        raise UnsupportedError("clipped gradients or reduced precision")


def _known_as(one: object, module: ModuleType) -> str:
    """The name under which a module offers exactly this type, or nothing."""
    name = type(one).__name__
    return name if getattr(module, name, None) is type(one) else ""


def metric(preconditioner: preconditioners.Preconditioner) -> int:
    """The metric's number in layout.h."""
    kinds: dict[type, str] = {**KINDS, preconditioners.UnitFisher: "unit"}
    if type(preconditioner) not in kinds:
        raise UnsupportedError(f"the metric {preconditioner!r}")
    return METRICS.index(kinds[type(preconditioner)])


def _squared(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64) ** 2


def _two_gaussians(
    weights: tuple[float, ...], variances: tuple[float, ...], mean: Any
) -> tuple[Any, ...]:
    """Both precisions, and the logarithm of the ratio of the two densities at the mean."""
    if len(weights) != 2:
        raise UnsupportedError(f"a mixture of {len(weights)} Gaussians")
    one, two = (w / math.sqrt(v) for w, v in zip(weights, variances, strict=True))
    return 1 / variances[0], mean, 1 / variances[1], math.log(one / two)


#: prior -> kind, and its numbers: precision or scale, centre, and up to two more (see update.h).
_PRIORS: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "Flat": ("flat", lambda p: ()),
    "Gaussian": (
        "gaussian",
        lambda p: (1 / torch.as_tensor(p.variance, dtype=torch.float64), p.mean),
    ),
    "StudentT": ("student_t", lambda p: (p.df * _squared(p.scale), p.mean, p.df + 1)),
    "Laplace": ("laplace", lambda p: (1 / torch.as_tensor(p.scale, dtype=torch.float64), p.mean)),
    "ScaleMixture": ("two_gaussians", lambda p: _two_gaussians(p.weights, p.variances, p.mean)),
    "LogNormal": (
        "gaussian",
        lambda p: (1 / torch.as_tensor(p.variance, dtype=torch.float64), p.mean),
    ),
    # Of u = ln x: d ln alpha / du = n0 - n1 w / (1 + n3 w) with w = e^(n2 u).
    "Positive": ("positive", lambda p: (1.0,)),
    "HalfNormal": ("positive", lambda p: (1.0, 1 / _squared(p.scale), 2.0)),
    "HalfCauchy": (
        "positive",
        lambda p: (1.0, 2 / _squared(p.scale), 2.0, 1 / _squared(p.scale)),
    ),
    "Gamma": ("positive", lambda p: (p.shape, p.rate, 1.0)),
    "InverseGamma": ("positive", lambda p: (-1 * p.shape, -1 * p.scale, -1.0)),
    "NormalInverseGamma": ("normal_inverse_gamma", lambda p: (0.0, p.mean, p.alpha, p.beta)),
}


def prior(one: priors.Prior, chains: int, dtype: torch.dtype) -> tuple[int, Tensor, Tensor | None]:
    """The prior's number in layout.h, its settings as numbers, (chain, PRIOR_NUMBERS), and its
    means where every weight has one, (chain, *shape)."""
    found = _PRIORS.get(_known_as(one, priors))
    if found is None:
        raise UnsupportedError(f"the prior {one!r}")
    numbers, means = torch.zeros(chains, PRIOR_NUMBERS, dtype=dtype), None
    for k, value in enumerate(found[1](one)):
        setting = torch.as_tensor(value, dtype=dtype)
        if setting.ndim > 1:
            means = setting.expand(chains, *setting.shape[1:])
        else:
            numbers[:, k] = setting
    return PRIORS.index(found[0]), numbers, means


class Targets(NamedTuple):
    """A likelihood's targets, row by row; the last two are added to and multiply the loss."""

    classes: Tensor | None = None  # (row,) int64
    values: Tensor | None = None  # (row, target)
    offset: Tensor | None = None  # (row,)
    weight: Tensor | None = None  # (row,)


#: likelihood -> kind, and how many outputs belong to a target (None: classes).
_LIKELIHOODS = {
    "Categorical": ("categorical", None),
    "Bernoulli": ("bernoulli", 1),
    "Gaussian": ("gaussian", 1),
    "HeteroscedasticGaussian": ("heteroscedastic", 2),
    "Poisson": ("poisson", 1),
    "NegativeBinomial": ("negative_binomial", 2),
    "Ordinal": ("ordinal", None),
    "StudentT": ("student_t", 1),
    "Hurdle": ("hurdle", 3),
}
#: Those whose labels cannot be drawn here.
_NOT_DRAWN = {"Poisson", "NegativeBinomial", "Ordinal", "Hurdle"}
#: The logarithm of an amount of 0, as likelihood.h has it.
_NONE = -1e30


class Law(NamedTuple):
    """A likelihood's number in layout.h, and its settings."""

    number: int
    #: A Gaussian's or Student's squared width, or NegativeBinomial's dispersion, where they are
    #: known (0: learned); the levels of Ordinal.
    variance: float
    df: float = 0.0
    #: Whether the last output is the logarithm of the width or dispersion.
    own: bool = False
    #: Of every target, where they differ.
    scale: tuple[float, ...] | None = None


def draws(one: likelihoods.Likelihood) -> bool:
    """Whether labels can be drawn from the likelihood here, if it is known here."""
    weighted = one.class_weights is not None or one.ignore_index is not None
    name = _known_as(one, likelihoods)
    if name == "Scaled":
        return draws(cast("likelihoods.Scaled", one).likelihood)
    if name not in _LIKELIHOODS:
        return True
    return name not in _NOT_DRAWN and not weighted and one.own_parameter is None


def likelihood(one: likelihoods.Likelihood, *, drawn: bool) -> Law:
    """The likelihood's number and settings. ``drawn``: whether labels are drawn from it."""
    name = _known_as(one, likelihoods)
    if name == "Scaled":
        scaled = cast("likelihoods.Scaled", one)
        return likelihood(scaled.likelihood, drawn=drawn)._replace(scale=scaled.scale)
    own = one.own_parameter is not None
    if name not in _LIKELIHOODS or (drawn and not draws(one)):
        raise UnsupportedError(f"the likelihood {one!r}")
    variance = 0.0 if one.known_width is None else float(one.known_width) ** 2
    if isinstance(dispersion := getattr(one, "dispersion", ""), int | float):
        variance = float(dispersion)
    variance = float(getattr(one, "levels", variance))
    number = LIKELIHOODS.index(_LIKELIHOODS[name][0])
    return Law(number, variance, float(getattr(one, "df", 0.0)), own=own)


def targets(one: likelihoods.Likelihood, y: Tensor, outputs: int, dtype: torch.dtype) -> Targets:
    """``y`` (row, ...) as the likelihood reads it."""
    if _known_as(one, likelihoods) == "Scaled":
        scaled = cast("likelihoods.Scaled", one)
        found = targets(scaled.likelihood, y, outputs, dtype)
        shift = sum(math.log(s) for s in scaled.scale)
        return found._replace(offset=torch.full((len(y),), shift, dtype=dtype))
    per_target = _LIKELIHOODS[type(one).__name__][1] and one.outputs_per_target
    if per_target is None:
        return _classes(one, y, dtype)
    values = y.detach().reshape(len(y), -1).to(dtype).contiguous()
    if values.shape[1] * per_target + (one.own_parameter is not None) != outputs:
        raise UnsupportedError(f"{values.shape[1]} targets for {outputs} outputs")
    if type(one).__name__ == "Hurdle":
        logarithms = torch.where(values > 0, values, 1.0).log()
        marked = torch.where(values > 0, logarithms, _NONE)
        return Targets(values=marked, offset=logarithms.sum(1))
    counts = type(one).__name__ in ("Poisson", "NegativeBinomial")
    constant = torch.lgamma(values + 1).sum(1) if counts else None
    return Targets(values=values, offset=constant)


def _classes(one: likelihoods.Likelihood, y: Tensor, dtype: torch.dtype) -> Targets:
    if y.ndim != 1:
        raise UnsupportedError("several classes per sample")
    classes, weight = y.detach().to(torch.int64).contiguous(), None
    class_weights, ignored = one.class_weights, one.ignore_index
    if class_weights is not None or ignored is not None:
        there = classes != ignored if ignored is not None else torch.ones_like(classes).bool()
        classes = classes.where(there, 0)
        weight = there.to(dtype)
        if class_weights is not None:
            weight = weight * torch.tensor(class_weights, dtype=dtype)[classes]
    return Targets(classes=classes, weight=weight)
