"""Distributions of torch with the cumulative probabilities that torch leaves out.

``cdf`` is P(Y <= y), which quantiles, intervals and the CRPS of an ensemble are made of.
"""

from __future__ import annotations

import torch
from torch import Tensor, distributions

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

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of at most y successes is that of a Beta(r, y + 1) below 1 - p."""
        r, y = self.total_count.double(), value.double().floor()
        below = incomplete_beta(r, y.clamp_min(0) + 1, torch.sigmoid(-self.logits.double()))
        return torch.where(y < 0, 0.0, below)


class Levels(distributions.Categorical):
    """Classes with an order."""

    def cdf(self, value: Tensor) -> Tensor:
        cumulative = self.probs.cumsum(-1)
        index = value.long().clamp_min(0).unsqueeze(-1)
        return cumulative.gather(-1, index).squeeze(-1).where(value >= 0, 0.0)
