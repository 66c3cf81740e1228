"""An axis: where a value lies between 0 and 1, and which values deserve a tick."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TypeGuard

from natural_langevin.report.text import finite, short

HUGE = 1e100  # a value beyond this has diverged, whatever it is


@dataclasses.dataclass(frozen=True)
class Axis:
    """Linear or logarithmic, from `low` to `high`."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """Position of a value; 0 is the low end, 1 the high end.

        >>> round(Axis(0.01, 100, log=True).at(1.0), 9)
        0.5
        """
        low, high, value = (
            map(math.log, (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return (value - low) / (high - low)

    def shows(self, value: float | None) -> bool:
        """Whether a value has a position: finite, not huge, positive on a logarithmic axis."""
        return _shown(value, self.log)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions and labels: round numbers, about four of them.

        >>> [label for _, label in Axis(0, 60000).ticks()]
        ['0', '20k', '40k', '60k']
        >>> [label for _, label in Axis(0.004, 3, log=True).ticks()]
        ['0.01', '0.1', '1']
        """
        values = self._decades() if self.log else []
        if len(values) < 3:
            values = self._round()
        return [(self.at(v), short(v)) for v in values]

    def _decades(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        stride = max(1, (last - first) // 6)
        for multiples in ((1,), (1, 3), (1, 2, 5)):
            exponents = range(first, last + 1, stride)
            values = [float(f"{m}e{e}") for e in exponents for m in multiples]
            inside = [v for v in values if self._inside(v)]
            if len(inside) >= 3:
                break
        return inside

    def _round(self) -> list[float]:
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        values = [float(f"{i * step:.10g}") for i in range(first, first + 8)]
        return [v for v in values if self._inside(v)]

    def _inside(self, value: float) -> bool:
        return self.shows(value) and -1e-9 <= self.at(value) <= 1 + 1e-9


def _shown(value: float | None, log: bool) -> TypeGuard[float]:
    return finite(value) and abs(value) < HUGE and (value > HUGE**-1 or not log)


def around(values: Iterable[float | None], *, log: bool = False, margin: float = 0.04) -> Axis:
    """The axis that holds all finite values with a little air; a unit axis when there are none."""
    kept = [v for v in values if _shown(v, log)]
    low, high = (min(kept), max(kept)) if kept else (0.1, 1.0)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    if log:
        air = (high / low) ** margin
        return Axis(low / air, high * air, log=True)
    air = (high - low) * margin
    return Axis(low - air, high + air)
