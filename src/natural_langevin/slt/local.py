"""Where a local learning coefficient is local: a Gaussian prior around the weights of a network.

Every tensor's variance is the mean square of its values over gamma, so that the prior knows how
large weights are by themselves. A layer that is multiplied by c, while the next one is divided by
it, has a prior that is c times as wide: network, prior and Fisher metric change together, and the
coefficient does not.
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
    variances = {k: v / gamma for k, v in priors.mean_squares(found).items()}
    several = len(next(iter(found.values()))) > 1
    return priors.around(
        weights, variance={k: v if several else float(v[0]) for k, v in variances.items()}
    )
