"""Spread: how far networks are from their mean, where what they learned was a function without
noise.

The noise that a Gaussian likelihood learns is as large as the residuals. Where targets have none,
these are what a network of this size has not learned, another part of it in every network: it
counts twice, as noise and as the distance of networks from each other, and predictions are too
wide (central intervals of 50 % hold 70 to 80 %). The prediction is therefore of networks

    f'_s(x) = m(x) + a (f_s(x) - m(x)),      m the mean over networks, a <= 1,

with noise of several widths (``noise_widths``). ``a``, and the weights of widths w that go with it,
are those of the highest

    sum_n ln p(y_n | x_n; a, w) + ``USUAL_ROWS`` ln w_1 - (ln a)^2 / (2 ``DEVIATION``^2)

over rows held out of chains on folds (``sampling.prior_scale``). These have learned from fewer rows
in fewer steps than the run that follows, and more of their noise is what they have not learned yet.
With sigma the noise of the run, and sigma_0 theirs, the run's spread is

    a^phi,      phi = max(0, 1 - sigma^2 / sigma_0^2),

all of it where nothing is left of the noise, and 1 where it is as large as before: then it is noise
indeed. The draws know nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin.posterior import noise_widths

#: Of the prior of ln a, and the nats on held-out rows below which a stays 1: a mixture of few
#: networks gains up to that by being smoother.
DEVIATION, LEAST_GAIN = 0.2, 5.0
#: The values of a that are compared: 1, .9, ..., .25.
VALUES = tuple(math.exp(-0.1 * k) for k in range(15))


class Predicted(NamedTuple):
    """What networks that have not learned from some rows say of them: outputs (network, row, ...),
    the variance of every network's noise (network,), and the targets (row, ...)."""

    outputs: Tensor
    variance: Tensor
    y: Tensor


class Fitted(NamedTuple):
    """The spread a, the weights of widths that go with it, the mean variance of the noise, and the
    nats that a gains."""

    spread: float
    widths: list[float]
    variance: float
    gain: float


def contracted(outputs: Tensor, spread: float) -> Tensor:
    """m + a (f_s - m) of outputs f (network, ...).

    >>> contracted(torch.tensor([0.0, 4.0]), 0.5)
    tensor([1., 3.])
    """
    mean = outputs.mean(0, dtype=torch.float64).to(outputs.dtype)
    return mean + spread * (outputs - mean)


def fit(parts: Sequence[Predicted]) -> Fitted | None:
    """By rows held out, in folds; None where a < 1 gains less than ``LEAST_GAIN``."""
    best: tuple[float, float, Tensor] | None = None
    usual = math.nan
    for a in VALUES:
        logs = torch.cat([_by_width(part, a) for part in parts], 1)
        if not bool(torch.isfinite(logs).all()):
            return None
        weights = noise_widths.weigh(logs)
        score = float(torch.logsumexp(logs + weights.log()[:, None], 0).sum())
        score += noise_widths.USUAL_ROWS * float(weights[noise_widths.USUAL].log())
        score -= math.log(a) ** 2 / (2 * DEVIATION**2)
        usual = score if a == 1 else usual
        if best is None or score > best[0]:
            best = score, a, weights
    assert best is not None
    score, a, weights = best
    if not score - usual >= LEAST_GAIN:
        return None
    variance = sum(float(part.variance.double().mean()) for part in parts) / len(parts)
    widths = [round(w, 4) for w in weights.tolist()]
    return Fitted(float(f"{a:.3g}"), widths, variance, score - usual)


def of_run(spread: float, before: float, now: float) -> float:
    """a^phi of a run whose noise has the variance ``now``, where chains whose noise had the
    variance ``before`` asked for a.

    >>> of_run(0.5, 1.0, 0.0), of_run(0.5, 1.0, 0.5), of_run(0.5, 1.0, 2.0)
    (0.5, 0.707, 1.0)
    """
    return float(f"{spread ** max(0.0, 1 - now / before):.3g}")


def _by_width(part: Predicted, a: float) -> Tensor:
    """ln density of every row with every width, (width, row)."""
    outputs = contracted(part.outputs.double(), a)
    even = torch.full(outputs.shape[:2], -math.log(len(outputs)), dtype=torch.float64)
    return noise_widths.by_width(outputs, part.y, part.variance, even)


def check_spread(value: Any) -> float:
    """A number above 0 and at most 1."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise ValueError(f"spread must be above 0 and at most 1, got {value!r:.80}")
    return float(value)
