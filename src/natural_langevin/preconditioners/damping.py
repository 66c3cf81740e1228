"""Damping: epsilon in C = (J + epsilon)^{-1}, from the prior.

J is the data's curvature per datum. The posterior's is J plus the prior's share,

    epsilon = precision / N,        precision = 1 / variance of a Gaussian prior,

so with this epsilon, the default ``damping="prior"``, C has the scale of the posterior: a direction
without data moves as under the prior alone, at the rate eta for any N and variance (the paper's
1e-4 fits N = 60,000 and variance 0.1). It is a number per parameter tensor, or one per chain if the
prior's variance is. Drift and noise use the same epsilon.

Limits: every prior has a ``precision``, its typical curvature per weight, which for other priors
than the Gaussian is a constant in place of a curvature that depends on theta. Damping need not be
exact: it changes how fast a direction is sampled, never the target. A flat prior has no curvature,
and C would be infinite for directions without data: ``FLAT_DAMPING`` is used instead. RMSProp,
whose C^{-1} is (D + epsilon)^{1/2}, takes the square, so that C has the same limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from natural_langevin.preconditioners.base import Preconditioner
from natural_langevin.priors import Prior

#: Curvature per datum that stands in for that of a flat prior: the paper's epsilon.
FLAT_DAMPING = 1e-4


def resolve_damping(
    preconditioner: Preconditioner, priors: Mapping[str, Prior], num_data: float | Tensor
) -> dict[str, float | Tensor]:
    """epsilon of every parameter: a number, or (chain,) where the prior's variance is.

    >>> from natural_langevin.preconditioners import DiagonalFisher
    >>> from natural_langevin.priors import Flat, Gaussian
    >>> resolve_damping(DiagonalFisher(), {"w": Gaussian(0.1), "b": Flat()}, 50)
    {'w': 0.2, 'b': 0.0001}
    >>> resolve_damping(DiagonalFisher(damping=0.3), {"w": Gaussian(0.1)}, 50)
    {'w': 0.3}
    """
    given = preconditioner.damping
    if not isinstance(given, str):
        return dict.fromkeys(priors, given)
    return {k: preconditioner.damping_from(_curvature(p, num_data)) for k, p in priors.items()}


def _curvature(prior: Prior, num_data: float | Tensor) -> float | Tensor:
    """precision / N, away from zero."""
    precision = prior.precision
    if isinstance(precision, Tensor) and precision.ndim:
        return torch.where(precision > 0, precision / num_data, FLAT_DAMPING)
    return float(precision) / num_data if precision > 0 else FLAT_DAMPING
