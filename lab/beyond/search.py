"""The search for settings: a grid in logarithms that grows where its best cell is at an edge.

A level i of an axis is the value start ratio^i; a cell is a level of every axis. All cells of a
round are chains of one run, scored on held-out images. Where the best lies on the edge of what was
tried, the next round goes a level further there, with at most one other axis a level away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from natural_langevin._internal.atomic import staged

Cell = tuple[int, ...]
Scores = dict[Cell, float | None]  # None: diverged
#: The level of an axis that stands for "not at all" (value 0): it is nobody's neighbour.
OFF = -99


@dataclass(frozen=True)
class Axis:
    """Levels to begin with. ``grows``: whether the search may go beyond them."""

    start: float
    ratio: float
    levels: tuple[int, ...]
    grows: bool = True

    def value(self, level: int) -> float:
        """start ratio^level, to three digits; 0 where it is off."""
        return 0.0 if level == OFF else float(f"{self.start * self.ratio**level:.3g}")


@dataclass(frozen=True)
class Round:
    """What was found for each cell (with "score"; None: it diverged), and how long it took."""

    found: list[dict[str, Any] | None]
    complete: bool
    updates: int
    seconds: float
    wall: float


@dataclass(frozen=True)
class Searched:
    """Cells that did not diverge, best first. ``inside``: whether the best is at no edge."""

    ranked: dict[Cell, dict[str, Any]]
    rounds: list[Round]
    complete: bool
    inside: bool


def full(axes: Sequence[Axis]) -> list[Cell]:
    """The product of the levels to begin with."""
    return list(product(*(axis.levels for axis in axes)))


def star(axes: Sequence[Axis]) -> list[Cell]:
    """The middle, and the other levels of one axis at a time.

    >>> star((Axis(1.0, 2.0, (-1, 0, 1)), Axis(1.0, 2.0, (0, 1))))
    [(0, 0), (-1, 0), (1, 0), (0, 1)]
    """
    middle = (0,) * len(axes)
    arms = [
        (*middle[:d], level, *middle[d + 1 :])
        for d, axis in enumerate(axes)
        for level in axis.levels
        if level
    ]
    return [middle, *arms]


def ranking(scores: Scores) -> list[Cell]:
    """Cells that did not diverge, from the lowest score up.

    >>> ranking({(0,): 2.0, (1,): None, (2,): 1.0})
    [(2,), (0,)]
    """
    known = {cell: score for cell, score in scores.items() if score is not None}
    return sorted(known, key=lambda cell: known[cell])


def outward(axes: Sequence[Axis], scores: Scores) -> list[Cell]:
    """The cells of the next round: none where the best lies inside.

    Cells whose level of an axis that does not grow is none of its first ones stand apart: they are
    scored and ranked, and have no say here.

    >>> axes = (Axis(1.0, 2.0, (0, 1)), Axis(1.0, 2.0, (0,), grows=False))
    >>> outward(axes, {(0, 0): 2.0, (1, 0): 1.0})
    [(2, 0)]
    """
    fixed = [d for d, axis in enumerate(axes) if not axis.grows]
    own = {c: s for c, s in scores.items() if all(c[d] in axes[d].levels for d in fixed)}
    best = ranking(own)[0]
    levels, at_edge = [], False
    for d, axis in enumerate(axes):
        tried = {cell[d] for cell in own if all(cell[f] == best[f] for f in fixed)} - {OFF}
        near = {best[d]} | {level for level in tried if abs(level - best[d]) <= 1}
        if axis.grows and best[d] != OFF:
            new = {best[d] - 1, best[d] + 1} - tried
            near |= new
            at_edge |= bool(new)
        levels.append(sorted(near))
    box = [cell for cell in product(*levels) if at_edge and cell not in scores]
    return [c for c in box if sum(a != b for a, b in zip(c, best, strict=True)) <= 2]


def search(
    axes: Sequence[Axis],
    cells: Sequence[Cell],
    score: Callable[[int, list[Cell]], Round],
    *,
    extensions: int,
    file: Path,
) -> Searched:
    """Rounds until the best cell is inside, at most ``extensions`` beyond the first.

    Finished rounds are kept in ``file``, so that a search that is called again goes on with the
    round it was in. One that ran out of time counts with what it has found so far, and is the
    last; where it has found nothing (``TimeoutError``) the rounds before it decide."""
    known: dict[Cell, dict[str, Any] | None] = {}
    rounds: list[Round] = []
    in_time = True
    if file.exists():
        rounds = [Round(**of) for of in json.loads(file.read_text())]
    count, wanted = 0, list(cells)
    while wanted and count <= extensions:
        if count == len(rounds):
            try:
                rounds.append(score(count, wanted))
            except TimeoutError:
                if not rounds:
                    raise
                in_time = False
                break
        known |= dict(zip(wanted, rounds[count].found, strict=True))
        scores = {cell: None if of is None else of["score"] for cell, of in known.items()}
        if all(s is None for s in scores.values()):
            raise RuntimeError("every chain of the search diverged: use smaller step sizes")
        wanted = outward(axes, scores)
        if not rounds[count].complete:
            break
        file.parent.mkdir(parents=True, exist_ok=True)
        with staged(file) as handle:
            handle.write(json.dumps([asdict(of) for of in rounds]).encode())
        count += 1
    ranked = {cell: dict(known[cell] or {}) for cell in ranking(scores)}
    complete = in_time and all(of.complete for of in rounds)
    if complete:
        file.unlink(missing_ok=True)
    return Searched(ranked, rounds, complete, inside=not wanted)
