"""The gradient of the energy, by the most direct route: autograd of the densities themselves.

    v = d/d theta [ (1/B) sum_n -ln p(y_n | x_n) - (1/N) ln alpha(theta) ],

N times the power of the likelihood, one value per chain, where it has one.

It shares nothing with the dynamics but the network, the likelihood's log-loss and the prior's log
density: no hooks, no hand-written gradients. It serves as a reference for the dynamics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.func import vmap

from natural_langevin._internal.chains import Params, number_or_chains
from natural_langevin._internal.light_autograd import grad
from natural_langevin.likelihoods import Likelihood
from natural_langevin.priors import Prior

Call = Callable[[Params, Tensor], Any]


def energy_gradient(
    call: Call,
    likelihood: Likelihood,
    prior: Mapping[str, Prior],
    num_data: float | Tensor,
    params: Params,
    learned: dict[str, Tensor],
    batch: tuple[Tensor, Tensor],
    *,
    chain_axis: bool,
) -> Params:
    """The gradient of energy / N on one batch for every chain, {name: (chain, *shape)};
    ``learned`` is the likelihood's state."""

    def mean_loss(p: Params, state: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return likelihood.log_loss(call(p, x), y, state).mean()

    data = 0 if chain_axis else None
    slope = vmap(grad(mean_loss), in_dims=(0, 0, data, data))(params, learned, *batch)

    def log_prior(p: Params) -> Tensor:  # chains are independent, so their sum separates
        return sum(prior[k].log_density(p[k]).sum() for k in p)  # type: ignore[return-value]

    pull = grad(log_prior)(params)
    return {k: slope[k] - pull[k] / number_or_chains(num_data, p) for k, p in params.items()}
