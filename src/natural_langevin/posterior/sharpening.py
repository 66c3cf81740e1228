"""Sharpness: one number that makes a mixture over networks more or less confident.

With m(x) the mean class probabilities of M networks, p_s(x) those of network s, and beta the
sharpness, the prediction is

    q_c = m_c^beta / sum_k m_k^beta.

beta > 1 is more confident. The order of classes, and so the accuracy, stays the same. All networks
get the same shift u(x) of their log-probabilities,

    p'_sc = p_sc e^(u_c) / sum_k p_sk e^(u_k),      (1/M) sum_s p'_s = q,

so that the prediction is still the mean of its networks, and entropies divide into aleatoric and
epistemic parts. u minimises the convex function

    F(u) = (1/M) sum_s ln sum_c p_sc e^(u_c) - q . u,
    gradient  mean_s p'_s - q,   Hessian  H = mean_s (diag p'_s - p'_s p'_s^T),

by Newton's method. F is a mean of log-sum-exps, whose Hessian changes by at most a factor e^r along
a step of range r = max Delta - min Delta: the step t Delta, t = ln(1 + r) / r, goes downhill all
the way, without a line search, and t -> 1. H Delta = -gradient is solved by conjugate gradients,
which leave that true: a product with H is two with the matrix p, and no (class, class) matrix is
ever built.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution

from natural_langevin.likelihoods import Likelihood, State
from natural_langevin.likelihoods.predictive import (
    NetworkPredictions,
    log_probabilities,
    predicted_by,
)
from natural_langevin.posterior.calibration import contracted

#: Largest |mean_s p'_s - q| that is left, and the most steps of Newton's method. Networks that are
#: one-hot to rounding cannot be moved: inputs with more than ``GIVEN_UP`` left are not sharpened.
TOLERANCE, STEPS, GIVEN_UP = 1e-10, 100, 1e-6
#: Products with H in a step at most, and when they are enough: at this part of the first residual.
PRODUCTS, ENOUGH = 24, 1e-3
#: In an exported file nothing can depend on the numbers: steps and products of every input, and
#: what may be left.
SERVED_STEPS, SERVED_PRODUCTS, SERVED_GIVEN_UP = 9, 4, 1e-2
#: Added to H in units of its diagonal: differences of ones are rounded.
_RIDGE = 1e-14
#: Smaller probabilities, and sums of them, count as this.
_LEAST = 1e-200
#: Of the mean, far below ``TOLERANCE``.
_FAR = 1e-40
#: In place of both in an exported file: constants of ONNX are float32, where they are zero.
_SERVED_LEAST = 1e-37
#: Probabilities in float64 at once, of which a GPU wants many.
_VALUES, _GPU_VALUES = 1 << 21, 1 << 26


def together(
    likelihood: Likelihood,
    outputs: Tensor,
    state: State,
    sharpness: float,
    spread: float,
    *,
    served: bool = False,
) -> tuple[NetworkPredictions, Tensor]:
    """What all networks say as one, by their outputs (network, B, ...): nearer to their mean by the
    ``spread`` (see ``calibration``), or sharpened; and what was sharpened, log-probabilities, or
    the outputs."""
    if spread != 1:
        outputs = contracted(outputs, spread)
    if spread != 1 or sharpness == 1:
        return predicted_by(likelihood, outputs, state), outputs
    found = log_probabilities(likelihood, outputs, state)
    if found is None:
        raise TypeError(
            f"sharpness={sharpness:g} is for class probabilities, and "
            f"{type(likelihood).__name__} predicts numbers: leave it at 1"
        )
    return sharpened(*found, sharpness, served=served), found[0]


def sharper(mean: Tensor, sharpness: float, least: float = _LEAST) -> Tensor:
    """ln q of mean probabilities m (..., K), in float64."""
    return (sharpness * mean.double().clamp_min(least).log()).log_softmax(-1)


def moves(parts: Tensor, sharpness: float) -> Tensor:
    """How ln q moves with means p_a (..., K) over parts of the networks, (chain, part, ..., K):

    beta (p_ac / m_c - sum_k q_k p_ak / m_k),    m the mean over parts.
    """
    mean = parts.flatten(0, 1).mean(0).clamp_min(_LEAST)
    ratio, q = parts / mean, sharper(mean, sharpness).exp()
    return sharpness * (ratio - (q * ratio).sum(-1, keepdim=True))


def sharpened(
    log_p: Tensor, classes: type[Distribution], sharpness: float, *, served: bool = False
) -> NetworkPredictions:
    """What M networks say together with log-probabilities (M, B, ..., K), after the shift that
    sharpens their mean. ``served``: in a fixed number of operations, for an exported file."""
    flat = log_p.flatten(1, -2).permute(1, 2, 0)  # (n, K, M): long rows are quick to multiply
    values = _VALUES if log_p.device.type == "cpu" else _GPU_VALUES
    size = max(1, values // math.prod(flat.shape[1:]))
    parts = [flat] if served else flat.split(size)
    found = [_shifted(part.contiguous().double().exp(), sharpness, served=served) for part in parts]
    p = torch.cat(found).permute(2, 0, 1).reshape(log_p.shape).to(log_p.dtype)
    spread = torch.special.entr(p).sum(-1)
    return NetworkPredictions(p[..., 1] if classes is Bernoulli else p, spread, classes)


def _shifted(p: Tensor, sharpness: float, *, served: bool) -> Tensor:
    """p' of p (n, K, M)."""
    mean, least = p.mean(-1), _SERVED_LEAST if served else _LEAST
    log_q = sharper(mean, sharpness, least)
    u = log_q - mean.clamp_min(least).log()  # exact where all networks say the same
    if served:
        for _ in range(SERVED_STEPS):
            u, residual = _newton(p, log_q.exp(), u, served=True)
        u = torch.where(residual.unsqueeze(-1) > SERVED_GIVEN_UP, 0.0, u)
    else:
        u = _solved(p, log_q.exp(), u)
    shifted = p * _factors(u).unsqueeze(-1)
    return shifted / shifted.sum(1, keepdim=True).clamp_min(least)


def _solved(p: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """u of every input, from a first guess; those that have arrived are left alone."""
    u, rows = u.clone(), torch.arange(len(p), device=p.device)
    for step in range(STEPS):
        stepped, residual = _newton(p, q, u[rows])
        away = ~(residual <= (TOLERANCE if step < STEPS - 1 else GIVEN_UP))
        if not bool(away.any()):
            return u
        if not bool(away.all()):
            p, q, rows, stepped = p[away], q[away], rows[away], stepped[away]
        u[rows] = stepped
    u[rows] = 0.0
    return u


def _factors(u: Tensor) -> Tensor:
    """e^u, of which only ratios count."""
    return (u - u.amax(-1, keepdim=True)).exp()


def _newton(p: Tensor, q: Tensor, u: Tensor, *, served: bool = False) -> tuple[Tensor, Tensor]:
    """u after a step, and the largest |mean p' - q| before it, (n,)."""
    b, count = _factors(u), p.shape[-1]
    least, far = (_SERVED_LEAST, _SERVED_LEAST) if served else (_LEAST, _FAR)
    z = (b.unsqueeze(1) @ p).clamp_min(least)  # (n, 1, M)
    mean = b * (p @ z.reciprocal().mT).squeeze(-1) / count
    scale = mean + far  # classes that nobody speaks of stay where they are

    def times(v: Tensor) -> Tensor:
        of_each = (b * v).unsqueeze(1) @ p / z  # p'_s . v
        return mean * v - b * (p @ (of_each / z).mT).squeeze(-1) / count + _RIDGE * scale * v

    step, left = torch.zeros_like(u), q - mean
    direction = left / scale
    size = first = (left * direction).sum(-1, keepdim=True)
    for _ in range(min(u.shape[-1] - 1, SERVED_PRODUCTS if served else PRODUCTS)):
        product = times(direction)
        floor = _RIDGE * (scale * direction.square()).sum(-1, keepdim=True)
        curved = (direction * product).sum(-1, keepdim=True).maximum(floor).clamp_min(least)
        step = step + size / curved * direction
        left = left - size / curved * product
        before, size = size, (left.square() / scale).sum(-1, keepdim=True)
        direction = left / scale + size / before.clamp_min(least) * direction
        if not served and bool((size <= ENOUGH**2 * first).all()):
            break
    reach = step.amax(-1, keepdim=True) - step.amin(-1, keepdim=True)
    damped = torch.where(reach > 1e-6, reach.log1p() / reach.clamp_min(1e-6), 1.0)
    return u + damped * step, (mean - q).abs().amax(-1)
