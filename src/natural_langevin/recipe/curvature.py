"""The largest curvature of the posterior in the metric, which limits the step size.

U = (1/N) times the negative log posterior has the Hessian H; in the coordinates in which a step's
noise is white, theta = A z with C = A A^T, it is A^T H A. Its largest eigenvalue lambda is found by
Lanczos iteration on Hessian-vector products (one graph of the gradient, differentiated again), on
some of the data. A metric equal to H would have lambda = 1; cheap metrics leave out correlations,
and lambda is then 10 to 1,000. Integrators with momentum are stable while eta lambda < 4, and their
bias in that direction falls with (eta lambda)^2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from natural_langevin._internal.chains import Params, dot
from natural_langevin._internal.light_autograd import autograd_grad
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.run.time_limit import NO_LIMIT, TimeLimit

#: Weights of a layer up to which all chains go through the network in one call.
SMALL = 1 << 16


def steepest(
    dynamics: LangevinDynamics,
    state: State,
    data: tuple[Tensor, Tensor],
    num_data: float,
    iterations: int,
    limit: TimeLimit = NO_LIMIT,
) -> Tensor:
    """lambda of every chain, (chain,), at ``state``'s parameters and metric, by so many Lanczos
    iterations, or the three that are the least when the time is over."""
    apply = curvature_products(dynamics, state, data, num_data)
    z, length = _unit(dynamics.standard_normal(state.params, state.step))
    before = {k: torch.zeros_like(v) for k, v in z.items()}
    diagonal, beside = [], [torch.zeros_like(length)]
    for done in range(iterations):
        if done > 2 and not limit.allows(0.0):
            break
        w = apply(z)
        diagonal.append(dot(z, w))
        z, before = _minus(_minus(w, z, diagonal[-1]), before, beside[-1]), z
        z, length = _unit(z)
        beside.append(length)
    return _largest(torch.stack(diagonal, 1), torch.stack(beside[1:-1], 1))


def curvature_products(
    dynamics: LangevinDynamics, state: State, data: tuple[Tensor, Tensor], num_data: float
) -> Callable[[Params], Params]:
    """z -> A^T H A z, for every chain its own.

    One product is enough for all chains: the Hessian of the sum of their energies is block
    diagonal."""
    x, y = data
    network, likelihood = dynamics.gradients.network, dynamics.gradients.likelihood
    factor = dynamics.factor(state.metric, state.params, num_data)

    def loss(own: Params, learned: Params) -> Tensor:
        outputs = network.call(own, x.clone())  # a network may work on its inputs in place
        return likelihood.log_loss(outputs, y, learned).mean()

    theta = {k: p.detach().requires_grad_() for k, p in state.params.items()}

    def slope_of(*, at_once: bool) -> tuple[Tensor, ...]:
        """The gradient of all chains' energies, with its graph."""
        with torch.enable_grad():
            priors = [dynamics.prior[k].log_density(p) for k, p in theta.items()]
            total = -(torch.stack(priors).sum(0) / dynamics.weight(num_data)).sum()
            if at_once:
                total = total + vmap(loss)(theta, state.likelihood).sum()
            for chain in () if at_once else range(state.chains):
                own = {k: p[chain] for k, p in theta.items()}
                total = total + loss(own, {k: v[chain] for k, v in state.likelihood.items()})
            return autograd_grad(total, list(theta.values()), create_graph=True)

    # Of small layers operator calls are what is paid for; convolutions in groups are slow.
    small = all(p.ndim <= 3 and p[0].numel() <= SMALL for p in theta.values())
    try:
        slope = slope_of(at_once=small)
    except RuntimeError:  # what vmap cannot take, or memory
        slope = slope_of(at_once=False)

    def apply(z: Params) -> Params:
        moved = factor.forward(z)
        bent = autograd_grad(
            slope, list(theta.values()), [moved[k] for k in theta], retain_graph=True
        )
        return factor.transpose(dict(zip(theta, bent, strict=True)))

    return apply


def _largest(diagonal: Tensor, beside: Tensor) -> Tensor:
    """The eigenvalue of largest size of symmetric tridiagonal matrices, (chain,): their diagonals
    (chain, n) and what stands beside these, (chain, n - 1). NaN where anything is not finite."""
    matrix = torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
    fine = torch.isfinite(matrix).flatten(1).all(1)
    found = torch.linalg.eigvalsh(matrix.double().cpu().nan_to_num(0.0, 0.0, 0.0)).abs().amax(1)
    return torch.where(fine, found.to(diagonal), torch.nan)


def _minus(a: Params, b: Params, factor: Tensor) -> Params:
    """a - factor b, chain by chain."""
    return {k: v - factor.reshape(-1, *(1,) * (v.ndim - 1)) * b[k] for k, v in a.items()}


def _unit(tree: Params) -> tuple[Params, Tensor]:
    """Every chain's vector at length 1, and the lengths that they had: (chain,)."""
    squares = sum(v.reshape(len(v), -1).square().sum(1) for v in tree.values())
    length = torch.as_tensor(squares).sqrt()
    scale = length.clamp_min(1e-30).reciprocal()
    return {k: v * scale.reshape(-1, *(1,) * (v.ndim - 1)) for k, v in tree.items()}, length
