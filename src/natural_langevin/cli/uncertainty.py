""" "How sure is it?" in the terminal: sentences, and a drawing that fits its width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from natural_langevin.cli.pages.picture import write_picture
from natural_langevin.tabular.sureness import figure, percent, sentences

PICTURE = "how_sure.png"
#: Rows of a regression that are drawn in the terminal.
SHOWN = 9
#: A terminal narrower than this gets the figures without bars.
NARROW = 64


def show(quality: Mapping[str, Any], console: Console) -> None:
    """Print how sure the posterior is on labelled rows: sentences, then bars or intervals."""
    words = sentences(quality)
    if not words:
        return
    console.print("\n[bold]How sure is it?[/]")
    for sentence in words if not is_plain(console) else [w.replace("±", "+/-") for w in words]:
        console.print(Padding(escape(sentence), (0, 0, 0, 2)), highlight=False)
    console.print()
    draw = _answers if quality["task"] == "classification" else _intervals
    draw(quality, console)


def picture(quality: Mapping[str, Any], folder: Path, title: str, console: Console) -> None:
    """Draws it into the folder and says so; without matplotlib, says how to have it."""
    words = sentences(quality)
    if not words:
        return
    path = folder / PICTURE
    try:
        write_picture(quality, path, title=title, words=words)
    except ImportError as error:
        console.print(f"\n[dim]No picture: {escape(str(error))}[/]", highlight=False)
        return
    console.print(f"\n[bold]Picture[/]  {escape(str(path))}", highlight=False, soft_wrap=True)


def is_plain(console: Console) -> bool:
    """Whether the terminal, or the file, knows ASCII alone."""
    return console.options.ascii_only


def _answers(quality: Mapping[str, Any], console: Console) -> None:
    found, plain = quality["answers"], is_plain(console)
    rows, wide = found["answered"][0], console.width >= NARROW
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("  if at least", no_wrap=True)
    for heading in ("it answers", "and is right on"):
        table.add_column(heading if not wide else "", justify="right", no_wrap=True)
        if wide:
            table.add_column(heading, style="cyan" if heading == "it answers" else "green")
    room = max(8, min(24, (console.width - 46) // 2))
    for level, n, good in zip(found["sure"], found["answered"], found["right"], strict=True):
        if level and n == rows:
            continue  # it is always that sure: the line above says the same
        cells = ["  (always)" if not level else f"  {100 * level:g} % sure", percent(n / rows)]
        right = percent(good / n) if n else "-"
        if wide:
            cells += [bar(n / rows, room, plain=plain), right]
            cells += [bar(good / n if n else 0.0, room, plain=plain)]
        else:
            cells += [right]
        table.add_row(*cells)
    console.print(table)


def _intervals(quality: Mapping[str, Any], console: Console) -> None:
    """Some rows from the smallest prediction to the largest, on one axis."""
    rows, plain = quality["intervals"]["rows"], is_plain(console)
    columns = [rows[name] for name in ("low", "mean", "high", "truth")]
    every = sorted(zip(*columns, strict=True), key=lambda row: row[1])
    count = min(SHOWN, len(every))
    some = [every[round(k * (len(every) - 1) / max(1, count - 1))] for k in range(count)]
    ends = min(map(min, some)), max(map(max, some))
    scale = math.log if 0 < ends[0] < ends[1] / 100 else float  # over orders of size
    wide = console.width >= NARROW
    width = max(12, min(60, console.width - (24 if wide else 26)))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("  predicted", justify="right", no_wrap=True)
    table.add_column("truth", justify="right", no_wrap=True)
    sign, dot = ("x", "o") if plain else ("×", "●")
    heading = f"90 % interval, {dot} predicted, {sign} truth"
    heading += "" if scale is float else ", logarithmic"
    table.add_column(heading if wide else "", no_wrap=True)
    for low, mean, high, truth in some:
        places = map(scale, (low, mean, high, truth))
        line = interval(*places, ends=(scale(ends[0]), scale(ends[1])), width=width, plain=plain)
        style = "green" if low <= truth <= high else "red"
        table.add_row(figure(mean), figure(truth), f"[{style}]{escape(line)}[/]")
    console.print(table)


EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int, *, plain: bool = False) -> str:
    """A bar of ``width`` characters at a share of 1, filled to an eighth of a character.

    >>> bar(0.5, 8), bar(0.55, 8), bar(0.5, 8, plain=True)
    ('████', '████▍', '####')
    """
    share = min(max(share, 0.0), 1.0)
    if plain:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def interval(
    low: float,
    mean: float,
    high: float,
    truth: float,
    *,
    ends: tuple[float, float],
    width: int,
    plain: bool = False,
) -> str:
    """A line of ``width`` characters between two ends: interval, prediction in it, truth as x.

    >>> interval(2, 4, 6, 8, ends=(0, 10), width=11, plain=True)
    '  |-o-| x  '
    """
    line = [" "] * width
    edge, dash, dot = ("|", "-", "o") if plain else ("│", "─", "●")

    def at(value: float) -> int:
        share = (value - ends[0]) / (ends[1] - ends[0] or 1)
        return round(min(max(share, 0.0), 1.0) * (width - 1))

    for k in range(at(low), at(high) + 1):
        line[k] = dash
    line[at(low)] = line[at(high)] = edge
    line[at(mean)] = dot
    line[at(truth)] = "x" if plain else "×"
    return "".join(line)
