"""A run compared with the same run at half the step size, which shows the bias of the step.

The bias of a discretised chain is of order eta. With variances v(eta) and v(eta/2) of the same
number, the limit of small steps is v(0) = 2 v(eta/2) - v(eta), and the excess of the run at eta is

    v(eta) / v(0) - 1,

whatever its cause: step size, minibatch noise or a stiff direction. Unlike a temperature averaged
over all weights it detects a single hot tensor, and biased predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from natural_langevin.diagnostics import ranks
from natural_langevin.diagnostics.ranks import Array
from natural_langevin.diagnostics.reading import Reading


class Halved(NamedTuple):
    """``ratio``: v(eta) / v(eta/2), the mean over numbers; ``shift``: between the means, in
    standard deviations, with the error that independent chains would show."""

    ratio: Reading
    shift: Reading

    @property
    def excess(self) -> float:
        """v(eta) / v(0) - 1; infinite where v(eta) is twice v(eta/2) or more."""
        ratio = self.ratio.value
        return 2 * (ratio - 1) / (2 - ratio) if ratio < 2 else float("inf")

    @property
    def hot(self) -> bool:
        """Variances a tenth above those at half the step, beyond three errors."""
        return self.ratio.value - 3 * self.ratio.error > 1.05

    @property
    def shifted(self) -> bool:
        """Means a tenth of a standard deviation apart or more, beyond four errors."""
        return self.shift.value > 0.1 and self.shift.value > 4 * self.shift.error


def compare(full: Mapping[str, Tensor], half: Mapping[str, Tensor]) -> dict[str, Halved]:
    """Compares numbers {name: (chain, draw, ...)} drawn at eta with those drawn at eta/2."""
    return {name: _compare(_array(full[name]), _array(half[name])) for name in full}


def _array(values: Tensor) -> Array:
    found: Array = values.detach().double().cpu().flatten(2).numpy()
    return found


def _compare(a: Array, b: Array) -> Halved:
    moving = (a.std(axis=(0, 1)) > 0) & (b.std(axis=(0, 1)) > 0)
    a, b = a[:, :, moving], b[:, :, moving]
    va, vb = a.var(axis=(0, 1)), b.var(axis=(0, 1))
    # Numbers move together, so their mean is known no better than one of them.
    spread = np.sqrt(2 / _ess((a - a.mean((0, 1))) ** 2) + 2 / _ess((b - b.mean((0, 1))) ** 2))
    ratio = float(np.exp(np.mean(np.log(va / vb))))
    gap = (a.mean(axis=(0, 1)) - b.mean(axis=(0, 1))) ** 2 / vb
    error = np.sqrt(va.mean() / vb.mean() / _ess(a) + 1 / _ess(b))
    return Halved(Reading(ratio, ratio * float(spread)), Reading(float(gap.mean() ** 0.5), error))


def _ess(values: Array) -> float:
    """The smallest effective sample size of some of the numbers."""
    found = ranks.ess(values[:, :, :: -(-values.shape[2] // 20)])
    return float(np.median(found))
