"""The tape: records of a forward pass for the rules, and the gradients of its outputs.

Every watched call adds a zero epsilon to its outputs; the vector-Jacobian product with respect to
epsilon is the per-sample output gradient delta. This is the mechanism that survives eager
execution, ``torch.compile``, ``vmap`` over chains, both together, a layer called twice, and
in-place activations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

CallKey = tuple[str, int]  # (module name, how many calls of it came before)
Tensors = dict[CallKey, list[Tensor]]  # some of every call: inputs, epsilons or deltas


class Trace(NamedTuple):
    """One call as a rehearsal saw it: arguments with a hole for every tensor, and all shapes."""

    leaves: list[Any]  # of the arguments; None where a tensor goes
    holes: list[int]
    spec: Any
    inputs: list[torch.Size]
    real: list[bool]  # which inputs are floating point
    outputs: list[tuple[torch.Size, torch.dtype]]

    def rebuild(self, tensors: list[Tensor]) -> Any:
        """The arguments (args, kwargs) with these tensors."""
        leaves = list(self.leaves)
        for hole, tensor in zip(self.holes, tensors, strict=True):
            leaves[hole] = tensor
        return pytree.tree_unflatten(leaves, self.spec)


class Tape:
    """Records one forward pass. Without epsilons it is a rehearsal, which learns the shapes."""

    def __init__(self, epsilons: Tensors | None = None) -> None:
        self.epsilons = epsilons
        self.inputs: Tensors = {}
        self.traces: dict[CallKey, Trace] = {}
        self._calls: dict[str, int] = {}

    def begin(self, name: str) -> CallKey:
        """The key of the next call of this module."""
        count = self._calls.get(name, 0)
        self._calls[name] = count + 1
        return (name, count)

    def epsilon(self, key: CallKey) -> list[Tensor] | None:
        """What to add to the outputs of a call: nothing where no rule asks for its gradient."""
        return None if self.epsilons is None else self.epsilons.get(key)

    def record(self, key: CallKey, arguments: Any, outputs: list[Tensor]) -> None:
        """Keeps the tensors among the arguments of a call whose outputs were watched."""
        leaves, spec = pytree.tree_flatten(arguments)
        holes = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[i] for i in holes]
        if self.epsilons is None:
            rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            shapes = [(o.shape, o.dtype) for o in outputs]
            inputs, real = [t.shape for t in tensors], [is_real(t) for t in tensors]
            self.traces[key] = Trace(rest, holes, spec, inputs, real, shapes)
        elif key in self.epsilons:
            self.inputs[key] = tensors

    def watch(self, name: str, arguments: Any, output: Any) -> Any:
        """A whole call at once: records it and returns its outputs plus epsilon."""
        key = self.begin(name)
        leaves, spec = pytree.tree_flatten(output)
        places = [i for i, leaf in enumerate(leaves) if is_real(leaf)]
        self.record(key, arguments, [leaves[i] for i in places])
        epsilon = self.epsilon(key)
        if epsilon is None:
            return output
        for place, e in zip(places, epsilon, strict=True):
            leaves[place] = leaves[place] + e
        return pytree.tree_unflatten(leaves, spec)


def is_real(value: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()
