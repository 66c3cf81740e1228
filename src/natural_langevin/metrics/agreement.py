"""How far two predictive distributions are apart: (n, classes) probabilities of the same inputs."""

from __future__ import annotations

from torch import Tensor


def agreement(probabilities: Tensor, reference: Tensor) -> float:
    """Share of inputs for which both have the same most probable class.

    >>> import torch
    >>> p, q = torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([[0.6, 0.4], [0.7, 0.3]])
    >>> agreement(p, q)
    0.5
    """
    return float((probabilities.argmax(-1) == reference.argmax(-1)).double().mean())


def total_variation(probabilities: Tensor, reference: Tensor) -> float:
    """Mean over inputs of sum_k |p_k - q_k| / 2: 0 where they are equal, at most 1.

    >>> import torch
    >>> round(total_variation(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.6, 0.4]])), 6)
    0.3
    """
    apart = (probabilities.double() - reference.double()).abs().sum(-1) / 2
    return float(apart.mean())
