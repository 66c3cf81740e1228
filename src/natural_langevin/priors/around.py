"""Gaussian priors around the weights of a network."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence

from torch import Tensor

from natural_langevin._internal.given_weights import Weights, weights_of
from natural_langevin.priors.base import Prior
from natural_langevin.priors.gaussian import Gaussian


def around(
    centre: Weights | Sequence[Weights], *, variance: float | Tensor | Mapping[str, float | Tensor]
) -> dict[str, Prior]:
    """N(w*, variance) for every parameter, w* its value in ``centre``: a network (its trainable
    parameters), a state dict, or a list of either, one per chain.

    ``variance``: a number, one per chain, or a mapping from parameter names to these.

    >>> import torch
    >>> prior = around(torch.nn.Linear(2, 1), variance=0.01)
    >>> prior["weight"].mean.shape  # the first axis: shared by all chains
    torch.Size([1, 1, 2])
    """
    means = weights_of(centre)
    named = variance if isinstance(variance, Mapping) else dict.fromkeys(means, variance)
    if missing := sorted(set(means) - set(named)):
        raise ValueError(f"variance has no value for {missing[:4]}: name every parameter")
    return {glob.escape(name): Gaussian(named[name], mean) for name, mean in means.items()}
