"""Reliability diagrams: how often a prediction of confidence c is right, and how many there are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.report import text

SIZE, LEFT, TOP = 176, 42, 8  # the square plot
STRIP, GAP = 40, 8  # the histogram of counts below it


@dataclasses.dataclass(frozen=True)
class Bin:
    """One confidence bin in view-box pixels; the bar grows with the logarithm of its count."""

    x: float
    y: float
    diagonal: float
    bar: float
    title: str
    cells: tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Diagram:
    """One method's occupied bins and the frame they stand in."""

    label: str
    hue: str
    bins: list[Bin]
    total: str
    description: str
    bar_width: float
    x_label: str = "confidence"
    y_label: str = "accuracy"
    unit: str = "images"
    width: int = LEFT + SIZE + 10
    height: int = TOP + SIZE + GAP + STRIP + 36
    left: int = LEFT
    right: int = LEFT + SIZE
    top: int = TOP
    bottom: int = TOP + SIZE
    floor: int = TOP + SIZE + GAP + STRIP
    ticks: tuple[tuple[float, str], ...] = tuple((v, f"{v:g}") for v in (0.0, 0.5, 1.0))


def diagrams(items: Sequence[Mapping[str, Any]], hues: Mapping[str, str]) -> list[Diagram]:
    """One small diagram per method, all on the same axes."""
    return [_diagram(item, hues[item["method"]]) for item in items]


def of_rows(found: Mapping[str, Any], label: str, hue: str) -> Diagram:
    """The same for the rows of a table."""
    diagram = _diagram({"label": label, **found}, hue)
    return dataclasses.replace(diagram, unit="rows")


def coverage(found: Mapping[str, Any], label: str, hue: str, rows: int) -> Diagram:
    """How often central intervals of probability c hold the truth: a diagonal too, without bars."""
    points = {"confidence": found["level"], "accuracy": found["observed"]}
    diagram = _diagram({"label": label, **points, "count": [rows] * len(found["level"])}, hue)
    return dataclasses.replace(
        diagram,
        bins=[dataclasses.replace(point, bar=0.0) for point in diagram.bins],
        total=f"{rows:,}",
        description=f"Coverage of {label}: intervals of nine probabilities, {rows:,} rows.",
        x_label="probability",
        y_label="rows inside",
        unit="rows",
    )


def _diagram(item: Mapping[str, Any], hue: str) -> Diagram:
    points = [
        (c, a, n)
        for c, a, n in zip(item["confidence"], item["accuracy"], item["count"], strict=True)
        if n > 0 and text.finite(c) and text.finite(a)
    ]
    total, most = sum(n for *_, n in points), max((n for *_, n in points), default=0)
    gap = sum(n * abs(a - c) for c, a, n in points) / total if total else None
    return Diagram(
        label=item["label"],
        hue=hue,
        bins=[_bin(c, a, n, most) for c, a, n in points],
        total=f"{total:,}",
        description=(
            f"Reliability of {item['label']}: {total:,} predictions in {len(points)} occupied bins;"
            f" mean gap between confidence and accuracy {text.number(gap, 4)}."
        ),
        bar_width=round(0.7 * SIZE / max(15, len(item["count"])), 1),
    )


def _bin(confidence: float, accuracy: float, count: float, most: float) -> Bin:
    words = text.number(confidence, 3), text.number(accuracy, 3), f"{count:,}"
    return Bin(
        x=round(LEFT + confidence * SIZE, 1),
        y=round(TOP + (1 - accuracy) * SIZE, 1),
        diagonal=round(TOP + (1 - confidence) * SIZE, 1),
        bar=round(STRIP * math.log1p(count) / math.log1p(most), 1),
        title="confidence {}, accuracy {}, count {}".format(*words),
        cells=words,
    )
