"""Calibration of predictions on held-out rows.

    classes    q(x) ~ m(x)^beta,                   m the mean probabilities of all networks
    numbers    p(y | x) = (1/M) sum_s sum_c w_c N(y; m(x) + a (f_s(x) - m(x)), c^2 sigma_s^2),
               m the mean of networks f_s, with sigma_s >= the least noise that N rows can tell

beta (sharpness), a (spread) and w (weights of the noise's widths) have one purpose: the mixture
over networks is over- or underconfident, and held-out rows measure by how much. Each has a prior at
"no change", and stays there if another value gains too little. The draws are not affected;
``Langevin(calibrate=False)`` leaves calibration out of a run, and ``posterior.predict(x,
calibrated=False)`` out of a prediction. How beta is applied to every network is in ``sharpening``.

Sharpness
---------
beta is that of the lowest -sum ln q(y) + (ln beta)^2 / (2 deviation^2) over held-out labels.

Widths
------
A Gaussian likelihood whose noise is learned has one size of it, the root mean square of all
residuals: a few large ones make most predictions too wide. The prediction is therefore a mixture
over networks s and widths c,

    p(y | x) = (1/M) sum_s sum_c w_c N(y; f_s(x), c^2 sigma_s^2),

whose weights w are those of the highest

    sum_n ln sum_c w_c p_c(y_n | x_n, others) + ``USUAL_ROWS`` ln w_1,

found by EM (``metrics.stacking_weights``). ``p_c(y_n | ..., others)`` is of networks that have not
learned from row n: draws of the posterior weighed by r_s ~ 1 / p(y_n | x_n, theta_s), each at most
sqrt(M) times their mean (truncated importance sampling, Ionides 2008). Without leaving rows out,
narrow widths would be favoured by rows that were fitted closely.

Fewer than ``FEWEST_ROWS`` rows are not enough for that. Then the weights are those that make the
noise Student's t, with ``FREEDOM`` degrees of freedom per row.

Every network gets one of the widths, so that of all networks a part w_c has the width c.

Spread
------
The noise that a Gaussian likelihood learns is as large as the residuals. If the targets have none,
residuals are errors of the networks, different in each: they count twice, as noise and as spread,
and predictions are too wide. The prediction is therefore of networks

    f'_s(x) = m(x) + a (f_s(x) - m(x)),      m the mean over networks, a <= 1,

with noise of several widths. ``a``, and the weights of widths w that go with it,
are those of the highest

    sum_n ln p(y_n | x_n; a, w) + ``USUAL_ROWS`` ln w_1 - (ln a)^2 / (2 ``DEVIATION``^2)

over rows held out of chains on folds (``recipe.prior_scale``). These have learned from fewer rows
than the run that follows, and have more noise. With sigma the noise of the run, and sigma_0 theirs,
the run's spread is

    a^phi,      phi = max(0, 1 - sigma^2 / sigma_0^2),

a if no noise is left, and 1 if it is as large as before: then it is real noise.

The trained network
-------------------
If a run began at a trained network p_0, it is mixed with the networks p_s of the posterior,

    p(y | x) = (1 - w) (1/M) sum_s p_s(y | x) + w p_0(y | x),

with w of the highest sum_n ln p(y_n | x_n) over held-out rows (``metrics.stacking_weights``) if the
posterior alone is worse there, and 0 otherwise. A part w of all networks is then the trained one.

The least noise
---------------
With few rows a network may fit all of them exactly, and the learned noise vanishes with its
residuals. But at best, along one input, N rows are 1/N of its range apart, over which targets that
vary by s may change by s/N. Smaller noise cannot be distinguished from the shape of the function,
so that

    sigma >= s / N,        s the standard deviation of the targets,

is enforced at the end of a run by the recipe.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.metrics import TemperatureScaling, nll, stacking_weights

log = logging.getLogger("natural_langevin")

WIDTHS = (0.25, 0.4, 0.63, 1.0, 1.6, 2.5, 4.0)
USUAL = WIDTHS.index(1.0)
#: Rows that are taken to have spoken for the usual width before, and the nats gained on the others
#: below which it stays the only one: by chance six free weights gain about three.
USUAL_ROWS, LEAST_GAIN = 3, 5.0
#: The mean variance, in units of the learned one, above which the weights are not believed.
MOST_VARIANCE = 1.5
FEWEST_ROWS, MOST_ROWS, MOST_VALUES = 40, 2000, 4_000_000
#: Degrees of freedom that a row leaves, where they are few.
FREEDOM = 0.5
ROUNDS = 200
_GOLDEN, _SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
#: Of the prior of ln a.
DEVIATION = 0.2
#: The values of a that are compared: 1, .9, ..., .25.
SPREADS = tuple(math.exp(-0.1 * k) for k in range(15))


def sharpness(
    mixture: Tensor, y: Tensor, *, deviation: float, least_gain: float
) -> tuple[float, str]:
    """beta of the lowest -sum ln q(y) + (ln beta)^2 / (2 deviation^2), q ~ m^beta, of held-out
    probabilities m (n, K) and labels (n,), and why; 1 where it gains less than ``least_gain``.

    Never below 1: a trial's chains are fewer and have learned from fewer rows than the run's, so
    that their mixture is surer than the run's will be. On development tables, widening by what they
    asked for made the run's predictions worse two times of three."""
    scale = TemperatureScaling.fit(mixture, y, deviation=deviation).scale
    before, after = (nll(TemperatureScaling(s)(mixture.double()), y) for s in (1.0, scale))
    gain, beta = (before - after) * len(y), float(f"{1 / scale:.3g}")
    if beta < 1.0:
        return 1.0, (
            f"the trial's {len(y)} held-out labels favour {beta:g}, but a run is less "
            "sure than a trial"
        )
    if not gain >= least_gain:
        return 1.0, f"{beta:g} would gain {gain:.2g} nats on {len(y)} held-out labels: too few"
    return beta, f"{gain:.3g} nats gained on {len(y)} held-out labels"


class Widths(NamedTuple):
    """A weight of every width, and the nats that they gain on the rows, each left out."""

    weights: list[float]
    gain: float


def affordable_rows(values: int, rows: int) -> int:
    """How many of the rows widths are learned by, where each has so many values."""
    return min(rows, MOST_ROWS, MOST_VALUES // max(1, values))


def widths_of_few(rows: int) -> list[float]:
    """Weights of the widths c = sqrt(nu / X), X of the chi-squared law of nu = ``FREEDOM rows``
    degrees: each of ``WIDTHS`` stands for what is nearest to it, as a ratio.

    >>> [round(w, 2) for w in widths_of_few(8)]
    [0.0, 0.0, 0.17, 0.47, 0.27, 0.07, 0.02]
    """
    freedom = torch.tensor(FREEDOM * rows, dtype=torch.float64)
    edges = torch.tensor([a * b for a, b in itertools.pairwise(WIDTHS)], dtype=torch.float64)
    below = torch.special.gammaincc(freedom / 2, freedom / (2 * edges))
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return [round(w, 4) for w in torch.cat([ends[:1], below, ends[1:]]).diff().tolist()]


def fit_widths(outputs: Tensor, y: Tensor, variance: Tensor) -> Widths | None:
    """Of what networks say, (network, row, ...), of targets y, (row, ...), with noise of
    ``variance`` (network,); None where that gains less than ``LEAST_GAIN``, or asks for noise that
    is larger in all: where networks fit their rows closely, few draws have all of the weight, and a
    row left out by them seems further away than it is."""
    plain = _log_densities(outputs, y, variance, 1.0)
    most = 0.5 * math.log(len(plain))
    ratios = (most * 2 - plain - torch.logsumexp(-plain, 0)).clamp_max(most)
    ratios = ratios - torch.logsumexp(ratios, 0)
    without = by_width(outputs, y, variance, ratios)
    if not bool(torch.isfinite(without).all()):
        return None
    weights = weigh(without)
    gain = float((torch.logsumexp(without + weights.log()[:, None], 0) - without[USUAL]).sum())
    mean = float(weights @ torch.tensor(WIDTHS, dtype=weights.dtype).square())
    if gain < LEAST_GAIN or mean > MOST_VARIANCE:
        return None
    return Widths([round(w, 4) for w in weights.tolist()], gain)


def by_width(outputs: Tensor, y: Tensor, variance: Tensor, log_weights: Tensor) -> Tensor:
    """ln of the density that networks, weighed by ``log_weights`` (network, row), give to every row
    with every width, (width, row). The others are ``fit_widths``'s."""
    return torch.stack([
        torch.logsumexp(log_weights + _log_densities(outputs, y, variance, c), 0) for c in WIDTHS
    ])  # fmt: skip


def _log_densities(outputs: Tensor, y: Tensor, variance: Tensor, width: float) -> Tensor:
    """ln N of every row by every network, with noise of one width, (network, row)."""
    residuals = y.double().reshape(outputs.shape[1:]) - outputs.double()
    residuals = residuals.reshape(*residuals.shape[:2], -1)  # targets may be numbers, (row,)
    size = width**2 * variance.double().reshape(-1, 1)
    squares = residuals.square().sum(2) / size
    return -0.5 * (squares + residuals.shape[2] * torch.log(2 * math.pi * size))


def weigh(log_density: Tensor) -> Tensor:
    """The weights of widths by rows whose density with every width is known, (width, row)."""
    # Rows that no other width can explain.
    usual = torch.full((USUAL_ROWS, len(WIDTHS)), -math.inf, dtype=log_density.dtype)
    usual[:, USUAL] = 0.0
    return stacking_weights(torch.cat([log_density.T, usual]), updates=ROUNDS)


def trained_share(log_density: Tensor) -> float:
    """w, by ln of the density of held-out rows under the posterior and under the trained network:
    (row, 2).

    >>> trained_share(torch.tensor([[-3.0, -1.0], [-2.0, -1.0]]).double())
    1.0
    """
    return round(float(stacking_weights(log_density)[1]), 4)


def trained_networks(share: float, chains: Sequence[int], draws: int) -> Tensor:
    """Which networks of these chains are the trained one, (network,): evenly mixed along every
    chain, and apart from ``width_factors``."""
    number = torch.cat([c * draws + torch.arange(draws) for c in chains]).double()
    return (number * _SILVER) % 1 < share


def check_number(name: str, value: Any, *, most: float = math.inf, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on with ``zero``, and at most ``most``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= min(most, sys.float_info.max) or (value == 0 and not zero):
        kind = "number from 0 on" if zero else "positive number"
        limit = "" if most == math.inf else f" of at most {most:g}"
        raise ValueError(f"{name} must be a {kind}{limit}, got {value!r:.80}")
    return float(value)


def width_factors(weights: Any, chains: Sequence[int], draws: int) -> Tensor:
    """c^2 of every network of these chains, (network,): evenly mixed along every chain."""
    number = torch.cat([c * draws + torch.arange(1, draws + 1) for c in chains]).double()
    shares = torch.tensor(check_widths(weights), dtype=torch.float64).cumsum(0)
    which = torch.searchsorted(shares / shares[-1], (number * _GOLDEN) % 1)
    return torch.tensor(WIDTHS, dtype=torch.float64)[which.clamp_max(len(WIDTHS) - 1)].square()


def check_widths(value: Any) -> list[float]:
    """One number of at least 0 for every width, not all of them 0."""
    numbers = isinstance(value, list) and len(value) == len(WIDTHS)
    if not numbers or not all(isinstance(w, int | float) and 0 <= w < math.inf for w in value):
        raise ValueError(f"noise_widths must have {len(WIDTHS)} weights, got {value!r:.80}")
    if not sum(value) > 0:
        raise ValueError("noise_widths must have a weight that is not 0")
    return [float(w) for w in value]


class Predicted(NamedTuple):
    """What networks that have not learned from some rows say of them: outputs (network, row, ...),
    the variance of every network's noise (network,), and the targets (row, ...)."""

    outputs: Tensor
    variance: Tensor
    y: Tensor


class Spread(NamedTuple):
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


def fit_spread(parts: Sequence[Predicted]) -> Spread | None:
    """By rows held out, in folds; None where a < 1 gains less than ``LEAST_GAIN``."""
    best: tuple[float, float, Tensor] | None = None
    usual = math.nan
    for a in SPREADS:
        logs = torch.cat([_by_width(part, a) for part in parts], 1)
        if not bool(torch.isfinite(logs).all()):
            return None
        weights = weigh(logs)
        score = float(torch.logsumexp(logs + weights.log()[:, None], 0).sum())
        score += USUAL_ROWS * float(weights[USUAL].log())
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
    return Spread(float(f"{a:.3g}"), widths, variance, score - usual)


def spread_of_run(spread: float, before: float, now: float) -> float:
    """a^phi of a run whose noise has the variance ``now``, where chains whose noise had the
    variance ``before`` asked for a.

    >>> [spread_of_run(0.5, 1.0, now) for now in (0.0, 0.5, 2.0)]
    [0.5, 0.707, 1.0]
    """
    return float(f"{spread ** max(0.0, 1 - now / before):.3g}")


def _by_width(part: Predicted, a: float) -> Tensor:
    """ln density of every row with every width, (width, row)."""
    outputs = contracted(part.outputs.double(), a)
    even = torch.full(outputs.shape[:2], -math.log(len(outputs)), dtype=torch.float64)
    return by_width(outputs, part.y, part.variance, even)


def least_noise(y: Tensor) -> float:
    """The smallest standard deviation of noise that targets y (row, ...) allow to claim."""
    spread = y.double().reshape(len(y), -1).var(0, correction=0).mean().sqrt()
    return float(spread) / len(y)


def raised(learned: Params, y: Tensor) -> Params:
    """What the likelihood has learned, the ``variance`` of every chain at least the least one."""
    floor = least_noise(y)
    variance = learned["variance"]
    if bool((variance < floor**2).any()):
        log.info("the learned noise is smaller than %d rows can resolve: using %.2g", len(y), floor)
    return learned | {"variance": variance.clamp_min(floor**2)}
