"""Whole numbers where they enter."""

from __future__ import annotations

import numbers
from typing import Any


def whole_number(name: str, value: Any) -> int:
    """``value`` as an int. Numpy's integers are fine; bools, floats and strings are mistakes."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}: convert it with int(...)")
    return int(value)
