"""The picture of a run: calibration, and accuracy by required confidence.

Classes: how often it is right against how sure it was, and accuracy against the share of rows it
answers. Numbers: predictions with their intervals against the truth, and how many truths intervals
of every probability hold. Error bars are one binomial standard deviation.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from natural_langevin._internal.atomic import write_output
from natural_langevin._internal.extras import new_figure
from natural_langevin._internal.messages import visible
from natural_langevin.cli.pages.schema import showing

INK, BLUE, RED, GREY = "#222222", "#2b6cb0", "#c53030", "#9aa5b1"


def write_picture(
    quality: Mapping[str, Any], path: str | os.PathLike[str], *, title: str, words: Sequence[str]
) -> None:
    """A PNG file that appears whole, or not at all. ``words`` are written above the panels."""
    remedy = "train again, or evaluate it on labelled rows"
    with showing("the scores of this run are damaged", remedy):
        figure = draw(quality, title=title, words=words)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_output(path, content.getvalue())


def draw(quality: Mapping[str, Any], *, title: str, words: Sequence[str]) -> Any:
    """The matplotlib figure, from what ``tabular.quality`` found on labelled rows."""
    figure = new_figure(figsize=(9.6, 5.4))
    heading, body = figure.subfigures(2, 1, height_ratios=(0.22, 0.78))
    lines = [line for sentence in words for line in textwrap.wrap(_tied(sentence), 118)]
    style = {"ha": "left", "va": "top", "color": INK, "parse_math": False}
    heading.text(
        0.015, 0.95, visible(" ".join(title.split())), fontsize=12, fontweight="bold", **style
    )
    heading.text(0.015, 0.70, visible("\n".join(lines)), fontsize=10, linespacing=1.35, **style)
    left, right = body.subplots(1, 2)
    if quality["task"] == "classification":
        _reliability(left, quality["reliability"])
        _answers(right, quality["answers"])
    else:
        _predictions(left, quality["intervals"]["rows"])
        _coverage(right, quality["coverage"], quality["rows"])
    for axes in (left, right):
        axes.title.set_fontsize(11)
        axes.grid(color="#e4e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _tied(sentence: str) -> str:
    """No line ends between a number and its unit."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%").replace("± ", "±\N{NO-BREAK SPACE}")


def _inside(share: float, count: float) -> tuple[float, float]:
    """Down and up from a share by one deviation, without leaving [0, 1]."""
    one = deviation(share, count)
    return min(one, share), min(one, 1 - share)


def _reliability(axes: Any, found: Mapping[str, Sequence[float]]) -> None:
    confidence, accuracy, count = found["confidence"], found["accuracy"], found["count"]
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="as sure as right")
    errors = [_inside(a, n) for a, n in zip(accuracy, count, strict=True)]
    bars = list(zip(*errors, strict=True))
    axes.errorbar(confidence, accuracy, yerr=bars, fmt="none", ecolor=BLUE, alpha=0.5)
    most = max(count)
    areas = [20 + 180 * n / most for n in count]
    axes.scatter(confidence, accuracy, s=areas, color=BLUE, label="rows, by number", zorder=3)
    axes.set(xlabel="how sure it says it is", ylabel="how often it is right")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.04), title="Does it mean what it says?")
    axes.legend(loc="upper left", frameon=False, fontsize="small")


def _answers(axes: Any, found: Mapping[str, Any]) -> None:
    rows = found["answered"][0]
    points = [
        (level, n / rows, good / n, _inside(good / n, n))
        for level, n, good in zip(found["sure"], found["answered"], found["right"], strict=True)
        if n
    ]
    places = range(len(points))
    axes.bar(places, [p[1] for p in points], color=GREY, alpha=0.45, label="rows it answers")
    axes.errorbar(
        places,
        [p[2] for p in points],
        yerr=list(zip(*(p[3] for p in points), strict=True)),
        marker="o",
        color=BLUE,
        capsize=2,
        label="of these, right",
    )
    names = ["always" if not level else f"{100 * level:g} %" for level, *_ in points]
    axes.set_xticks(list(places), names)
    axes.set(xlabel="answers only when at least this sure", ylim=(0, 1.04))
    axes.set(title="What if it may say “I do not know”?", ylabel="share")
    axes.legend(loc="lower left", frameon=True, framealpha=0.9, fontsize="small")
    axes.tick_params(axis="x", labelsize="small")


def _predictions(axes: Any, rows: Mapping[str, Sequence[float]]) -> None:
    columns = [rows[name] for name in ("mean", "low", "high", "truth")]
    for inside, colour in ((True, BLUE), (False, RED)):
        chosen = [r for r in zip(*columns, strict=True) if (r[1] <= r[3] <= r[2]) == inside]
        if not chosen:
            continue
        mean, low, high, truth = zip(*chosen, strict=True)
        below = [max(0.0, m - a) for m, a in zip(mean, low, strict=True)]
        above = [max(0.0, b - m) for m, b in zip(mean, high, strict=True)]
        name = "truth inside the 90 % interval" if inside else "outside"
        style = {"fmt": "o", "markersize": 3.5, "elinewidth": 0.7, "color": colour, "alpha": 0.6}
        axes.errorbar(truth, mean, yerr=[below, above], label=name, **style)
    ends = [min(map(min, columns)), max(map(max, columns))]
    axes.plot(ends, ends, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlabel="truth", ylabel="prediction", title="Prediction and 90 % interval")
    axes.legend(loc="upper left", frameon=False, fontsize="small")


def _coverage(axes: Any, found: Mapping[str, Sequence[float]], rows: int) -> None:
    level, observed = found["level"], found["observed"]
    errors = [deviation(v, rows) for v in level]
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, label="as it should be")
    axes.errorbar(
        level, observed, yerr=errors, marker="o", color=BLUE, capsize=2, label="this posterior"
    )
    axes.set(xlabel="probability of the interval", ylabel="how often it holds the truth")
    axes.set(xlim=(0, 1), ylim=(0, 1.04), title="Are the intervals honest?")
    axes.legend(loc="upper left", frameon=False, fontsize="small")


def deviation(share: float, count: float) -> float:
    """The binomial standard deviation of a share of ``count`` rows.

    A share of 0 or 1 has none of its own: it is taken half a row inside.

    >>> round(deviation(0.5, 100), 3), round(deviation(1.0, 9), 3)
    (0.05, 0.073)
    """
    inside = min(max(share, 0.5 / (count + 1)), 1 - 0.5 / (count + 1))
    return math.sqrt(inside * (1 - inside) / count)
