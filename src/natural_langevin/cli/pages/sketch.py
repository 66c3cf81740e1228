"""Small drawings in text: a bar, and an interval with its prediction and the truth.

Every function takes the number of characters it may use, and ``plain`` for a terminal or a file
that knows ASCII alone.
"""

from __future__ import annotations

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
