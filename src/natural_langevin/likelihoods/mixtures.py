"""Mixtures of Gaussians with equal weights: what an ensemble of regression networks predicts.

Every network says y ~ N(mean, variance); averaging the networks' *densities* gives

    p(y) = (1/M) sum_m N(y; mean_m, variance_m).

``means`` is (network, ...), any shape after the first axis; ``variance`` broadcasts against it: a
number, (network, 1, ...), or the full shape. Everything is computed in float64, componentwise.
(torch's ``MixtureSameFamily`` has no quantiles.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: Most steps of the search for a quantile; each halves either its bracket or its last step.
_SEARCH = 180
#: The search ends when no quantile moves by more than this, in probability and relative to itself.
_PRECISION = 1e-11
#: Numbers that a search for quantiles goes over again and again: they stay in a CPU's cache.
_IN_CACHE = 1 << 18
#: Numbers held at once by the sums of ``crps``.
_AT_ONCE = 1 << 20
_ROOT = math.sqrt(2 * math.pi)
#: Of ``spread``'s quadrature: its step, and how far it goes beyond all means, both in the smallest
#: (every) standard deviation. F is a sum of Gaussians' integrals, so F (1 - F) has a spectrum that
#: falls like exp(-(omega sigma)^2 / 4), and the trapezoidal rule's error is exp(-(pi / step)^2).
_STEP, _REACH = 0.6, 8.0


def log_density(y: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """ln p(y), the shape of ``y``.

    >>> one = torch.tensor([0.0])
    >>> round(float(log_density(one, torch.zeros(3, 1), torch.tensor(1.0))), 4)
    -0.9189
    """
    means, variance = means.double(), variance.double()
    terms = -0.5 * ((y.double() - means).square() / variance + torch.log(2 * math.pi * variance))
    return torch.logsumexp(terms, dim=0) - math.log(len(means))


def cdf(y: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """P(Y <= y), the shape of ``y``."""
    z = (y.double() - means.double()) / variance.double().sqrt()
    return torch.special.ndtr(z).mean(0)


def quantile(level: float, means: Tensor, variance: Tensor) -> Tensor:
    """y with P(Y <= y) = level: the shape of one mean.

    The mixture's quantile lies between the smallest and the largest of its components'.

    >>> middle = quantile(0.5, torch.tensor([[-1.0], [1.0]]), torch.tensor(0.1))
    >>> bool(middle.abs() < 1e-9)
    True
    """
    check_level(level)
    scale = variance.double().sqrt().expand_as(means)
    parts = 1 if means.is_cuda else math.ceil(means.numel() / _IN_CACHE)
    if parts == 1 or means.ndim == 1:
        return _quantile(level, means.double(), scale)
    pairs = zip(means.chunk(parts, 1), scale.chunk(parts, 1), strict=True)
    return torch.cat([_quantile(level, m.double(), s) for m, s in pairs])


def _quantile(level: float, means: Tensor, scale: Tensor) -> Tensor:
    z = torch.special.ndtri(torch.tensor(level, dtype=torch.float64, device=means.device))
    of_components = means + z * scale
    whole = (scale.square().mean(0) + means.var(0, correction=0)).sqrt()
    return search(
        lambda y: torch.special.ndtr((y - means) / scale).mean(0),
        lambda y: (torch.exp(-0.5 * ((y - means) / scale).square()) / scale).mean(0) / _ROOT,
        level,
        of_components.amin(0),
        of_components.amax(0),
        start=means.mean(0) + z * whole,
    )


def search(
    cdf: Callable[[Tensor], Tensor],
    density: Callable[[Tensor], Tensor],
    level: float | Tensor,
    low: Tensor,
    high: Tensor,
    *,
    start: Tensor | None = None,
) -> Tensor:
    """y with cdf(y) = level, between ``low`` and ``high``, for all components at once, from
    ``start`` where that lies between them too.

    Newton's steps are taken where they stay inside what is left of the bracket and shrink fast
    enough; elsewhere (mixtures with gaps) the bracket is halved."""
    y, last = (low + high) / 2, high - low
    if start is not None:
        y = torch.minimum(torch.maximum(start, low), high)
    for _ in range(_SEARCH):
        excess = cdf(y) - level
        low, high = torch.where(excess < 0, y, low), torch.where(excess < 0, high, y)
        slope = density(y)
        newton = y - excess / slope
        step = (newton - y).abs()
        # Rounding may make the last steps longer again: they are no reason to begin anew.
        arrived = (step * slope <= _PRECISION) & (step <= _PRECISION * (1 + y.abs()))
        inside = (newton >= low) & (newton <= high)
        fast = inside & ((step <= last / 2) | arrived)
        moved = torch.where(fast, newton, (low + high) / 2)
        y, last = moved, (moved - y).abs()
        if bool((last * slope <= _PRECISION).all() & (last <= _PRECISION * (1 + y.abs())).all()):
            break
    return y


def crps(y: Tensor, means: Tensor, variance: Tensor) -> Tensor:
    """Continuous ranked probability score, integral of (P(Y <= t) - 1[y <= t])^2 dt.

    In the units of y; of a point prediction it is the absolute error. It is

        mean_m A(y - mean_m, variance_m) - E|Y - Y'| / 2,
        A(d, v) = E|d + sqrt(v) z| = 2 sqrt(v) phi(d / sqrt(v)) + d (2 Phi(d / sqrt(v)) - 1),

    with two independent Y, Y' of the mixture (Grimit et al. 2006; see ``spread``).
    """
    means = means.double()
    variance = variance.double().expand_as(means)
    return _mean_absolute(y.double() - means, variance).mean(0) - spread(means, variance)


def spread(means: Tensor, variance: Tensor) -> Tensor:
    """E|Y - Y'| / 2 of two independent draws of the mixture, the shape of one mean.

    The closed form, half of mean_mk A(mean_m - mean_k, variance_m + variance_k), takes the square
    of the number of networks. The integral of F(t) (1 - F(t)) dt is the same number, and a few
    nodes per standard deviation give it to rounding: it is taken where that is less work."""
    means = means.double()
    variance = variance.double().expand_as(means)
    scale = variance.sqrt()
    low, high = (means - _REACH * scale).amin(0), (means + _REACH * scale).amax(0)
    wanted = (high - low) / (_STEP * scale.amin(0))
    nodes = float(wanted.max().nan_to_num(math.inf)) if wanted.numel() else 0.0
    if nodes < len(means):
        return _by_quadrature(means, variance, low, high, math.ceil(nodes) + 1)
    found = torch.zeros_like(low)
    chunk = max(1, _AT_ONCE // means.numel())
    for start in range(0, len(means), chunk):
        m, v = means[start : start + chunk, None], variance[start : start + chunk, None]
        found += _mean_absolute(m - means, v + variance).sum((0, 1))
    return 0.5 * found / len(means) ** 2


def _by_quadrature(
    means: Tensor, variance: Tensor, low: Tensor, high: Tensor, nodes: int
) -> Tensor:
    """The trapezoidal rule for F (1 - F), which is zero at both ends."""
    step, found = (high - low) / max(1, nodes - 1), torch.zeros_like(low)
    chunk = max(1, _AT_ONCE // max(1, means.numel()))
    for numbers in torch.arange(nodes, device=means.device).split(chunk):
        t = low + step * numbers.reshape(-1, *(1,) * low.ndim)
        z = (t[:, None] - means) / variance.sqrt()
        below = torch.special.ndtr(z).mean(1)
        found += (below * (1 - below)).sum(0)
    return step * found


def _mean_absolute(d: Tensor, variance: Tensor) -> Tensor:
    """E|d + sqrt(variance) z| for a standard normal z; |d| where the variance is zero."""
    scale = variance.sqrt()
    z = d / scale.clamp_min(torch.finfo(torch.float64).tiny)
    density = torch.exp(-0.5 * z.square()) / _ROOT
    return 2 * scale * density + d * torch.special.erf(z / math.sqrt(2))


def check_level(level: float) -> float:
    """A probability strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"a quantile's level must lie strictly between 0 and 1, got {level!r}")
    return float(level)
