"""Charts of a page: lines along a run or over ensemble sizes, histograms, reliability diagrams."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from natural_langevin.cli.pages import svg, text

#: One colour per method, the same in every chart; the colours themselves are CSS.
HUES = 12  # .hue0 to .hue11 in style.css
KNOWN = ("sgd", "dropout", "euclidean", "rmsprop", "dop", "qdop")


def hues(methods: Iterable[str]) -> Mapping[str, str]:
    """CSS class of each method: the paper's six have theirs, others take what follows, in order.

    >>> hues(["qdop", "full", "sgd", "full"])
    {'qdop': 'hue5', 'full': 'hue6', 'sgd': 'hue0'}
    """
    chosen: dict[str, str] = {}
    free = len(KNOWN)
    for method in methods:
        if method in chosen:
            continue
        if method in KNOWN:
            index = KNOWN.index(method)
        else:
            index, free = free % HUES, free + 1
        chosen[method] = f"hue{index}"
    return chosen


POINTS = 120  # a longer series is drawn as means of equal blocks
HUGE = 1e100  # a value beyond this has diverged, whatever it is

Values = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Chart:
    """What the template shows of a figure: its words, its size and what matplotlib drew."""

    title: str
    description: str
    drawing: str
    width: int
    height: int
    left: int  # where the plot begins
    x_label: str
    y_label: str = ""
    legend: Sequence[tuple[str, str, str]] = ()  # label, CSS class, last value
    cells: Sequence[tuple[str, ...]] = ()  # the numbers behind it, row by row
    block: int = 1  # how many recorded values one drawn point is the mean of, at most
    log: bool = False


def curves(items: Sequence[Mapping[str, Any]], hues: Mapping[str, str]) -> Chart:
    """Minibatch loss against updates."""
    lines = [(i["label"], hues[i["method"]], i["step"], i["loss"]) for i in items]
    return _lines("Training loss per minibatch", "updates", lines, log_x=False)


def sizes(items: Sequence[Mapping[str, Any]], hues: Mapping[str, str]) -> Chart:
    """Test NLL of the average of the first k draws, against k."""
    lines = [(i["label"], hues[i["method"]], i["size"], i["nll"]) for i in items]
    return _lines("Test NLL of the ensemble", "networks in the ensemble", lines, log_x=True)


def trace(step: Sequence[float], losses: Sequence[Values]) -> Chart:
    """Every chain's minibatch loss; on a linear scale where one is negative, as densities are."""
    lines = [(f"chain {k}", f"hue{(k + 5) % HUES}", step, ys) for k, ys in enumerate(losses)]
    positive = all(y > 0 for ys in losses for y in ys if y is not None)
    return _lines("Training loss per minibatch", "updates", lines, log_x=False, log_y=positive)


def _lines(
    title: str,
    x_label: str,
    lines: Sequence[tuple[str, str, Sequence[float], Values]],
    *,
    log_x: bool,
    log_y: bool = True,
) -> Chart:
    width, height = 420, 280
    axes = svg.new_axes(width, height, left=44, right=10, top=10, bottom=40)
    measured = [(label, hue, *_measured(xs, ys)) for label, hue, xs, ys in lines]
    block = max(1, *(math.ceil(len(xs) / POINTS) for *_, xs, _ in measured))
    legend = []
    for label, hue, xs, ys in measured:
        xs, ys = thin(xs, ys, block)
        legend.append((label, hue, text.number(ys[-1] if ys else None, 4)))
        svg.mark(axes.plot(*drawable(xs, ys, log_x, log_y)), f"line {hue}")
    axes.margins(x=0.02, y=0.04)
    for axis, log in ((axes.xaxis, log_x), (axes.yaxis, log_y)):
        if log:
            svg.log_scale(axis)
    axes.grid(axis="y")
    ends = ", ".join(f"{label} ends at {last}" for label, _, last in legend)
    return Chart(
        title=title,
        description=f"{title} against {x_label}{', logarithmic scale' * log_y}: {ends}.",
        drawing=svg.inline(axes),
        width=width,
        height=height,
        left=44,
        x_label=x_label,
        legend=legend,
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


def drawable(
    xs: list[float], ys: list[float], log_x: bool, log_y: bool
) -> tuple[list[float], list[float]]:
    """What has diverged, or has no logarithm, becomes NaN and breaks the line. A point at which a
    line begins comes twice: with a round line cap it is a dot, so that a lone point is seen too.

    >>> drawable([1, 2, 3], [5.0, -1.0, 4.0], False, True)
    ([1, 1, nan, 3, 3], [5.0, 5.0, nan, 4.0, 4.0])
    """

    def shown(value: float, log: bool) -> bool:
        return text.finite(value) and abs(value) < HUGE and (value > 1 / HUGE or not log)

    points: list[tuple[float, float]] = []
    for x, y in zip(xs, ys, strict=True):
        here = (x, y) if shown(x, log_x) and shown(y, log_y) else (math.nan, math.nan)
        begins = not points or math.isnan(points[-1][0])
        points += [here] * (2 if begins and here[0] == x else 1)
    return [x for x, _ in points], [y for _, y in points]


def histogram(title: str, x_label: str, counts: Sequence[int], high: float, hue: str) -> Chart:
    """``counts`` of equal bins between 0 and ``high``."""
    width, height, most = 420, 220, max([*counts, 1])
    axes = svg.new_axes(width, height, left=24, right=10, top=20, bottom=40)
    edges = [high * k / len(counts) for k in range(len(counts) + 1)]
    for low, up, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            name = f"{text.short(low)} to {text.short(up)}: {text.count(count, 'row')}"
            wide = 0.9 * (up - low)
            svg.mark(axes.bar((low + up) / 2, count, width=wide), f"bar {hue}", name)
    axes.set(xlim=(0, high), ylim=(0, most), yticks=[])
    return Chart(
        title=title,
        description=f"{title} of {text.count(sum(counts), 'row')}: {x_label}, from 0 to "
        f"{text.short(high)}; the fullest of {len(counts)} bins holds {most:,}.",
        drawing=svg.inline(axes),
        width=width,
        height=height,
        left=24,
        x_label=x_label,
        y_label=f"at most {most:,} rows",
    )


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
