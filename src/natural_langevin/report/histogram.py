"""A histogram: how many rows have how much uncertainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from natural_langevin.report import text
from natural_langevin.report.axes import Axis

WIDTH, HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 24, 24, 12, 40


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bin in view-box pixels."""

    x: float
    height: float
    title: str


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Bars on an axis from 0; their heights are linear in the counts."""

    title: str
    x_label: str
    hue: str
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    most: str
    description: str
    bar_width: float
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def histogram(title: str, x_label: str, counts: Sequence[int], high: float, hue: str) -> Histogram:
    """``counts`` of equal bins between 0 and ``high``."""
    inner, room = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP - 8
    step, most = inner / max(1, len(counts)), max([*counts, 1])
    axis = Axis(0.0, high)
    bars = [
        Bar(
            x=round(LEFT + k * step + 0.5, 1),
            height=round(room * count / most, 1),
            title=f"{text.short(high * k / len(counts))} to "
            f"{text.short(high * (k + 1) / len(counts))}: {text.count(count, 'row')}",
        )
        for k, count in enumerate(counts)
        if count
    ]
    return Histogram(
        title=title,
        x_label=x_label,
        hue=hue,
        bars=bars,
        ticks=[(round(LEFT + at * inner, 1), label) for at, label in axis.ticks()],
        most=f"{most:,}",
        description=f"{title} of {text.count(sum(counts), 'row')}: {x_label}, from 0 to "
        f"{text.short(high)}; the fullest of {len(counts)} bins holds {most:,}.",
        bar_width=round(step - 1, 1),
    )
