"""Special functions that torch does not have, from those that it has. All in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Most terms of the continued fraction; about sqrt(max(a, b)) are needed.
_TERMS = 2000


def incomplete_beta(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """I_x(a, b), regularised: the probability below x under Beta(a, b). Arguments broadcast.

    By its continued fraction (Abramowitz & Stegun 26.5.8), evaluated by Lentz's method, on the
    side of the mean where it converges fast.

    >>> one, x = torch.ones(1), torch.tensor([0.3])
    >>> bool((incomplete_beta(one, one, x) - x).abs() < 1e-7)
    True
    """
    a, b, x = torch.broadcast_tensors(a.double(), b.double(), x.double())
    swap = x > (a + 1) / (a + b + 2)
    p, q = torch.where(swap, b, a), torch.where(swap, a, b)
    z = torch.where(swap, 1 - x, x).clamp(0, 1)
    front = torch.xlogy(p, z) + torch.special.xlog1py(q, -z) - p.log()
    front = (front + torch.lgamma(p + q) - torch.lgamma(p) - torch.lgamma(q)).exp()
    value = front / _continued_fraction(p, q, z)
    return torch.where(swap, 1 - value, value)


def _continued_fraction(p: Tensor, q: Tensor, z: Tensor) -> Tensor:
    """1 + d_1 / (1 + d_2 / (1 + ...)), d_2m and d_2m+1 as functions of m."""

    def kept_from_zero(t: Tensor) -> Tensor:
        return torch.where(t.abs() < 1e-300, torch.full_like(t, 1e-300), t)

    c, d, f = torch.ones_like(z), torch.zeros_like(z), torch.ones_like(z)
    for j in range(1, _TERMS):
        m = j // 2
        if j % 2:
            term = -(p + m) * (p + q + m) * z / ((p + 2 * m) * (p + 2 * m + 1))
        else:
            term = m * (q - m) * z / ((p + 2 * m - 1) * (p + 2 * m))
        d = 1 / kept_from_zero(1 + term * d)
        c = kept_from_zero(1 + term / c)
        f = f * c * d
        if j % 8 == 0 and bool(((c * d - 1).abs() < 1e-14).all()):
            break
    return f


def gamma_quantile(shape: float | Tensor, u: Tensor) -> Tensor:
    """Quantile of Gamma(shape, rate 1): bisection on the incomplete gamma function, a fixed number
    of steps, so that it runs under ``vmap`` and inside a compiled step."""
    u = u.double()
    a = torch.as_tensor(shape, dtype=torch.float64, device=u.device).expand_as(u)
    low, high = torch.full_like(u, -80.0), torch.log(a + 40.0 * (1 + a.sqrt())) + 5.0
    for _ in range(80):  # on the logarithm of the quantile, whose range is huge for small shapes
        middle = (low + high) / 2
        below = torch.special.gammainc(a, middle.exp()) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return ((low + high) / 2).exp().clamp_min(1e-12)


def beta_quantile(a: float | Tensor, b: float | Tensor, u: Tensor) -> Tensor:
    """Quantile of Beta(a, b): a ratio of gammas would need two uniforms; bisection needs one."""
    u = u.double()
    alpha, beta = (torch.as_tensor(v, dtype=torch.float64, device=u.device) for v in (a, b))
    low, high = torch.zeros_like(u), torch.ones_like(u)
    for _ in range(60):
        middle = (low + high) / 2
        below = incomplete_beta(alpha, beta, middle) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return ((low + high) / 2).clamp(math.ulp(0.5), 1 - math.ulp(0.5))
