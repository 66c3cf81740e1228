"""What an engine has shown once: that its steps are those of the reference.

A proof takes as long as hundreds of steps of a small network. Rounds of a descent, stages of a
pilot and the trial of priors move the same network by the same rules: one proof is enough.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import Dynamics
from natural_langevin.dynamics.frame import LangevinDynamics


class Proofs:
    """Networks, and the rules by which they are moved, on which an engine has agreed with the
    reference."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[object, set[Hashable]] = WeakKeyDictionary()

    def known(self, dynamics: Dynamics, stream: Stream) -> bool:
        """Whether these dynamics, on inputs of this shape, need no proof."""
        owner, rules = _rules(dynamics, stream)
        return rules in self._known.get(owner, ())

    def add(self, dynamics: Dynamics, stream: Stream) -> None:
        """They have agreed."""
        owner, rules = _rules(dynamics, stream)
        self._known.setdefault(owner, set()).add(rules)


def _rules(dynamics: Dynamics, stream: Stream) -> tuple[object, Hashable]:
    """Whose they are, and what a step depends on beside numbers."""
    shape = tuple(stream.x.shape[1:]) if isinstance(stream, InMemory) else None
    if not isinstance(dynamics, LangevinDynamics):
        return dynamics, shape
    gradients, prior = dynamics.gradients, dynamics.prior.values()
    parts = (gradients.likelihood, dynamics.preconditioner, dynamics.integrator)
    power = dynamics.power is None, dynamics.control_variates
    return gradients.network, (shape, *map(repr, parts), *map(type, prior), *power)
