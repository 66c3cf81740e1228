"""Distributions of torch with the ``cdf`` that torch lacks.

``cdf`` is P(Y <= y), needed for quantiles, intervals and the CRPS of an ensemble.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from natural_langevin._internal.special import incomplete_beta, poisson_cdf


class StudentT(distributions.StudentT):
    """Student's law: location, scale and degrees of freedom."""

    def cdf(self, value: Tensor) -> Tensor:
        z = ((value - self.loc) / self.scale).double()
        df = self.df.double()
        tail = 0.5 * incomplete_beta(df / 2, torch.full_like(df, 0.5), df / (df + z.square()))
        return torch.where(z > 0, 1 - tail, tail)

    @property
    def variance(self) -> Tensor:
        """Infinite up to two degrees of freedom (without torch's assignment by mask)."""
        finite = self.scale.square() * self.df / (self.df - 2)
        return finite.where(self.df > 2, torch.inf)


class Poisson(distributions.Poisson):
    """Counts of a given rate."""

    def cdf(self, value: Tensor) -> Tensor:
        return poisson_cdf(value.double(), self.rate.double())


class NegativeBinomial(distributions.NegativeBinomial):
    """Counts of successes before ``total_count`` failures."""

    def log_prob(self, value: Tensor) -> Tensor:
        """ln Gamma(r + y)/(Gamma(r) r^y y!) + y ln m - (r + y) ln(1 + m/r), with ln(m/r) the logits
        and a first term that is small where r is large (torch subtracts two huge numbers)."""
        r, y = self.total_count, value
        more = _log_rising(r, y) - torch.lgamma(y + 1)
        above = torch.nn.functional.softplus(self.logits)
        return more + y * (self.logits + r.log()) - (r + y) * above

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most y successes is that of a Beta(r, y + 1) below 1 - p."""
        r, y = self.total_count.double(), value.double().floor()
        below = incomplete_beta(r, y.clamp_min(0) + 1, torch.sigmoid(-self.logits.double()))
        return torch.where(y < 0, 0.0, below)


def _log_rising(r: Tensor, y: Tensor) -> Tensor:
    """ln Gamma(r + y) - ln Gamma(r) - y ln r: as it is for a small r, else by Stirling's series,
    whose next term is below 1e-10 from 8 on."""
    small, large = r.clamp_max(8.0), r.clamp_min(8.0)  # each finite, also where it is not taken
    plain = torch.lgamma(small + y) - torch.lgamma(small) - y * small.log()
    rest = _stirling(large + y) - _stirling(large)
    series = (large + y - 0.5) * torch.log1p(y / large) - y + rest
    return torch.where(r < 8, plain, series)


def _stirling(x: Tensor) -> Tensor:
    """ln Gamma(x) - (x - 1/2) ln x + x - ln(2 pi)/2."""
    squared = x.square()
    inner = 1 / 360 - (1 / 1260 - 1 / (1680 * squared)) / squared
    return (1 / 12 - inner / squared) / x


class Levels(distributions.Categorical):
    """Ordered classes."""

    def cdf(self, value: Tensor) -> Tensor:
        cumulative = self.probs.cumsum(-1)
        index = value.long().clamp_min(0).unsqueeze(-1)
        return cumulative.gather(-1, index).squeeze(-1).where(value >= 0, 0.0)


class ZeroOrLogNormal(distributions.Distribution):
    """0 with probability 1 - q, and otherwise exp(z) with z ~ N(loc, scale^2); ``logits`` are those
    of q. ``log_prob`` is ln of a probability at 0, and of a density above."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.nonnegative
    has_rsample = False

    def __init__(self, logits: Tensor, loc: Tensor, scale: Tensor) -> None:
        self.logits, self.loc, self.scale = torch.broadcast_tensors(logits, loc, scale)
        super().__init__(self.loc.shape, validate_args=False)

    @property
    def probs(self) -> Tensor:
        """q, the probability of more than 0."""
        return self.logits.sigmoid()

    @property
    def mean(self) -> Tensor:
        return self.probs * (self.loc + self.scale.square() / 2).exp()

    @property
    def variance(self) -> Tensor:
        second = self.probs * (2 * (self.loc + self.scale.square())).exp()
        return second - self.mean.square()

    def log_prob(self, value: Tensor) -> Tensor:
        there = value > 0
        log_y = torch.where(there, value, 1.0).log()
        z = (log_y - self.loc) / self.scale
        amount = -0.5 * (z.square() + math.log(2 * math.pi)) - self.scale.log() - log_y
        found = torch.where(there, logsigmoid(self.logits) + amount, logsigmoid(-self.logits))
        return torch.where(value < 0, -torch.inf, found)

    def cdf(self, value: Tensor) -> Tensor:
        log_y = torch.where(value > 0, value, 0.0).log()
        below = 1 - self.probs * torch.special.ndtr((self.loc - log_y) / self.scale)
        return torch.where(value < 0, 0.0, below)

    def icdf(self, value: Tensor) -> Tensor:
        above = ((1 - value) / self.probs).clamp_max(1.0)  # P(Y > y | Y > 0)
        return (self.loc - self.scale * torch.special.ndtri(above)).exp()
