"""Special functions that torch does not have, from those that it has. All in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
        return t.masked_fill(t.abs() < 1e-300, 1e-300)

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


def poisson_cdf(count: Tensor, rate: Tensor) -> Tensor:
    """P(Y <= count) = Q(floor(count) + 1, rate), the upper incomplete gamma function."""
    y = count.floor()
    return torch.special.gammaincc(y.clamp_min(0) + 1, rate).where(y >= 0, 0.0)


def gamma_quantile(shape: float | Tensor, u: Tensor) -> Tensor:
    """Quantile of Gamma(shape, rate 1) at uniform draws, without a gradient."""
    u = u.detach().double()
    a = torch.as_tensor(shape, dtype=torch.float64, device=u.device).detach()
    return _gamma_quantile(*torch.broadcast_tensors(a, u))


def poisson_quantile(rate: Tensor, u: Tensor) -> Tensor:
    """The smallest count whose cumulative probability reaches ``u``, without a gradient; counts
    beyond 2^31 are not reached."""
    return _poisson_quantile(*torch.broadcast_tensors(rate.detach().double(), u.detach().double()))


def _opaque(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A loop over elementwise operations as one operator: a compiler that unrolls it would take
    minutes. Both arguments have one shape, which is the result's."""
    name = f"natural_langevin::{function.__name__.strip('_')}"
    operator = torch.library.custom_op(name, function, mutates_args=())
    operator.register_fake(lambda a, b: torch.empty_like(b))

    def batched(info: Any, dims: tuple[int | None, ...], *values: Tensor) -> tuple[Tensor, int]:
        first = [
            v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
            for v, d in zip(values, dims, strict=True)
        ]
        return operator(*first), 0

    operator.register_vmap(batched)
    return operator


def _gamma_bisection(a: Tensor, u: Tensor) -> Tensor:
    low, high = torch.full_like(u, -80.0), torch.log(a + 40.0 * (1 + a.sqrt())) + 5.0
    for _ in range(80):  # on the logarithm of the quantile, whose range is huge for small shapes
        middle = (low + high) / 2
        below = torch.special.gammainc(a, middle.exp()) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return ((low + high) / 2).exp().clamp_min(1e-12)


def _poisson_bisection(rate: Tensor, u: Tensor) -> Tensor:
    low, high = torch.full_like(u, -1.0), torch.full_like(u, 2.0**31 - 1)
    for _ in range(31):
        middle = ((low + high) / 2).floor()
        below = poisson_cdf(middle, rate) < u
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


_gamma_quantile, _poisson_quantile = _opaque(_gamma_bisection), _opaque(_poisson_bisection)


def beta_quantile(a: float | Tensor, b: float | Tensor, u: Tensor) -> Tensor:
    """Quantile of Beta(a, b): a ratio of gammas would need two uniforms; this needs one.

    By Newton's method, and by bisection wherever that would leave what is known to hold it."""
    u = u.double()
    alpha, beta = (torch.as_tensor(v, dtype=torch.float64, device=u.device) for v in (a, b))
    alpha, beta, u = torch.broadcast_tensors(alpha, beta, u)
    constant = torch.lgamma(alpha + beta) - torch.lgamma(alpha) - torch.lgamma(beta)
    low, high, x = torch.zeros_like(u), torch.ones_like(u), alpha / (alpha + beta)
    for _ in range(60):
        off = incomplete_beta(alpha, beta, x) - u
        low, high = torch.where(off < 0, x, low), torch.where(off < 0, high, x)
        density = torch.xlogy(alpha - 1, x) + torch.special.xlog1py(beta - 1, -x) + constant
        new = x - off * (-density).exp()
        new = torch.where((new > low) & (new < high), new, (low + high) / 2)
        x, step = new, (new - x).abs()
        if bool((step <= 1e-15 * x).all()):
            break
    return x.clamp(math.ulp(0.5), 1 - math.ulp(0.5))
