"""The unnormalised log posterior of weights that somebody gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from natural_langevin import priors
from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods import Likelihood, State
from natural_langevin.run.problem.problem import Problem


def of_problem(problem: Problem, weights: Mapping[str, Tensor]) -> Tensor:
    """See ``Langevin.log_density``; of a problem in other units than its user's, the prior is that
    of weights in these."""
    x, y, num_data = problem.rows()
    x, y = (t.to(problem.device) for t in (x, y))
    shapes = {k: p.shape for k, p in problem.network.trainable().items()}
    first = next(iter(problem.network.trainable().values()))
    learned = problem.likelihood.init(1, dtype=first.dtype, device=first.device)
    inside = weights if problem.units is None else problem.units.standard(weights)
    count = problem.first_power * num_data
    found = log_density(
        problem.network.call, problem.likelihood, problem.prior, shapes, inside, (x, y),
        learned={k: v[0] for k, v in learned.items()}, share=count / len(x),
    )  # fmt: skip
    return found if problem.units is None else found - count * problem.units.shift


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
