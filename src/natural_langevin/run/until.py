"""What ends a run: a target, the clock, or chains that agree.

``until="ess:400"``: the effective sample size in function space, the median over the predictions
for some of the training inputs, as ``posterior.diagnose`` has it. It is first computed when there
are as many draws as the target needs, and then when the last value predicts that it is reached,
after 1.1 to 2 times as many draws as before.

A run without a given length is long enough where its chains agree, with enough draws.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natural_langevin.data.streams import Stream
from natural_langevin.diagnostics import mixing
from natural_langevin.dynamics.base import State
from natural_langevin.posterior.draws import pooled_chains
from natural_langevin.posterior.plan import EndRule
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.run import time_limit

log = logging.getLogger("natural_langevin")

#: Numbers that are followed: predictions for some rows, all outputs of each.
NUMBERS, FEWEST_ROWS = 64, 8
#: Draws that an effective size needs, and those that a run has whatever the clock says.
FEWEST_DRAWS, FEWEST_WITHOUT_TIME = 10, 4
#: Draws of one chain are kept more thinly where all of them would take more than this.
MOST_BYTES = 2**30


def parse(until: Any) -> float | None:
    """The effective sample size that ``until`` asks for; None: nothing is asked for.

    >>> parse("ess:400")
    400.0
    """
    if until is None:
        return None
    found = re.fullmatch(r"ess:(\d+(\.\d+)?(e\d+)?)", until) if isinstance(until, str) else None
    if found is None or not 1 <= float(found[1]) < math.inf:
        raise ValueError(
            f'until must be "ess:" and the effective sample size to reach, such as until="ess:400",'
            f" got {until!r}; give steps= or seconds= for a run of a certain length"
        )
    return float(found[1])


def thinning(draws: int, bytes_per_draw: int) -> int:
    """The factor by which ``draws`` of all chains are thinned to fit into ``MOST_BYTES``."""
    return max(1, math.ceil(draws * bytes_per_draw / MOST_BYTES))


class EssTarget:
    """Whether a run may end: the effective sample size is reached, or ``seconds`` are over.

    ``posterior()`` gives the draws so far; ``x`` are inputs to predict for. Afterwards ``reached``
    is "ess", "seconds" or "steps", and ``ess`` the last reading."""

    def __init__(
        self,
        wanted: float | None,
        posterior: Callable[[State], Posterior],
        x: Tensor,
        *,
        seconds: Callable[[], float] | None = None,
        anywhere: Callable[[bool], bool] = bool,
    ) -> None:
        """``seconds``: those that are left when steps ``begin``. ``anywhere``: whether something is
        so at any of the processes, which read the effective sample size together."""
        self.wanted, self.ess, self.reached = wanted, math.nan, "steps"
        self._posterior, self._x = posterior, x
        self._seconds, self._end, self._anywhere = seconds, math.inf, anywhere
        self._next = 0

    def begin(self) -> None:
        """From now on the seconds count, if they did not before."""
        if self._seconds is not None and self._end == math.inf:
            self._end = time_limit.clock() + self._seconds()

    def ends(self, state: State, kept: int, last: bool = False) -> bool:
        """After ``kept`` draws; ``last``: the run ends in any case, and a reading is wanted."""
        self.begin()
        late = time_limit.clock() > self._end and kept >= FEWEST_WITHOUT_TIME
        late = late if self._seconds is None else self._anywhere(late)
        if self.wanted is not None and kept >= FEWEST_DRAWS:
            self._next = self._next or self._first(state)
            if late or last or kept >= self._next:
                self.ess = self._read(state)
                grown = kept * self.wanted / max(self.ess, 1.0)
                self._next = math.ceil(min(max(grown, 1.1 * kept), 2 * kept))
        if self.wanted is not None and self.ess >= self.wanted:
            self.reached = "ess"
        elif late:
            self.reached = "seconds"
        return self.reached != "steps"

    def _first(self, state: State) -> int:
        running = max(1, int((state.diverged < 0).sum()))
        assert self.wanted is not None
        return max(FEWEST_DRAWS, math.ceil(self.wanted / running))

    def _read(self, state: State) -> float:
        found = self._posterior(state)
        few = found.predict(self._x[:1], keep_samples=False, sharpness=1.0).mean[0].numel()
        x = self._x[: max(FEWEST_ROWS, NUMBERS // few)]
        values = found.predict(x, sharpness=1.0).samples
        assert values is not None
        shared = bool(found.config.get("shared_batches"))
        return float(np.median(mixing(values.unflatten(0, (-1, found.draws)), shared=shared).ess))

    def say(self, steps: int, most: int, seconds: float | None) -> None:
        """What ended the run, in the log; a target that was missed is a warning."""
        if self.wanted is None:
            log.info("%d steps: %s", steps, f"seconds={seconds:g}" if seconds else "all of them")
            return
        if self.reached == "ess":
            log.info(
                "effective sample size %.0f after %d of at most %d steps: until reached",
                self.ess, steps, most,
            )  # fmt: skip
            return
        limit = f"steps={most}" if self.reached == "steps" else f"seconds={seconds:g}"
        log.warning(
            "effective sample size %.0f, below the target %.0f, when %s was reached: give more %s",
            self.ess, self.wanted, limit, limit.split("=")[0],
        )  # fmt: skip


#: Of chains with more targets, such as checkpoints of a training, so many are looked at, the first
#: and the last among them.
TARGETS = 4


def too_short(so_far: Posterior, stream: Stream, rule: EndRule) -> str:
    """Why a run must continue (``Diagnosis.unmixed``): by its mixing at some rows and around
    them."""
    x = stream.example()[0]
    rows = x[torch.linspace(0, len(x) - 1, min(rule.rows, len(x))).long()]
    alike = so_far.config.get("alike") or [0] * so_far.chains
    pooled = pooled_chains(so_far.config, so_far.healthy)
    kinds = sorted({alike[c] for c in pooled})
    some = torch.linspace(0, len(kinds) - 1, min(len(kinds), TARGETS)).long().unique()
    looks = (
        so_far.diagnose(rows, chains=[c for c in pooled if alike[c] == kinds[k]]) for k in some
    )
    return next((why for one in looks if (why := one.unmixed(rule.ess))), "")
