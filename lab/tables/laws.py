"""Predictive distributions of rivals: mixtures over their networks or trees, in the target's units.

Of numbers and counts every law has ``mean``, ``log_prob(y)`` and ``cdf(y)``, as ``Predictive`` has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

Array = NDArray[Any]
#: Degrees of freedom that a law of residuals is chosen from.
TAILS = (2.0, 3.0, 5.0, 10.0, 1e6)


def averaged(log_terms: Array) -> Array:
    """ln of the mean of exp over the first axis."""
    return special.logsumexp(log_terms, axis=0) - np.log(len(log_terms))


@dataclass
class Amounts:
    """Student's t of y, or of ln y, (member, n); ``zero``: the probability that y is exactly 0,
    where nothing is below it."""

    centre: Array
    scale: Array
    tails: float = TAILS[-1]
    log: bool = False
    zero: Array | None = None
    given_mean: Array | None = None
    most: float = np.inf

    @property
    def mean(self) -> Array:
        """E[y]; of logarithms with a normal law, where nothing better is given, and then at most
        ``most``."""
        if self.given_mean is not None:
            return self.given_mean
        values = self.centre
        if self.log:
            values = np.exp(
                np.minimum(self.centre + 0.5 * np.square(self.scale), np.log(self.most))
            )
        return (values if self.zero is None else (1 - self.zero) * values).mean(0)

    def log_prob(self, y: Array) -> Array:
        """ln p(y); at 0, where that is a part of its own, ln P(y = 0)."""
        z, jacobian = self._inner(y)
        terms = stats.t.logpdf(z, self.tails) - np.log(self.scale) - jacobian
        if self.zero is not None:
            with np.errstate(divide="ignore"):
                terms = np.where(y == 0, np.log(self.zero), np.log1p(-self.zero) + terms)
        return averaged(np.broadcast_to(terms, np.broadcast_shapes(terms.shape, (1, len(y)))))

    def cdf(self, y: Array) -> Array:
        """P(Y <= y)."""
        below = stats.t.cdf(self._inner(y)[0], self.tails)
        if self.log:
            below = np.where(y > 0, below, 0.0)
        if self.zero is not None:
            below = np.where(y < 0, 0.0, self.zero + (1 - self.zero) * below)
        return np.atleast_2d(below).mean(0)

    def _inner(self, y: Array) -> tuple[Array, Array]:
        if not self.log:
            return (y - self.centre) / self.scale, np.zeros(len(y))
        u = np.log(np.where(y > 0, y, 1.0))
        return (u - self.centre) / self.scale, u


@dataclass
class Counts:
    """Negative binomial of mean ``rate`` and variance rate + rate^2 / size, (member, n)."""

    rate: Array
    size: Array
    given_mean: Array | None = None

    @property
    def mean(self) -> Array:
        """E[y]."""
        return self.rate.mean(0) if self.given_mean is None else self.given_mean

    def log_prob(self, y: Array) -> Array:
        """ln P(y)."""
        size, p = self._law()
        return averaged(stats.nbinom.logpmf(y, size, p))

    def cdf(self, y: Array) -> Array:
        """P(Y <= y)."""
        size, p = self._law()
        return stats.nbinom.cdf(y, size, p).mean(0)

    def _law(self) -> tuple[Array, Array]:
        rate = np.maximum(self.rate, 1e-6)
        size = np.broadcast_to(self.size, rate.shape)
        return size, size / (size + rate)


def of_residuals(centre: Array, y: Array, *, log: bool) -> Amounts:
    """The t law that held-out residuals are likeliest under; ``centre`` is on its scale."""
    residuals = (np.log(y) if log else y) - centre
    start = np.log(np.median(np.abs(residuals)) + 1e-9 * (np.abs(y).max() + 1))

    def at(tails: float) -> tuple[float, float]:
        def nll(scale: float) -> float:
            return float(-(stats.t.logpdf(residuals / np.exp(scale), tails) - scale).mean())

        found = optimize.minimize_scalar(nll, bracket=(start, start + 1))
        return float(found.fun), float(np.exp(found.x))

    tails = min(TAILS, key=lambda t: at(t)[0])
    return Amounts(centre[None], np.full((1, 1), at(tails)[1]), tails, log)


def of_counts(rate: Array, y: Array) -> Counts:
    """The size that held-out counts are likeliest under."""

    def nll(size: float) -> float:
        return float(-Counts(rate[None], np.full((1, 1), np.exp(size))).log_prob(y).mean())

    found = optimize.minimize_scalar(nll, bounds=(-5, 10), method="bounded")
    return Counts(rate[None], np.full((1, 1), np.exp(found.x)))
