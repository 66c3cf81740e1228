"""The time of a whole call: ``sample(seconds=...)``.

The limit covers the whole call: the trial of the prior's scales, the pilot and the descent as well.
The steps of the run get at least the share ``least`` of the time, and the search is cut short if it
would take more than ``search`` of it; a descent may take the part ``descent`` of what is left. A
run with ``seconds`` is therefore not reproducible: choices and length depend on the machine and its
load.
"""

from __future__ import annotations

import math
import time

from natural_langevin.dynamics.base import Info, State
from natural_langevin.execution.engine import Engine

clock = time.monotonic


class _Spent:
    """Of one call. ``descent``: seconds that a chain's descent takes, infinite where the clock
    ended it."""

    def __init__(self) -> None:
        self.began, self.descent = clock(), 0.0


class TimeLimit:
    """What a call of so many seconds may still begin; without a limit, everything."""

    def __init__(
        self,
        seconds: float | None = None,
        *,
        least: float = 0.0,
        search: float = 1.0,
        finish: float = 0.0,
        descent: float = 1.0,
        ends: bool = False,
    ) -> None:
        """``least``, ``search``, ``finish``: what the steps of the run have at least, when the
        search should be over, and what comes after the steps, as shares of the time. ``descent``:
        what a descent may take of what is left. ``ends``: whether the clock ends the run, and not a
        number of steps."""
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {seconds!r}")
        self._seconds, self._share, self._spent = seconds, 1 - least, _Spent()
        self._least, self._search, self._finish = least, search, finish
        self._descent = descent
        self.ends_run = ends and seconds is not None

    def searching(self) -> TimeLimit:
        """The same for the search, for which time is over earlier."""
        return self._with_share(self._search)

    def going_down(self) -> TimeLimit:
        """The same for a descent that begins now: one of the search is of use to the run."""
        spent = 0.0 if self._seconds is None else (clock() - self._spent.began) / self._seconds
        return self._with_share(spent + self._descent * max(0.0, 1 - self._least - spent))

    def _with_share(self, share: float) -> TimeLimit:
        """The same, over after that share of the time."""
        found = TimeLimit(
            self._seconds, least=self._least, search=self._search, finish=self._finish,
            descent=self._descent,
        )  # fmt: skip
        found._share, found._spent = share, self._spent
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
        spent = clock() - self._spent.began
        down = 0.0
        if going_down:
            down = min(going_down * self._spent.descent, max(0.0, self.going_down().left))
        return max((1 - self._finish) * self._seconds - spent - down, self._least * self._seconds)


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
