"""Predictions for labels some of which are wrong: a share of them is drawn from all classes alike.

    p(y | x) = (1 - noise) E_theta[softmax(f_theta(x))_y] + noise / K

So that no image, however sure all draws of a chain are of it, costs more than ln(K / noise) nats.
The posterior of theta is that of the plain likelihood: with the share in the likelihood itself an
image's loss is bounded, and images that a chain has far wrong early on no longer pull at it.
"""

from __future__ import annotations

from torch import Tensor


def with_noise(p: Tensor, noise: float | Tensor) -> Tensor:
    """Probabilities p (..., K) of labels, of which a share ``noise`` is drawn at random.

    >>> import torch
    >>> with_noise(torch.tensor([1.0, 0.0]), 0.5)
    tensor([0.7500, 0.2500])
    """
    return (1 - noise) * p + noise / p.shape[-1]
