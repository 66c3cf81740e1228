"""A measured number with its error."""

from __future__ import annotations

import math
from typing import NamedTuple

#: A reading is called wrong beyond this many standard errors ...
SIGMAS = 5.0
#: ... and beyond this fraction, which allows for rounding where the error is tiny.
SLACK = 0.01


class Reading(NamedTuple):
    """value ± error (one standard error)."""

    value: float
    error: float

    @property
    def known(self) -> bool:
        """Whether this is a reading at all: its error is finite and smaller than itself."""
        return math.isfinite(self.value) and 0 <= self.error < abs(self.value)

    def differs_from(self, expected: float) -> bool:
        """Beyond ``SIGMAS`` errors and ``SLACK``, on a logarithmic scale for positive values.

        Variances read from few numbers are skewed; their logarithms are much less so."""
        if self.value > 0 and expected > 0:
            gap, error = abs(math.log(self.value / expected)), self.error / self.value
            return gap > SIGMAS * error + SLACK
        return abs(self.value - expected) > SIGMAS * self.error + SLACK * abs(expected)

    def __str__(self) -> str:
        digits = max(0, min(6, 1 - math.floor(math.log10(self.error)))) if self.error > 0 else 3
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"
