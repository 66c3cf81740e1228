"""The unnormalised log posterior of weights that somebody gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from natural_langevin import priors
from natural_langevin.likelihoods import Likelihood, State
from natural_langevin.types import Params


def of_sampler(sampler: Any, weights: Mapping[str, Tensor], data: Any) -> Tensor:
    """See ``Langevin.log_density``; ``sampler`` is one, whose own module imports this one."""
    x, y = (t.to(sampler.device) for t in sampler.signature.split(data))
    state = sampler.init()
    first = {k: v[0] for k, v in state.likelihood.items()}
    shapes = {k: p.shape[1:] for k, p in state.params.items()}
    return log_density(
        sampler._dynamics.gradients.network.call, sampler.likelihood, sampler._prior, shapes,
        weights, (x, y), learned=first,
        share=first_power(sampler) * (sampler.num_data or len(x)) / len(x),
    )  # fmt: skip


def first_power(sampler: Any) -> float:
    """The power of the likelihood of the sampler's first chain."""
    return 1.0 if sampler._power is None else float(sampler._power[0])


def log_density(
    call: Callable[[Params, Tensor], Any],
    likelihood: Likelihood,
    prior: Mapping[str, priors.Prior],
    shapes: Mapping[str, torch.Size],
    weights: Mapping[str, Tensor],
    data: tuple[Tensor, Tensor],
    *,
    learned: State,
    share: float,
) -> Tensor:
    """ln alpha(theta) + share sum_n ln p(y_n | x_n, theta), in nats, with the first chain's prior:
    a number for ``weights`` (*shape), one each for (K, *shape). ``learned``: the likelihood's
    state."""
    if set(weights) != set(shapes):
        raise ValueError(f"weights must hold exactly {sorted(shapes)}, got {sorted(weights)}")
    extra = {weights[k].ndim - len(shape) for k, shape in shapes.items()}
    fits = all(weights[k].shape[weights[k].ndim - len(s) :] == s for k, s in shapes.items())
    if len(extra) > 1 or extra - {0, 1} or not fits:
        wanted = {k: tuple(s) for k, s in shapes.items()}
        got = {k: tuple(w.shape) for k, w in weights.items()}
        raise ValueError(
            f"weights must have the shapes {wanted}, each with the same leading axis or none, got "
            f"{got}"
        )
    (x, y), one = data, extra == {0}
    theta = {k: w[None] if one else w for k, w in weights.items()}
    count = len(next(iter(theta.values())))
    firsts = priors.of_chains(prior, torch.zeros(count, dtype=torch.long))
    rows = []
    for row in range(count):
        outputs = call({k: w[row] for k, w in theta.items()}, x.clone())
        rows.append(-share * likelihood.log_loss(outputs, y, learned).sum())
    total = torch.stack([firsts[k].log_density(w) for k, w in theta.items()]).sum(0)
    found = torch.stack(rows) + total
    return found[0] if one else found
