"""Numbers as a reader sees them, and as a test compares them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

NOTHING = "—"
MINUS, TIMES, TIE = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{NO-BREAK SPACE}"
DATASETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "digits": "Digits"}


def raw(value: Any) -> str:
    """The value as JSON writes it: exact, for `data-value` attributes."""
    return json.dumps(value)


def finite(value: object) -> TypeGuard[float]:
    """Whether this is a number that can be compared and drawn."""
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: float | None, digits: int) -> str:
    """Fixed digits and a real minus sign; a dash where there is nothing.

    >>> number(0.05284, 4), number(-1, 1), number(None, 2), number(float("inf"), 2)
    ('0.0528', '−1.0', '—', '∞')
    """
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    shown = f"{value:,.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"
    return shown.replace("-", MINUS)


def signed(value: float, digits: int) -> str:
    """A difference: always with its sign, except where it rounds to nothing.

    >>> signed(-0.0063, 4), signed(0.02, 2), signed(-1e-9, 2)
    ('−0.0063', '+0.02', '0.00')
    """
    if not round(value, digits):
        return number(0.0, digits)
    return ("+" if value > 0 else "") + number(value, digits)


def seeds(spread: Mapping[str, Any]) -> int:
    """How many runs stand behind a mean."""
    return len(spread.get("values") or [None])


def deviation(spread: Mapping[str, Any]) -> float | None:
    """The standard deviation over seeds, where there are at least two."""
    std = spread.get("std")
    return std if finite(std) and seeds(spread) > 1 else None


def plus_minus(std: float | None, digits: int) -> str:
    """`± 0.0004`; a spread too small for the digits is said to be small, not zero.

    >>> plus_minus(0.00042, 4), plus_minus(3e-6, 4), plus_minus(None, 4)
    ('±\xa00.0004', '±\xa0<0.0001', '')
    """
    if std is None:
        return ""
    least = 10.0**-digits
    small = 0 < std < least / 2
    return f"±{TIE}" + (f"<{number(least, digits)}" if small else number(std, digits))


def spread(value: Mapping[str, Any], digits: int) -> str:
    """`mean ± std`, or the mean alone after a single run; one word to the line breaker."""
    return TIE.join(
        filter(None, (number(value["mean"], digits), plus_minus(deviation(value), digits)))
    )


def percent(value: float | None, digits: int) -> str:
    """`98.40 %`, from a value that is in percent already."""
    return f"{number(value, digits)}{TIE}%"


def short(value: float) -> str:
    """A setting or an axis label, in the fewest characters.

    >>> [short(v) for v in (0.001, 1e-5, 0.1, 1.0, 595.0, 20000, 1500000)]
    ['0.001', '1e-5', '0.1', '1', '595', '20k', '1.5M']
    """
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if limit <= abs(value) < 1e9:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    text = f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e+")
    return text.replace("-", MINUS, 1) if value < 0 else text


def duration(seconds: float | None) -> str:
    """Two units are enough.

    >>> [duration(s) for s in (0.25, 12.34, 59.96, 250, 7980)]
    ['0.25 s', '12.3 s', '60.0 s', '4 min 10 s', '2 h 13 min']
    """
    if not finite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 3600:
        return "{} min {} s".format(*divmod(round(seconds), 60))
    return "{} h {} min".format(*divmod(round(seconds / 60), 60))


def date(created: str) -> str:
    """An ISO time in words, in UTC; anything else as it stands.

    >>> date("2026-11-15T02:00:00Z"), date("yesterday")
    ('15 November 2026, 02:00 UTC', 'yesterday')
    """
    try:
        moment = datetime.fromisoformat(created)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return created
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def dataset(config: Mapping[str, Any]) -> str:
    """The dataset's proper name."""
    name = str(config.get("dataset", "an unnamed dataset"))
    return DATASETS.get(name.lower().replace("-", "_"), name)


def count(amount: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{amount:,} {noun}" + ("" if amount == 1 else "s")
