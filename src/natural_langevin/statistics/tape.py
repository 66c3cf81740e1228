"""The tape: records of a forward pass for the rules, and the gradients of its outputs.

Every watched call adds a zero epsilon to its outputs; the vector-Jacobian product with respect to
epsilon is the per-sample output gradient delta. This is the mechanism that survives eager
execution, ``torch.compile``, ``vmap`` over chains, both together, a layer called twice, and
in-place activations. Where torch's own tape runs alone, a hook is told delta while the backward
pass goes on, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Records one forward pass. Without epsilons it is a rehearsal, which learns the shapes.

    ``arrived``: told every delta, with its call and the output's place, by the backward pass; but
    for those of ``leaves``, for which somebody has to ask."""

    def __init__(
        self,
        epsilons: Tensors | None = None,
        arrived: Callable[[CallKey, int, Tensor], None] | None = None,
    ) -> None:
        self.epsilons, self._arrived = epsilons, arrived
        self.inputs: Tensors = {}
        self.leaves: dict[tuple[CallKey, int], Tensor] = {}
        self.traces: dict[CallKey, Trace] = {}
        self._calls: dict[str, int] = {}

    def begin(self, name: str) -> CallKey:
        """The key of the next call of this module."""
        count = self._calls.get(name, 0)
        self._calls[name] = count + 1
        return (name, count)

    def epsilon(self, key: CallKey) -> list[Tensor] | None:
        """What to add to the outputs of a call: nothing where no rule asks for its gradient."""
        found = None if self.epsilons is None else self.epsilons.get(key)
        if found is not None and self._arrived is not None:
            found = [e.detach().requires_grad_() for e in found]
            self.leaves |= {(key, i): e for i, e in enumerate(found)}
        return found

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
            held = self._arrived is not None  # by torch's tape too, which lets go of it earlier
            self.inputs[key] = [t.detach() for t in tensors] if held else tensors

    def watch(self, name: str, arguments: Any, output: Any) -> Any:
        """A whole call at once: records it and returns its outputs plus epsilon."""
        key = self.begin(name)
        leaves, spec = pytree.tree_flatten(output)
        places = [i for i, leaf in enumerate(leaves) if is_real(leaf)]
        self.record(key, arguments, [leaves[i] for i in places])
        epsilon = None if self.epsilons is None else self.epsilons.get(key)
        if epsilon is None:
            return output
        for index, (place, e) in enumerate(zip(places, epsilon, strict=True)):
            if self._arrived is None:
                leaves[place] = leaves[place] + e
            else:
                leaf = (
                    leaves[place]
                    if leaves[place].shape == e.shape
                    else leaves[place].expand(e.shape)
                )
                # An operation in place on a view would lose its hook; and one of several outputs
                # may be made of another one, whose gradient would then count that use as well.
                leaf = leaf.clone() if leaf._is_view() or len(places) > 1 else leaf
                leaves[place] = self._awaited(leaf, (key, index))
        return pytree.tree_unflatten(leaves, spec)

    def _awaited(self, output: Tensor, place: tuple[CallKey, int]) -> Tensor:
        assert self._arrived is not None
        if output.requires_grad:
            output.register_hook(lambda delta, arrived=self._arrived: arrived(*place, delta))
            return output
        self.leaves[place] = output.detach().requires_grad_()
        return self.leaves[place].clone()  # the network may work on it in place


def is_real(value: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(value, Tensor) and value.is_floating_point()
