"""Where a local learning coefficient is local: a Gaussian prior around the weights of a network.

Every tensor's variance is the mean square of its values over gamma, so that the prior knows how
large weights are by themselves. A layer that is multiplied by c, while the next one is divided by
it, has a prior that is c times as wide: network, prior and Fisher metric change together, and the
coefficient does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from natural_langevin import priors
from natural_langevin._internal.given_weights import Weights, weights_of
from natural_langevin.types import Params


def localised(
    weights: Weights | Sequence[Weights], *, gamma: float = 1.0
) -> dict[str, priors.Prior]:
    """N(w*, s^2 / gamma) for every parameter, s^2 the mean square of its values (``mean_squares``);
    of a list of networks, one per chain, every chain's own.

    ``priors.around(model, variance=1 / gamma)`` is the one of Lau et al. (2023), the same for all
    weights whatever their size.

    >>> from torch import nn
    >>> prior = localised(nn.Linear(100, 3), gamma=2.0)
    >>> sorted(prior)
    ['bias', 'weight']
    """
    if not (math.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma must be positive and finite, got {gamma!r}")
    found = weights_of(weights)
    variances = {k: v / gamma for k, v in mean_squares(found).items()}
    several = len(next(iter(found.values()))) > 1
    return priors.around(
        weights, variance={k: v if several else float(v[0]) for k, v in variances.items()}
    )


def mean_squares(weights: Params) -> dict[str, Tensor]:
    """By parameter, the mean square of its values: (chain,), float64. Zeros alone, as biases may
    be, have that of their module's matrices, or the mean of all others'."""
    found = {k: v.double().reshape(len(v), -1).square().mean(1) for k, v in weights.items()}
    positive = {k: s for k, s in found.items() if bool((s > 0).all())}
    one = torch.ones(1, dtype=torch.float64)
    usual = torch.stack(list(positive.values())).mean(0) if positive else one
    matrices = {k.rpartition(".")[0]: s for k, s in positive.items() if weights[k].ndim > 2}
    return {
        name: torch.where(s > 0, s, matrices.get(name.rpartition(".")[0], usual.to(s)))
        for name, s in found.items()
    }
