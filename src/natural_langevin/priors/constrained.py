"""Priors of parameters that are positive, bounded or ordered, for probabilistic models.

The sampler moves unconstrained numbers u, and the model needs x = T(u), which is constrained. A
prior p(x) becomes, in terms of u,

    ln alpha(u) = ln p(T(u)) + ln |det dT/du|,

so that x = T(u) has the density p. A model keeps u as its parameter and calls the same prior's
``constrain`` where it needs x:

>>> from natural_langevin import priors
>>> SIGMA = priors.HalfCauchy(2.5)
>>> class Model(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.mean, self.u = (torch.nn.Parameter(torch.zeros(())) for _ in range(2))
...     def forward(self, x):
...         sigma = SIGMA.constrain(self.u)
...         return torch.stack([self.mean.expand_as(x), sigma.log().expand_as(x)], -1)
>>> prior = {"mean": priors.Gaussian(100.0), "u": SIGMA}

Positive: ``HalfNormal``, ``HalfCauchy``, ``Gamma``, ``InverseGamma``, ``LogNormal``, ``Positive``
(flat). Between two bounds: ``Beta`` (``Beta(1, 1)`` is uniform). Increasing: ``Ordered``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution, transforms

from natural_langevin import random
from natural_langevin._internal.chains import per_chain
from natural_langevin._internal.special import beta_quantile, gamma_quantile
from natural_langevin.priors.base import Prior, check_number_or_vector

_HIGHEST = 1 - 2.0**-25  # a float32 uniform may be 1, where most quantiles are infinite


@dataclass(frozen=True)
class Constrained(Prior):
    """x = T(u) has the density ``law``. Settings are positive numbers, or one value per chain."""

    def __post_init__(self) -> None:
        for name, value in self.chain_values().items():
            check_number_or_vector(name, value, positive=name != "mean")

    @property
    def transform(self) -> transforms.Transform:
        """T, with its Jacobian; the positive numbers are e^u."""
        return transforms.ExpTransform()

    def constrain(self, u: Tensor) -> Tensor:
        """The value for the model: x = T(u)."""
        return self.transform(u)

    def law(self, like: Tensor) -> Distribution | None:
        """p(x), with settings that broadcast against ``like``; None: flat."""
        raise NotImplementedError

    def quantile(self, u: Tensor) -> Tensor:
        """x with P(X <= x) = u, in float64."""
        law = self.law(u)
        if law is None:
            raise ValueError(
                f"{type(self).__name__} is improper and cannot be sampled: use "
                'init="model" or init="fan_in"'
            )
        return law.icdf(u)

    def log_density(self, theta: Tensor) -> Tensor:
        x, law = self.transform(theta), self.law(theta)
        jacobian = self.transform.log_abs_det_jacobian(theta, x)
        value = jacobian.reshape(len(theta), -1).sum(1)
        return value if law is None else value + law.log_prob(x).reshape(len(theta), -1).sum(1)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        u = random.uniform(key, math.prod(shape)).double().clamp_max(_HIGHEST).reshape(-1, *shape)
        return self.transform.inv(self.quantile(u)).to(dtype)

    def chain_values(self) -> dict[str, float | Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class PositivePrior(Constrained):
    """x = e^u > 0."""

    def times(self, factor: float) -> PositivePrior:
        """The prior of ``factor`` x."""
        raise NotImplementedError


@dataclass(frozen=True)
class HalfNormal(PositivePrior):
    """x > 0 with the density of |N(0, scale^2)|.

    >>> HalfNormal(2.0).gradient(torch.zeros(1, 1))
    tensor([[0.7500]])
    """

    scale: float | Tensor = 1.0

    def law(self, like: Tensor) -> Distribution:
        return distributions.HalfNormal(per_chain(self.scale, like), validate_args=False)

    def times(self, factor: float) -> HalfNormal:
        return replace(self, scale=self.scale * factor)

    precision = 2.0


@dataclass(frozen=True)
class HalfCauchy(PositivePrior):
    """x > 0 with density 2 / (pi scale (1 + (x / scale)^2)): half of it beyond ``scale``."""

    scale: float | Tensor = 1.0

    def law(self, like: Tensor) -> Distribution:
        return distributions.HalfCauchy(per_chain(self.scale, like), validate_args=False)

    def times(self, factor: float) -> HalfCauchy:
        return replace(self, scale=self.scale * factor)

    precision = 0.5


@dataclass(frozen=True, kw_only=True)
class Gamma(PositivePrior):
    """x > 0 with density proportional to x^(shape - 1) e^(-rate x): mean shape / rate.
    ``Gamma(shape=1, rate=r)`` is exponential."""

    shape: float | Tensor
    rate: float | Tensor

    def law(self, like: Tensor) -> Distribution:
        shape, rate = per_chain(self.shape, like), per_chain(self.rate, like)
        return distributions.Gamma(shape, rate, validate_args=False)

    def quantile(self, u: Tensor) -> Tensor:
        return gamma_quantile(per_chain(self.shape, u), u) / per_chain(self.rate, u)

    def times(self, factor: float) -> Gamma:
        return replace(self, rate=self.rate / factor)

    @property
    def precision(self) -> float | Tensor:
        return self.shape


@dataclass(frozen=True, kw_only=True)
class InverseGamma(PositivePrior):
    """x > 0 with density proportional to x^(-shape - 1) e^(-scale / x): 1 / x is Gamma."""

    shape: float | Tensor
    scale: float | Tensor

    def law(self, like: Tensor) -> Distribution:
        shape, scale = per_chain(self.shape, like), per_chain(self.scale, like)
        return distributions.InverseGamma(shape, scale, validate_args=False)

    def quantile(self, u: Tensor) -> Tensor:
        return per_chain(self.scale, u) / gamma_quantile(per_chain(self.shape, u), 1 - u)

    def times(self, factor: float) -> InverseGamma:
        return replace(self, scale=self.scale * factor)

    @property
    def precision(self) -> float | Tensor:
        return self.shape


@dataclass(frozen=True, kw_only=True)
class LogNormal(PositivePrior):
    """x > 0 with ln x ~ N(mean, variance)."""

    mean: float | Tensor = 0.0
    variance: float | Tensor = 1.0

    def law(self, like: Tensor) -> Distribution:
        mean, variance = per_chain(self.mean, like), per_chain(self.variance, like)
        return distributions.LogNormal(mean, variance.sqrt(), validate_args=False)

    def times(self, factor: float) -> LogNormal:
        return replace(self, mean=self.mean + math.log(factor))

    @property
    def precision(self) -> float | Tensor:
        return 1 / self.variance


@dataclass(frozen=True)
class Positive(PositivePrior):
    """x > 0, flat and improper: ln alpha(u) = u, the Jacobian alone."""

    def law(self, like: Tensor) -> None:
        return None

    def times(self, factor: float) -> Positive:
        return self

    precision = 0.0


@dataclass(frozen=True)
class Beta(Constrained):
    """low < x < high with density proportional to (x - low)^(a - 1) (high - x)^(b - 1), through
    x = low + (high - low) sigmoid(u). ``a`` = ``b`` = 1 is uniform."""

    a: float | Tensor = 1.0
    b: float | Tensor = 1.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"Beta needs low < high, got {self.low!r} and {self.high!r}")

    @property
    def transform(self) -> transforms.Transform:
        stretch = transforms.AffineTransform(self.low, self.high - self.low)
        return transforms.ComposeTransform([transforms.SigmoidTransform(), stretch])

    def law(self, like: Tensor) -> Distribution:
        beta = distributions.Beta(
            per_chain(self.a, like), per_chain(self.b, like), validate_args=False
        )
        stretch = transforms.AffineTransform(self.low, self.high - self.low)
        return distributions.TransformedDistribution(beta, [stretch], validate_args=False)

    def quantile(self, u: Tensor) -> Tensor:
        share = beta_quantile(per_chain(self.a, u), per_chain(self.b, u), u)
        return self.low + (self.high - self.low) * share

    @property
    def precision(self) -> float | Tensor:
        return self.a * self.b / (self.a + self.b + 1)

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"a": self.a, "b": self.b}


class Increasing(transforms.Transform):
    """x_1 = u_1, x_k = x_(k-1) + e^(u_k) along the last axis: ln |det| = u_2 + ... + u_K."""

    domain = distributions.constraints.real_vector
    codomain = distributions.constraints.real_vector
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., :1], x[..., 1:].exp()], -1).cumsum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return torch.cat([y[..., :1], y.diff(dim=-1).log()], -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x[..., 1:].sum(-1)


@dataclass(frozen=True)
class Ordered(Constrained):
    """x_1 < ... < x_K along the last axis: the order statistics of K draws of N(mean, variance),
    with density K! prod_k N(x_k; mean, variance). Cutpoints, or means of a mixture's components."""

    variance: float | Tensor = 1.0
    mean: float | Tensor = 0.0

    @property
    def transform(self) -> transforms.Transform:
        return Increasing()

    def law(self, like: Tensor) -> Distribution:
        mean, variance = per_chain(self.mean, like), per_chain(self.variance, like)
        return distributions.Normal(mean, variance.sqrt(), validate_args=False)

    def log_density(self, theta: Tensor) -> Tensor:
        orders = theta[0, ..., 0].numel() * math.lgamma(theta.shape[-1] + 1)
        return super().log_density(theta) + orders

    def quantile(self, u: Tensor) -> Tensor:
        return super().quantile(u).sort(-1).values

    @property
    def precision(self) -> float | Tensor:
        """1 / variance: that of x. The logarithms of gaps have about 1 each."""
        return 1 / self.variance
