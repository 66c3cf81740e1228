"""The localising prior of a learning coefficient: a Gaussian around the weights of a network.

Every tensor's variance is the mean square of its values over gamma, so that the prior scales with
the weights. If a layer is multiplied by c and the next divided by c, its prior becomes c times as
wide: network, prior and Fisher metric change together, and the coefficient stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from natural_langevin import priors
from natural_langevin._internal.given_weights import Weights, weights_of


def localised(
    weights: Weights | Sequence[Weights], *, gamma: float = 1.0
) -> dict[str, priors.Prior]:
    """N(w*, s^2 / gamma) for every parameter, s^2 the mean square of its values
    (``priors.mean_squares``);
    of a list of networks, one per chain, every chain's own.

    ``priors.around(model, variance=1 / gamma)`` is that of Lau et al. (2023), the same for all
    weights.

    >>> from torch import nn
    >>> prior = localised(nn.Linear(100, 3), gamma=2.0)
    >>> sorted(prior)
    ['bias', 'weight']
    """
    if not (math.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma must be positive and finite, got {gamma!r}")
    found = weights_of(weights)
    variances = {k: v / gamma for k, v in priors.mean_squares(found).items()}
    several = len(next(iter(found.values()))) > 1
    return priors.around(
        weights, variance={k: v if several else float(v[0]) for k, v in variances.items()}
    )
