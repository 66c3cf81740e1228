"""Reliability diagrams: how often a prediction of confidence c is right, and how many there are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.cli.pages import svg, text
from natural_langevin.cli.pages.charts import Chart

SIDE, STRIP = 176, 48  # the square plot, and the counts below it


def diagrams(items: Sequence[Mapping[str, Any]], hues: Mapping[str, str]) -> list[Chart]:
    """One small diagram per method, all on the same axes."""
    return [reliability(item, item["label"], hues[item["method"]], "image") for item in items]


def reliability(found: Mapping[str, Any], label: str, hue: str, unit: str = "row") -> Chart:
    """``found``: confidence, accuracy and count of every bin. Bars grow with ln(1 + count)."""
    points = [
        (c, a, n)
        for c, a, n in zip(found["confidence"], found["accuracy"], found["count"], strict=True)
        if n > 0 and text.finite(c) and text.finite(a)
    ]
    total, most = sum(n for *_, n in points), max((n for *_, n in points), default=0)
    gap = sum(n * abs(a - c) for c, a, n in points) / total if total else None
    return _diagram(
        [(c, a, n, math.log1p(n) / math.log1p(most)) for c, a, n in points],
        hue,
        0.7 / max(15, len(found["count"])),
        title=label,
        description=f"Reliability of {label}: {total:,} predictions in {len(points)} occupied bins;"
        f" mean gap between confidence and accuracy {text.number(gap, 4)}.",
        x_label=f"confidence, {total:,} {unit}s",
        y_label="accuracy",
    )


def coverage(found: Mapping[str, Any], label: str, hue: str, rows: int) -> Chart:
    """How often central intervals of probability c hold the truth: a diagonal too, without bars."""
    points = zip(found["level"], found["observed"], strict=True)
    return _diagram(
        [(c, a, rows, 0.0) for c, a in points],
        hue,
        0.0,
        title=label,
        description=f"Coverage of {label}: intervals of nine probabilities, {rows:,} rows.",
        x_label=f"probability, {rows:,} rows",
        y_label="rows inside",
    )


def _diagram(
    points: Sequence[tuple[float, float, float, float]], hue: str, bar: float, **words: Any
) -> Chart:
    """Points are confidence, accuracy, count and the height of the bar, from 0 to 1."""
    left, width, height = 42, 42 + SIDE + 10, 8 + SIDE + STRIP + 36
    axes = svg.new_axes(width, height, left=left, right=10, top=8, bottom=36)
    floor = -STRIP / SIDE  # the bars stand on it, below the plot, and leave a little air
    svg.mark(axes.plot([0, 1], [0, 1]), "diagonal")
    cells = []
    for c, a, n, share in points:
        numbers = text.number(c, 3), text.number(a, 3), f"{n:,}"
        title = "confidence {}, accuracy {}, count {}".format(*numbers)
        svg.mark(axes.plot([c, c], [a, c]), f"gap {hue}", title)
        svg.mark(axes.plot([c, c], [a, a]), f"dot {hue}", title)
        if share:
            bars = axes.bar(c, 0.83 * -floor * share, bottom=floor, width=bar)
            svg.mark(bars, f"bar {hue}", title)
        cells.append(numbers)
    axes.set(xlim=(0, 1), ylim=(floor, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.grid(axis="y")
    drawing = svg.inline(axes)
    return Chart(drawing=drawing, width=width, height=height, left=left, cells=cells, **words)
