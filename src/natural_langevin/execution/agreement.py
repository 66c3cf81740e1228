"""Whether a step by kernels is the general one: what a run asks before it relies on them."""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin.types import Params

#: The last bits of weights are moved by this part: the same step is rounded otherwise.
LAST_BITS = 2.0**-22


def disagreement(
    own: Params, expected: Params, before: Params, rounded: Params | None = None
) -> str:
    """Whose steps are not the general path's for most of their numbers: TF32 products, and a Schur
    complement that almost vanishes, move a few of them elsewhere. Biases, of which there may be
    one, are judged together. ``rounded``: the general step from weights whose last bits were moved
    (``last_bits_moved``): where a network meets its labels, a gradient is little but rounding."""
    near: dict[str, list[Tensor]] = {}
    for k, p in before.items():
        right = expected[k] - p
        allowed = 0.05 * right.abs() + 1e-2 * right.abs().mean()
        if rounded is not None:
            allowed += 10 * (rounded[k] - p * (1 + LAST_BITS) - right).abs()
        close = (own[k] - expected[k]).abs() <= allowed
        name = k if p.ndim > 2 else "biases"
        near.setdefault(name, []).append((close | ~right.isfinite()).flatten())
    few = (name for name, c in near.items() if not torch.cat(c).float().mean() > 0.8)
    return " and ".join(few)


def last_bits_moved(params: Params) -> Params:
    """The weights, but for their last bits."""
    return {k: p * (1 + LAST_BITS) for k, p in params.items()}


def same_losses(own: Tensor, expected: Tensor) -> bool:
    """Whether losses (chain,) are the general path's, but for rounding in TF32; those of chains
    that have left are anything."""
    close = (own - expected).abs() <= 1e-2 * (1 + expected.abs())
    return bool((close | ~expected.isfinite()).all())
