"""The time of a whole call: ``sample(seconds=...)``.

The limit covers the whole call, search included, by the shares of ``Time``. A run with ``seconds``
is therefore not reproducible: choices and length depend on the machine and its load.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass

from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine

clock = time.monotonic


@dataclass(frozen=True)
class Time:
    """What ``seconds`` are spent on: see also ``recipe.pace``."""

    #: Shares: what the steps of the run have at least, and when the search should be over.
    least: float = 0.2
    search: float = 0.5
    #: The part of what is left that a descent may take.
    descent: float = 0.6
    #: The share that what comes after the steps has: the probe of the temperature, the rows that
    #: calibrate predictions.
    finish: float = 0.05
    #: A run that the clock ends may have so many times the steps that their pace let expect: a pace
    #: is measured in a moment, on a machine that does other things as well, and chains may come
    #: down sooner than those of the trial did.
    more: float = 2.0
    #: Steps that are timed at most, and seconds from which on their pace is known.
    timed: int = 1300
    enough: float = 0.2
    #: Time for more steps than a run of open length may take buys chains, up to so many times as
    #: many: four chains on MNIST gain nothing by ten times the steps, each stays where it began.
    most_chains: int = 4
    #: So many chains take no longer than one where operator calls are what is paid for.
    at_once: int = 32


#: The shares where none are given.
USUAL = Time()


class _Spent:
    """Of one call. ``descent``: seconds that a chain's descent takes, infinite where the clock
    ended it."""

    def __init__(self) -> None:
        self.began, self.descent = clock(), 0.0


class TimeLimit:
    """What a call of so many seconds may still begin; without a limit, everything."""

    def __init__(
        self, seconds: float | None = None, rule: Time = USUAL, *, ends: bool = False
    ) -> None:
        """``ends``: whether the clock ends the run, and not a number of steps."""
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {seconds!r}")
        self._seconds, self._rule, self._spent = seconds, rule, _Spent()
        self._share = 1 - rule.least
        self.ends_run = ends and seconds is not None

    def searching(self) -> TimeLimit:
        """The same for the search, for which time is over earlier."""
        return self._with_share(self._rule.search)

    def going_down(self) -> TimeLimit:
        """The same for a descent that begins now: one of the search is of use to the run."""
        spent = 0.0 if self._seconds is None else (clock() - self._spent.began) / self._seconds
        left = max(0.0, 1 - self._rule.least - spent)
        return self._with_share(spent + self._rule.descent * left)

    def _with_share(self, share: float) -> TimeLimit:
        """The same, over after that share of the time."""
        found = copy.copy(self)
        found._share = share
        return found

    @property
    def exists(self) -> bool:
        """Whether the call has a limit."""
        return self._seconds is not None

    def allows(self, seconds: float) -> bool:
        """Whether something may be begun that takes so long; always without a limit."""
        if self._seconds is None:
            return True
        return seconds <= self.left

    @property
    def left(self) -> float:
        """Seconds that are left."""
        if self._seconds is None:
            return math.inf
        return self._share * self._seconds - (clock() - self._spent.began)

    def note_descent(self, seconds: float) -> None:
        """A chain's descent takes so long: the run's own will too."""
        self._spent.descent = max(self._spent.descent, seconds)

    def going(self, chains: int, there: int) -> int:
        """As many of ``chains`` as are ``there`` or have time to go down; one at least."""
        if self._seconds is None or not self._spent.descent:
            return chains
        return min(chains, max(1, there + int(self.going_down().left / self._spent.descent)))

    def left_for_steps(self, seconds: float, going_down: int = 0) -> float:
        """What is left of ``seconds`` for the steps of the run, when ``going_down`` chains have
        still to go down."""
        if self._seconds is None:
            return seconds
        spent, rule, down = clock() - self._spent.began, self._rule, 0.0
        if going_down:
            down = min(going_down * self._spent.descent, max(0.0, self.going_down().left))
        return max((1 - rule.finish) * self._seconds - spent - down, rule.least * self._seconds)


def in_pieces(
    engine: Engine, state: State, start: int, stop: int, limit: TimeLimit, most: int
) -> tuple[State, Info, int]:
    """Steps from ``start`` to ``stop``, or as many as there is time for, one at least, and where
    they end. With a limit it looks at the clock after one step, two more, and so forth, up to
    ``most``: a step may take seconds."""
    count = 1 if limit.exists else stop - start
    while True:
        state, info = engine.run(state, start, min(count, stop - start))
        start += min(count, stop - start)
        if start == stop or not limit.allows(0.0):
            return state, info, start
        count = min(2 * count, most)


#: For whatever nobody waits for.
NO_LIMIT = TimeLimit()
