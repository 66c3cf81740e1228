"""A local learning coefficient with its error and warnings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natural_langevin._internal.extras import new_figure
from natural_langevin._internal.messages import text_shown
from natural_langevin.diagnostics import ranks
from natural_langevin.posterior.posterior import Posterior

#: R-hat above which chains have not mixed; parts of the value above which the Monte-Carlo error,
#: minibatches' heat, and what twice the gamma would change, are worth a word.
RHAT, NOISY, HOT, LOCAL = 1.1, 0.05, 0.1, 0.1
#: Of what is taken off for minibatches, the part that counts as uncertain: where it is computed,
#: and where a second run has measured it.
UNSURE, MEASURED = 0.5, 0.25
#: Weights up to which a Metropolis-adjusted run is a reference worth its time.
SMALL = 2_000


@dataclass(frozen=True)
class LearningCoefficient:
    """lambda = n beta (E[L_n(w)] - L_n(w*)), ``value`` with its standard ``error``: the Monte-Carlo
    error over chains and draws, plus half of the minibatch correction (a quarter if a second run
    measured it).

    ``rows``: its chains in ``posterior``. ``chains``: the value of every healthy one. ``trace``:
    n beta (L_n - L_n(w*)) of every draw, (chain, draw), before the correction. ``sensitivity``:
    d value / d ln gamma. ``losses``: of every datum, (chain, draw, n), if requested."""

    value: float
    error: float
    chains: Tensor
    posterior: Posterior = field(repr=False)
    rows: tuple[int, ...]
    trace: Tensor = field(repr=False)
    num_data: float
    power: float
    baseline: str
    baseline_loss: float
    weights: int
    minibatch_bias: float
    sensitivity: float
    sensitivity_error: float
    losses: Tensor | None = field(default=None, repr=False)

    @property
    def healthy(self) -> list[int]:
        """Those of ``rows`` that have not diverged."""
        healthy = set(self.posterior.healthy)
        return [c for c in self.rows if c in healthy]

    @property
    def rhat(self) -> float:
        """Rank-normalised split R-hat of the trace: 1 where chains have mixed."""
        return float(ranks.rhat(_numbers(self.trace))[0])

    @property
    def _enough(self) -> int:
        """Steps for an R-hat of ``RHAT``: R-hat^2 - 1 falls as 1 / steps; two to ten times."""
        more = min(10.0, max(2.0, (self.rhat**2 - 1) / (RHAT**2 - 1)))
        return int(float(f"{more * self.posterior.config['steps']:.2g}"))

    @property
    def _more(self) -> str:
        """What brings the error to ``NOISY``: steps help where draws are correlated alone."""
        at_best = float(self.trace.std()) / math.sqrt(self.trace.numel())
        if at_best <= NOISY * abs(self.value):
            return "more steps"
        draws = self.trace.shape[1] * (self.error / (NOISY * self.value)) ** 2
        return f"draws={int(float(f'{draws:.2g}'))} or more"

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the value, each with a remedy; empty if there is none."""
        found, size = [], max(abs(self.value), 1e-12)
        lost = len(self.rows) - len(self.healthy)
        if lost:
            found.append(f"{lost} of {len(self.rows)} chains diverged: use a smaller step_size.")
        stuck = int(((self.trace - self.trace[:, :1]).abs() < 1e-6).all(1).sum())
        if stuck and self.trace.shape[1] > 1:
            found.append(
                f"{stuck} of {len(self.rows)} chains never moved: use more steps and a longer "
                "burn_in."
            )
            return found
        if self.value < 2 * self.error or bool((self.chains < 0).any()):
            found.append(
                f"The loss at w* is not the lowest nearby (chains: {_round(self.chains)}): w* is "
                'not a local minimum. Train it further, or use baseline="minimum".'
            )
        if self.trace.shape[1] < 4 or not math.isfinite(self.error):
            found.append("Too few draws to estimate the error: use more draws and steps.")
            return found
        if self.rhat > RHAT:
            inexact = not str(self.posterior.config.get("dynamics")).startswith("Adjusted")
            exact = " On so few weights dynamics.Adjusted() is an exact reference."
            found.append(
                f"Chains have not mixed: R-hat {self.rhat:.2f}. Use steps={self._enough} or more."
                + (exact if inexact and self.weights <= SMALL else "")
            )
        elif "no steps are left" in (ended := str(self.posterior.config.get("ended"))):
            found.append(
                f"Chains agree in the loss, but not yet in predictions ({ended.split(': ')[-1]}): "
                "directions that are nearly flat may not be explored. Use more steps."
            )
        if self.error > NOISY * size and self.value > 2 * self.error:
            found.append(
                f"Noisy: the error is {self.error / size:.0%} of the value. Use {self._more}."
            )
        if self.minibatch_bias > HOT * size:
            found.append(
                f"Hot: minibatches raised the value by about {self.minibatch_bias:.3g}, which was "
                "subtracted. Use a larger batch_size or a smaller step_size."
            )
        change = math.log(2) * self.sensitivity
        known = self.rhat <= RHAT and abs(self.sensitivity) > 3 * self.sensitivity_error
        if known and abs(change) > LOCAL * size:
            found.append(
                f"The value depends on gamma: doubling gamma would change it by {change:+.3g}. "
                "Its prior is as narrow as the basin of w*, or chains leave the basin; compare "
                "several values of gamma."
            )
        return found

    def _repr_html_(self) -> str:
        return text_shown(str(self))

    def __str__(self) -> str:
        chains, draws = self.trace.shape
        lines = [
            f"local learning coefficient {self.value:.4g} +- {self.error:.2g} "
            f"({self.weights:,} weights, half of them {self.weights / 2:,.0f})",
            f"{chains} chains of {draws} draws: {_round(self.chains)}; n = {self.num_data:,.0f}, "
            f"beta = {self.power:.4g}, L(w*) = {self.baseline_loss:.5g} ({self.baseline}); "
            f"minibatches: {-self.minibatch_bias:+.2g}",
        ]
        return "\n".join([*lines, *(self.warnings or ["No problem was found."])])

    def plot(self) -> Any:
        """n beta (L_n - L_n(w*)) of every chain along its draws: a matplotlib figure."""
        found = new_figure()
        axes = found.subplots()
        for chain, row in zip(self.healthy, self.trace.tolist(), strict=True):
            axes.plot(row, linewidth=0.8, label=f"chain {chain}")
        axes.axhline(self.value, color="black", linewidth=1)
        axes.set_xlabel("draw")
        axes.set_ylabel("n beta (L - L(w*))")
        axes.legend()
        return found


def mean_and_error(trace: Tensor) -> tuple[float, float]:
    """The mean over (chain, draw), and its Monte-Carlo error: the larger of the one from the
    effective sample size and the one from the chains' means."""
    if not len(trace):
        return math.nan, math.nan
    values = _numbers(trace)
    error = float(ranks.error_of_mean(values)[0])
    if len(trace) > 1:
        between = float(trace.mean(1).std()) / math.sqrt(len(trace))
        error = max(error, between) if math.isfinite(error) else between
    return float(trace.mean()), error


def slope_and_error(trace: Tensor, other: Tensor) -> tuple[float, float]:
    """-Cov(trace, other) over draws, chain by chain, and its error over the chains."""
    centred = (trace - trace.mean(1, keepdim=True)) * (other - other.mean(1, keepdim=True))
    own = -centred.sum(1) / max(1, trace.shape[1] - 1)
    error = float(own.std()) / math.sqrt(len(own)) if len(own) > 1 else math.inf
    return float(own.mean()), error


def _numbers(trace: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return trace.double().cpu().numpy()[:, :, None]


def _round(values: Tensor) -> str:
    return ", ".join(f"{v:.4g}" for v in torch.as_tensor(values).tolist()[:8])
