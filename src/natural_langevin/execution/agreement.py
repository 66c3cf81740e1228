"""Whether a step by kernels agrees with the general step: checked before kernels are used."""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.frame import LangevinDynamics

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


# What an engine has shown once: that its steps are those of the reference.
#
# A proof takes as long as hundreds of steps of a small network. Rounds of a descent, stages of a
# pilot and the trial of priors move the same network by the same rules: one proof is enough.


class Proofs:
    """Networks, and the rules by which they are moved, on which an engine has agreed with the
    reference."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[object, set[Hashable]] = WeakKeyDictionary()

    def known(self, dynamics: LangevinDynamics, stream: Stream) -> bool:
        """Whether these dynamics, on inputs of this shape, need no proof."""
        owner, rules = _rules(dynamics, stream)
        return rules in self._known.get(owner, ())

    def add(self, dynamics: LangevinDynamics, stream: Stream) -> None:
        """They have agreed."""
        owner, rules = _rules(dynamics, stream)
        self._known.setdefault(owner, set()).add(rules)


def _rules(dynamics: LangevinDynamics, stream: Stream) -> tuple[object, Hashable]:
    """Whose they are, and what a step depends on beside numbers."""
    shape = tuple(stream.x.shape[1:]) if isinstance(stream, InMemory) else None
    gradients, prior = dynamics.gradients, dynamics.prior.values()
    parts = (gradients.likelihood, dynamics.preconditioner, dynamics.integrator)
    power = dynamics.power is None, dynamics.control_variates
    return gradients.network, (shape, *map(repr, parts), *map(type, prior), *power)
