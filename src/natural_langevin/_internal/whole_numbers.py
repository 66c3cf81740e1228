"""Whole numbers where they enter."""

from __future__ import annotations

import numbers
from typing import Any


def whole_number(name: str, value: Any) -> int:
    """``value`` as an int. Numpy's integers are fine; bools, floats and strings are mistakes."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}: convert it with int(...)")
    if not -(1 << 63) < int(value) < 1 << 63:
        raise ValueError(f"{name} must be an integer below 2^63, got {int(value):.3e}")
    return int(value)
