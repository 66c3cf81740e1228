"""Priors: the log-density ln alpha(theta) of a parameter tensor and its exact gradient.

Every function works on one parameter tensor with a leading chain axis, (chain, *shape), and
treats chains independently. The 1/N that puts the prior on the scale of the mean loss is applied
by the dynamics, never here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import per_chain


def _check_number_or_vector(name: str, value: float | Tensor, *, positive: bool) -> None:
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if tensor.ndim > 1:
        raise ValueError(
            f"{name} must be a number or one value per chain, got shape {tuple(tensor.shape)}"
        )
    if not torch.isfinite(tensor).all() or (positive and not (tensor > 0).all()):
        kind = "positive and finite" if positive else "finite"
        raise ValueError(f"{name} must be {kind}, got {value!r}")


class Prior:
    """One parameter tensor's prior. Subclasses are final."""

    def log_density(self, theta: Tensor) -> Tensor:
        """ln alpha(theta), up to a constant for improper priors: shape (chain,)."""
        raise NotImplementedError

    def gradient(self, theta: Tensor) -> Tensor:
        """d ln alpha / d theta: the shape of ``theta``."""
        raise NotImplementedError

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A draw for every chain from the streams ``key`` (chain, 2): shape (chain, *shape)."""
        raise NotImplementedError

    @property
    def precision(self) -> float | Tensor:
        """The prior's typical curvature per weight, a number or (chain,): what the damping goes by.

        -d^2 ln alpha / d theta^2 where that is constant; 0 where the prior says nothing."""
        return 0.0

    def chain_values(self) -> dict[str, float | Tensor]:
        """The settings that may hold one value per chain, by name; for validation."""
        return {}


@dataclass(frozen=True)
class Gaussian(Prior):
    """N(mean, variance) on every component independently.

    ln alpha = -(theta - mean)^2 / (2 variance) - ln(2 pi variance) / 2, summed over components.
    ``variance`` is a variance, not a standard deviation.

    >>> Gaussian(0.1).gradient(torch.tensor([[0.2]]))
    tensor([[-2.]])
    """

    variance: float | Tensor = 0.1
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        for name in ("variance", "mean"):
            if not isinstance(value := getattr(self, name), (int, float, Tensor)):
                object.__setattr__(self, name, torch.as_tensor(value))  # a list or an array
        _check_number_or_vector("variance", self.variance, positive=True)
        _check_number_or_vector("mean", self.mean, positive=False)

    def log_density(self, theta: Tensor) -> Tensor:
        variance, mean = per_chain(self.variance, theta), per_chain(self.mean, theta)
        terms = (theta - mean).square() / variance + torch.log(2 * math.pi * variance)
        return -0.5 * terms.reshape(len(theta), -1).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        return (per_chain(self.mean, theta) - theta) / per_chain(self.variance, theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        z = random.normal(key, math.prod(shape)).to(dtype).reshape(-1, *shape)
        return per_chain(self.mean, z) + per_chain(self.variance, z).sqrt() * z

    @property
    def precision(self) -> float | Tensor:
        """1 / variance."""
        return 1 / self.variance

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"variance": self.variance, "mean": self.mean}


@dataclass(frozen=True, kw_only=True)
class NormalInverseGamma(Prior):
    """Gaussian with unknown variance, integrated out: one variance per parameter tensor.

    variance ~ InverseGamma(alpha, beta) and theta | variance ~ N(mean, variance Id) over the d
    components of the tensor give the multivariate Student-t marginal

        ln alpha(theta) = -(alpha + d/2) ln(beta + S/2) + constant,   S = |theta - mean|^2.

    Keyword-only, so that alpha and beta cannot be swapped by position.

    >>> NormalInverseGamma(alpha=0.5, beta=0.5).gradient(torch.tensor([[1.0]]))
    tensor([[-1.]])
    """

    alpha: float = 0.5
    beta: float = 0.5
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive and finite, got {value!r}")
        _check_number_or_vector("mean", self.mean, positive=False)

    def _centred(self, theta: Tensor) -> Tensor:
        return theta - per_chain(self.mean, theta)

    def _scale(self, theta: Tensor) -> Tensor:
        """beta + S/2: shape (chain, 1, ..., 1)."""
        half = self._centred(theta).square().reshape(len(theta), -1).sum(1) / 2
        return (self.beta + half).reshape(-1, *(1,) * (theta.ndim - 1))

    def log_density(self, theta: Tensor) -> Tensor:
        a, b, d = self.alpha, self.beta, theta[0].numel()
        constant = (
            math.lgamma(a + d / 2)
            - math.lgamma(a)
            + a * math.log(b)
            - d / 2 * math.log(2 * math.pi)
        )
        return constant - (a + d / 2) * torch.log(self._scale(theta)).flatten()

    def gradient(self, theta: Tensor) -> Tensor:
        d = theta[0].numel()
        return -(self.alpha + d / 2) * self._centred(theta) / self._scale(theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        # One extra uniform per chain becomes the precision through the gamma quantile function.
        z = random.normal(key, count).to(dtype).reshape(-1, *shape)
        u = random.uniform(key ^ 0x5BD1E995, 1)[:, 0].to(torch.float64)
        precision = _gamma_quantile(self.alpha, u) / self.beta
        return per_chain(self.mean, z) + z * per_chain(precision.rsqrt(), z)

    @property
    def precision(self) -> float | Tensor:
        """The mean of 1 / variance under the prior, alpha / beta; the curvature that the weights
        themselves imply, (alpha + d/2) / (beta + S/2), moves around it with them."""
        return self.alpha / self.beta

    def chain_values(self) -> dict[str, float | Tensor]:
        return {"mean": self.mean}


@dataclass(frozen=True)
class Flat(Prior):
    """No prior: ln alpha = 0 everywhere (improper, so it cannot be sampled)."""

    def log_density(self, theta: Tensor) -> Tensor:
        return theta.new_zeros(theta.shape[0])

    def gradient(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def sample(self, key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        raise ValueError(
            'a Flat prior is improper and cannot be sampled: use init="model" or init="fan_in"'
        )


PriorLike = Prior | Mapping[str, Prior]


def resolve(
    prior: PriorLike,
    names: Iterable[str],
    chains: int,
    *,
    device: torch.device | str = "cpu",
) -> dict[str, Prior]:
    """The prior of every parameter name. Patterns are fnmatch patterns; the first match wins.

    Per-chain values move to ``device`` here, once.

    >>> rules = {"*.bias": Gaussian(1.0), "*": Flat()}
    >>> resolve(rules, ["0.weight", "0.bias"], chains=1)
    {'0.weight': Flat(), '0.bias': Gaussian(variance=1.0, mean=0.0)}
    """
    names = list(names)
    patterns = dict(prior) if isinstance(prior, Mapping) else {"*": prior}
    for pattern, one in patterns.items():
        if not isinstance(one, Prior):
            raise TypeError(
                f"prior for {pattern!r} must be a Prior, got {one!r}: "
                "give priors.Gaussian(variance=0.1), for example"
            )
        _check_chains(one, chains)
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"prior pattern {pattern!r} matches no parameter; the names are {names}"
            )
        on_device = {
            k: v.to(device) for k, v in one.chain_values().items() if isinstance(v, Tensor)
        }
        patterns[pattern] = dataclasses.replace(one, **on_device) if on_device else one  # type: ignore[type-var]
    resolved = {}
    for name in names:
        match = next((p for pattern, p in patterns.items() if fnmatchcase(name, pattern)), None)
        if match is None:
            raise ValueError(
                f"no prior pattern matches parameter {name!r} (patterns: {list(patterns)}); "
                'add a last pattern "*"'
            )
        resolved[name] = match
    return resolved


def of_chains(prior: Mapping[str, Prior], chains: Tensor) -> dict[str, Prior]:
    """A resolved prior with the values of these chains only."""

    def pick(one: Prior) -> Prior:
        values = {k: v for k, v in one.chain_values().items() if isinstance(v, Tensor) and v.ndim}
        chosen = {k: v[chains.to(v.device)] for k, v in values.items()}
        return dataclasses.replace(one, **chosen) if chosen else one  # type: ignore[type-var]

    return {name: pick(one) for name, one in prior.items()}


def _check_chains(prior: Prior, chains: int) -> None:
    for name, value in prior.chain_values().items():
        if isinstance(value, Tensor) and value.ndim and value.shape[0] != chains:
            raise ValueError(
                f"prior {name} has {value.shape[0]} values for {chains} chains: "
                "give a number or one value per chain"
            )


def _gamma_quantile(shape: float, u: Tensor) -> Tensor:
    """Quantile of Gamma(shape, rate 1): bisection on the incomplete gamma function."""
    a = torch.full_like(u, shape)
    low, high = torch.full_like(u, -80.0), torch.full_like(u, math.log(shape + 40.0) + 5.0)
    for _ in range(80):  # on the logarithm of the quantile, whose range is huge for small shapes
        middle = (low + high) / 2
        below = torch.special.gammainc(a, middle.exp()) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return ((low + high) / 2).exp().clamp_min(1e-12)
