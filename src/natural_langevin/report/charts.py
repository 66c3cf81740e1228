"""Lines: training curves, and the score of an ensemble against its size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin.report import text
from natural_langevin.report.axes import Axis, around
from natural_langevin.report.palette import HUES

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 40  # margins for labels
POINTS = 120  # a longer series is drawn as means of equal blocks

Tick = tuple[float, str]
Values = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Line:
    """One method's path through the plot, and the last value for the legend."""

    label: str
    hue: str
    path: str
    last: str


@dataclasses.dataclass(frozen=True)
class Chart:
    """A plot area with ticks in pixels of the view box, ready for the template."""

    title: str
    x_label: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    description: str
    block: int  # how many recorded values one drawn point is the mean of, at most
    log: bool = True
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def curves(items: Sequence[Mapping[str, Any]], hues: Mapping[str, str]) -> list[Chart]:
    """Minibatch loss and, where it was measured, test NLL against updates."""
    measured = [item for item in items if item.get("test_nll")]
    charts = []
    for title, key, part in (
        ("Training loss per minibatch", "loss", items),
        ("Test NLL along the chain", "test_nll", measured),
    ):
        if part:
            lines = [(i["label"], hues[i["method"]], i["step"], i[key]) for i in part]
            charts.append(_chart(title, "updates", lines, log_x=False))
    return charts


def sizes(items: Sequence[Mapping[str, Any]], hues: Mapping[str, str]) -> Chart:
    """Test NLL of the average of the first k draws, against k."""
    lines = [(i["label"], hues[i["method"]], i["size"], i["nll"]) for i in items]
    return _chart("Test NLL of the ensemble", "networks in the ensemble", lines, log_x=True)


def trace(step: Sequence[float], losses: Sequence[Values]) -> Chart:
    """Every chain's minibatch loss; on a linear scale where one is negative, as densities are."""
    lines = [(f"chain {k}", f"hue{(k + 5) % HUES}", step, ys) for k, ys in enumerate(losses)]
    positive = all(y > 0 for ys in losses for y in ys if y is not None)
    return _chart("Training loss per minibatch", "updates", lines, log_x=False, log_y=positive)


def _chart(
    title: str,
    x_label: str,
    lines: Sequence[tuple[str, str, Sequence[float], Values]],
    *,
    log_x: bool,
    log_y: bool = True,
) -> Chart:
    measured = [(label, hue, *_measured(xs, ys)) for label, hue, xs, ys in lines]
    block = max(1, *(math.ceil(len(xs) / POINTS) for *_, xs, _ in measured))
    thinned = [(label, hue, *thin(xs, ys, block)) for label, hue, xs, ys in measured]
    x = around((v for *_, xs, _ in thinned for v in xs), log=log_x, margin=0.02)
    y = around((v for *_, ys in thinned for v in ys), log=log_y)
    drawn = [
        Line(label, hue, _path(xs, ys, x, y), text.number(ys[-1] if ys else None, 4))
        for label, hue, xs, ys in thinned
    ]
    ends = ", ".join(f"{line.label} ends at {line.last}" for line in drawn)
    return Chart(
        title=title,
        x_label=x_label,
        x_ticks=[(_x(at), label) for at, label in x.ticks()],
        y_ticks=[(_y(at), label) for at, label in y.ticks()],
        lines=drawn,
        description=f"{title} against {x_label}{', logarithmic scale' * log_y}: {ends}.",
        block=block,
        log=log_y,
    )


def _measured(xs: Sequence[float], ys: Values) -> tuple[list[float], list[float]]:
    """Null means not measured: the line passes over it."""
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def thin(xs: list[float], ys: list[float], block: int) -> tuple[list[float], list[float]]:
    """Means over blocks of consecutive points; the first block may be shorter, the last is whole.

    >>> thin([1, 2, 3, 4, 5], [9.0, 2.0, 4.0, 5.0, 7.0], 2)
    ([1.0, 2.5, 4.5], [9.0, 3.0, 6.0])
    """
    ends = range(len(xs) % block or block, len(xs) + 1, block)
    blocks = [slice(max(0, end - block), end) for end in ends]
    return [sum(xs[b]) / len(xs[b]) for b in blocks], [sum(ys[b]) / len(ys[b]) for b in blocks]


def _path(xs: list[float], ys: list[float], x: Axis, y: Axis) -> str:
    """NaN or infinity (diverged) breaks the line, and so does what a logarithm cannot show."""
    steps: list[str] = []
    pen = "M"
    for xv, yv in zip(xs, ys, strict=True):
        if not (x.shows(xv) and y.shows(yv)):
            pen = "M"
            continue
        # A round line cap turns "h0" into a dot, so that a lone point is seen too.
        steps.append(f"{pen}{_x(x.at(xv)):.1f} {_y(y.at(yv)):.1f}" + ("h0" if pen == "M" else ""))
        pen = "L"
    return "".join(steps)


def _x(at: float) -> float:
    return round(LEFT + at * (WIDTH - RIGHT - LEFT), 1)


def _y(at: float) -> float:
    return round(HEIGHT - BOTTOM - at * (HEIGHT - BOTTOM - TOP), 1)
