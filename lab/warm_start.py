"""A step size that falls at first, or rises, and stays where it has come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WarmStart:
    """Falls linearly from ``value`` times ``factor`` to ``value`` over ``steps`` steps.

    With ``rise``, the first ``rise`` steps grow from near 0: a metric estimated from one or two
    small minibatches may move a chain so far that it does not return.

    >>> eta = WarmStart(0.1, factor=3.0, steps=10, rise=5)
    >>> round(eta(0), 3), round(eta(4), 3), round(eta(5), 3), eta(10)
    (0.06, 0.22, 0.2, 0.1)
    """

    value: float
    factor: float
    steps: int
    rise: int = 0

    def __call__(self, step: int) -> float:
        left = max(0.0, 1 - step / self.steps) if self.steps else 0.0
        grown = min(1.0, (step + 1) / self.rise) if self.rise else 1.0
        return self.value * ((1 + (self.factor - 1) * left) * grown)
