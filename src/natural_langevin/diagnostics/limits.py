"""Limits of R-hat, effective sample size and distances for chains that agree.

All three are estimates. From few draws, chains that are independent and agree perfectly show an
R-hat well above 1 and an effective sample size well below the number of draws; a fixed limit would
reject them. Independent draws stay within the limits here in all but about one diagnosis in a
hundred, and the limits are never stricter than the usual ones.

R-hat (Gelman et al. 2013, Vehtari et al. 2021) splits C chains of n draws into M = 2C of h = n/2.
With B and W the mean squares between and within them, R^2 = (h - 1)/h + (B/W)/h, and for
independent normal draws B/W follows Fisher's F with (M - 1, M (h - 1)) degrees of freedom:

    R_limit^2 = 1 + (F_q - 1)/h,

q = 1 - 0.0025 / k for the largest of k numbers (half a per cent, since the larger of two such
statistics, of ranks and of folded ranks, is reported). Draws that are correlated count as their
effective number: chains that agree then show an R-hat of up to R_limit of so many draws, and the
effective sample size has its own limit. Values above ``ALWAYS`` are rejected in any case.

The effective sample size has no such law. By simulation (tests/diagnostics/test_limits.py) its
lowest percentile, over k numbers, is above 1 - (3 + 0.6 log10 k) (C n)^(-1/3) of the draws.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from natural_langevin._internal import special

#: Above this R-hat, chains have not mixed, however many draws there are (Vehtari et al. 2021).
RHAT = 1.01
#: Above this they have not mixed, however correlated their draws are.
ALWAYS = 1.1
#: Fewer effective draws than this per chain make R-hat itself unreliable (the same).
ESS = 50.0
#: Chains whose mean predictions differ by more standard deviations than this stand apart.
DISTANCE = 1.0
_LEVEL = 0.0025


def rhat_limit(chains: int, draws: int, numbers: int = 1, ess: float | None = None) -> float:
    """The largest R-hat that ``chains`` of ``draws`` draws each would show if they agreed, over so
    many numbers; of correlated draws, with ``ess`` effective ones over all chains.

    >>> rhat_limit(4, 1000), round(rhat_limit(4, 50), 3), round(rhat_limit(4, 10), 2)
    (1.01, 1.045, 1.27)
    >>> round(rhat_limit(4, 1000, 100), 3), round(rhat_limit(4, 1000, 100, ess=400), 3)
    (1.01, 1.038)
    """
    independent = _largest(chains, float(draws // 2), numbers)
    if ess is None:
        return independent
    effective = _largest(chains, min(float(draws), ess / chains) / 2, numbers)
    return max(independent, min(ALWAYS, effective))


def too_high(
    rhat: np.ndarray, ess: np.ndarray, chains: int, draws: int, numbers: int
) -> np.ndarray:
    """Which R-hat are above ``rhat_limit`` of their effective draws: by the probability of as large
    a one, which is one evaluation for all of them, where a limit is a search for each."""
    high = np.nan_to_num(rhat, nan=1.0) > RHAT
    found = torch.as_tensor(rhat[high]).double()
    halves = (torch.as_tensor(ess[high]).double() / chains).nan_to_num(nan=draws)
    halves = halves.clamp_max(draws) / 2
    both = torch.cat([torch.full_like(found, draws // 2), halves])
    rare = _probability(found.repeat(2), chains, both) < _LEVEL / numbers
    of_all, of_effective = rare.chunk(2)
    apart = of_all & ((found > ALWAYS) | of_effective)
    high[high] = apart.numpy()
    return high


def _probability(rhat: Tensor, chains: int, half: Tensor) -> Tensor:
    """Of at least such an R-hat among chains that agree, with ``half`` draws in each half of one;
    1 where there are fewer than two."""
    between, within = 2 * chains - 1, 2 * chains * (half - 1).clamp_min(1.0)
    f = (1 + half * (rhat.square() - 1)).clamp_min(0.0)
    x = within / (within + between * f)
    tail = special.incomplete_beta(within / 2, torch.full_like(x, between / 2), x)
    return torch.where(half < 2, 1.0, tail)


def _largest(chains: int, half: float, numbers: int) -> float:
    """R_limit of ``half`` draws in each half of a chain."""
    if half < 2:
        return math.inf
    between, within = 2 * chains - 1, 2 * chains * (half - 1)
    # If X is Beta(d2/2, d1/2), (1 - X) / X d2 / d1 follows F(d1, d2): its far tail is X near 0.
    level = torch.tensor(_LEVEL / numbers, dtype=torch.float64)
    x = float(special.beta_quantile(within / 2, between / 2, level))
    f = (1 - x) / x * within / between
    return max(RHAT, math.sqrt(1 + (f - 1) / half))


def ess_limit(chains: int, draws: int, numbers: int = 1, wanted: float | None = None) -> float:
    """Fewer effective draws than this, of the worst of so many numbers, are a sign of correlation,
    or simply too few: ``wanted`` (None: the usual number), or as many as so few draws can show.

    >>> round(ess_limit(4, 1000)), round(ess_limit(4, 50)), round(ess_limit(4, 10))
    (200, 97, 5)
    """
    total, share = chains * draws, 3 + 0.6 * math.log10(numbers)
    shown = max(0.0, total - share * total ** (2 / 3))
    return min(ESS * chains if wanted is None else wanted, shown)


def distance_limit(draws: int) -> float:
    """Means of independent draws differ by sqrt(2 / draws) standard deviations; five times that."""
    return max(DISTANCE, 5 * math.sqrt(2 / draws))
