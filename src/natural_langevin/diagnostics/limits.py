"""What R-hat, effective sample size and distances look like when nothing is wrong.

All three are estimates. From few draws, chains that are independent and agree perfectly show an
R-hat well above 1 and an effective sample size well below the number of draws; a limit that does
not know how many there are calls them faulty. The limits here are what independent draws stay
within in all but about one diagnosis in a hundred, and never stricter than the usual ones.

R-hat (Gelman et al. 2013, Vehtari et al. 2021) splits C chains of n draws into M = 2C of h = n/2.
With B and W the mean squares between and within them, R^2 = (h - 1)/h + (B/W)/h, and for
independent normal draws B/W follows Fisher's F with (M - 1, M (h - 1)) degrees of freedom:

    R_limit^2 = 1 + (F_q - 1)/h,

q = 0.9975, since the larger of two such statistics (of ranks, and of folded ranks) is reported.

The effective sample size has no such law. By simulation (tests/diagnostics/test_limits.py) its
lowest percentile is above 1 - 3 (C n)^(-1/3) of the draws, from 2 x 10 to 16 x 50 and 4 x 1000.
"""

from __future__ import annotations

import math

#: Above this R-hat, chains have not mixed, however many draws there are (Vehtari et al. 2021).
RHAT = 1.01
#: Fewer effective draws than this per chain make R-hat itself unreliable (the same).
ESS = 50.0
#: Chains whose mean predictions differ by more standard deviations than this stand apart.
DISTANCE = 1.0
_QUANTILE = 0.9975


def rhat_limit(chains: int, draws: int) -> float:
    """The largest R-hat that ``chains`` of ``draws`` independent draws each would show.

    >>> rhat_limit(4, 1000), round(rhat_limit(4, 50), 3), round(rhat_limit(4, 10), 2)
    (1.01, 1.045, 1.27)
    """
    from scipy import stats  # which ArviZ needs too

    half, split = draws // 2, 2 * chains
    if half < 2:
        return math.inf
    f = float(stats.f.ppf(_QUANTILE, split - 1, split * (half - 1)))
    return max(RHAT, math.sqrt(1 + (f - 1) / half))


def ess_limit(chains: int, draws: int) -> float:
    """Fewer effective draws than this are a sign of correlation, or simply too few.

    >>> round(ess_limit(4, 1000)), round(ess_limit(4, 50)), round(ess_limit(4, 10))
    (200, 97, 5)
    """
    total = chains * draws
    return min(ESS * chains, max(0.0, total - 3 * total ** (2 / 3)))


def distance_limit(draws: int) -> float:
    """Means of independent draws differ by sqrt(2 / draws) standard deviations; five times that."""
    return max(DISTANCE, 5 * math.sqrt(2 / draws))
