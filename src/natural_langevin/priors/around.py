"""Gaussian priors around the weights of a network."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
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
