"""Noise of several widths: how far targets lie from what networks say has a shape of its own.

A Gaussian likelihood whose noise is learned has one size of it, the root mean square of all
residuals: a few large ones make most predictions too wide, and those few are still a surprise. The
prediction is therefore a mixture over networks s and widths c,

    p(y | x) = (1/M) sum_s sum_c w_c N(y; f_s(x), c^2 sigma_s^2),

whose weights w are those of the highest

    sum_n ln sum_c w_c p_c(y_n | x_n, others) + ``USUAL_ROWS`` ln w_1,

found by EM (``metrics.stacking_weights``). ``p_c(y_n | ..., others)`` is of networks that have not
learned from row n: draws of the posterior weighed by r_s ~ 1 / p(y_n | x_n, theta_s), each at most
sqrt(M) times their mean (truncated importance sampling, Ionides 2008). In the sample itself,
weights of narrow widths would be paid for by rows that were fitted closely.

Fewer than ``FEWEST_ROWS`` rows cannot say that. They do not even say how large the noise is: a
network that happens to come close to all of them has learned next to none. There the weights are
those by which noise of an uncertain width is Student's, of ``FREEDOM`` degrees for every row: a row
that lies far out is then unlikely, and no longer impossible.

The draws know nothing of it: the widths belong to predictions. Every network gets one of them, so
that of all networks a part w_c has the width c.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin.metrics import stacking_weights

if TYPE_CHECKING:
    from natural_langevin.posterior.posterior import Posterior

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
_GOLDEN = (math.sqrt(5) - 1) / 2


class Fitted(NamedTuple):
    """A weight of every width, and the nats that they gain on the rows, each left out."""

    weights: list[float]
    gain: float


def learn(posterior: Posterior, x: Tensor, y: Tensor) -> None:
    """The weights by the rows that a posterior with learned noise was sampled from, or as many of
    them as memory allows, into its configuration, from where predictions take them."""
    values = len(posterior.healthy) * posterior.draws * y[0].numel()  # of a row
    rows = min(len(x), MOST_ROWS, MOST_VALUES // max(1, values))
    if len(x) < FEWEST_ROWS:
        log.info(
            "noise by width: that of Student's law, of %g degrees of freedom", FREEDOM * len(x)
        )
        posterior.config |= {"noise_widths": of_few(len(x))}
    if rows < FEWEST_ROWS or not posterior.healthy:
        return
    outputs = posterior.predict(x[:rows], sharpness=1.0).samples
    assert outputs is not None
    variance = posterior.learned["variance"][posterior.healthy].repeat_interleave(posterior.draws)
    found = fit(outputs.cpu(), y[:rows].cpu(), variance.cpu())
    if found is not None:
        said = ", ".join(f"{w:.0%} of {c:g}" for c, w in zip(WIDTHS, found.weights, strict=True))
        log.info("noise by width: %s; %.3g nats on %d rows left out", said, found.gain, rows)
        posterior.config |= {"noise_widths": found.weights}


def of_few(rows: int) -> list[float]:
    """Weights of the widths c = sqrt(nu / X), X of the chi-squared law of nu = ``FREEDOM rows``
    degrees: each of ``WIDTHS`` stands for what is nearest to it, as a ratio.

    >>> [round(w, 2) for w in of_few(8)]
    [0.0, 0.0, 0.17, 0.47, 0.27, 0.07, 0.02]
    """
    freedom = torch.tensor(FREEDOM * rows, dtype=torch.float64)
    edges = torch.tensor([a * b for a, b in itertools.pairwise(WIDTHS)], dtype=torch.float64)
    below = torch.special.gammaincc(freedom / 2, freedom / (2 * edges))
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return [round(w, 4) for w in torch.cat([ends[:1], below, ends[1:]]).diff().tolist()]


def fit(outputs: Tensor, y: Tensor, variance: Tensor) -> Fitted | None:
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
    return Fitted([round(w, 4) for w in weights.tolist()], gain)


def by_width(outputs: Tensor, y: Tensor, variance: Tensor, log_weights: Tensor) -> Tensor:
    """ln of the density that networks, weighed by ``log_weights`` (network, row), give to every row
    with every width, (width, row). The others are ``fit``'s."""
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


def factors(weights: Any, chains: Sequence[int], draws: int) -> Tensor:
    """c^2 of every network of these chains, (network,): evenly mixed along every chain."""
    number = torch.cat([c * draws + torch.arange(1, draws + 1) for c in chains]).double()
    shares = torch.tensor(check_weights(weights), dtype=torch.float64).cumsum(0)
    which = torch.searchsorted(shares / shares[-1], (number * _GOLDEN) % 1)
    return torch.tensor(WIDTHS, dtype=torch.float64)[which.clamp_max(len(WIDTHS) - 1)].square()


def check_weights(value: Any) -> list[float]:
    """One number of at least 0 for every width, not all of them 0."""
    numbers = isinstance(value, list) and len(value) == len(WIDTHS)
    if not numbers or not all(isinstance(w, int | float) and 0 <= w < math.inf for w in value):
        raise ValueError(f"noise_widths must have {len(WIDTHS)} weights, got {value!r:.80}")
    if not sum(value) > 0:
        raise ValueError("noise_widths must have a weight that is not 0")
    return [float(w) for w in value]
