"""The display of a run in progress: every chain's loss, and whether the chains agree so far.

R-hat and effective sample size are of the minibatch losses at the looks of the second half: they
cost nothing, and show when chains have not converged yet. ``posterior.diagnose`` is the actual
test."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from natural_langevin._internal.progress import Detail
from natural_langevin.diagnostics import ranks
from natural_langevin.dynamics.base import Info, State

#: Looks that a curve shows, and chains that have a line.
WIDTH, MOST_CHAINS = 24, 16
#: Looks below which chains are not compared, and the most that are.
FEWEST, MOST = 8, 2000
BARS = "▁▂▃▄▅▆▇█"


class Glance:
    """Notes what every look sees; called, the ``Detail`` of a display."""

    def __init__(self, burn_in: int) -> None:
        self._burn_in = burn_in
        self._losses: deque[Tensor] = deque(maxlen=2 * MOST)
        self._diverged, self._done, self._kept = torch.empty(0), 0, 0
        self._began: tuple[int, float] | None = None
        self._device = torch.device("cpu")

    def note(self, state: State, info: Info, done: int, kept: int) -> None:
        """A look after ``done`` updates."""
        self._losses.append(info.loss.detach().double().cpu())
        self._diverged, self._done, self._kept = state.diverged.cpu(), done, kept
        self._began = self._began or (done, time.monotonic())
        self._device = state.step.device

    def __call__(self) -> Detail:
        losses = self._losses[-1][self._diverged < 0]
        mean = float(losses.mean()) if len(losses) else math.nan
        return Detail(
            line=f"loss {mean:.4f}  {self._kept} kept",
            head=("chain", "loss", "", ""),
            rows=tuple(self._row(chain) for chain in range(min(len(self._diverged), MOST_CHAINS))),
            notes=(" · ".join(filter(None, [self._phase(), self._agreement(), self._cost()])),),
        )

    def _row(self, chain: int) -> tuple[str, ...]:
        last = islice(self._losses, max(0, len(self._losses) - WIDTH), None)
        series = [float(row[chain]) for row in last]
        step = int(self._diverged[chain])
        state = f"diverged at step {step}" if step >= 0 else ""
        return str(chain), f"{series[-1]:.4f}", curve(series), state

    def _phase(self) -> str:
        return "burn-in" if self._done <= self._burn_in else "sampling"

    def _agreement(self) -> str:
        later = islice(self._losses, len(self._losses) // 2, None)
        seen = torch.stack([*later], 1)[self._diverged < 0]
        if seen.shape[1] < FEWEST or not len(seen) or not bool(seen.isfinite().all()):
            return ""
        values = seen.numpy()[:, :, None]
        if np.ptp(values) == 0:
            return ""
        ess = f"of the loss: effective sample size {float(ranks.ess(values)[0]):.0f}"
        return ess + (f", R-hat {float(ranks.rhat(values)[0]):.2f}" if len(seen) > 1 else "")

    def _cost(self) -> str:
        first, began = self._began or (0, 0.0)
        seconds = time.monotonic() - began
        pace = f"{(self._done - first) / seconds:,.0f} steps/s, " if self._done > first else ""
        return f"{pace}{_memory(self._device)}"


def curve(values: list[float]) -> str:
    """Numbers as a line of bars; what is not finite is a gap.

    >>> curve([0.0, 1.0, 2.0, math.nan, 7.0])
    '▁▂▃ █'
    """
    finite = [v for v in values if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] if math.isfinite(v) else " " for v in values)


def _memory(device: torch.device) -> str:
    """Of the device, or the most that this process has had, where the system counts it."""
    if device.type == "cuda":
        return f"{torch.cuda.memory_allocated(device) / (1 << 20):,.0f} MiB on the GPU"
    with contextlib.suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1 << 10
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return f"{most / (1 << 20):,.0f} MiB at most"
    return ""
