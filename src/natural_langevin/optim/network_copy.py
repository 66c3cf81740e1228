"""A copy of the user's network that shares its parameters, for trial runs.

Statistics are captured from the user's own forward and backward pass. What these passes do not show
is found by running a copy that holds the same parameters: which axis of every tensor is the batch,
what happens inside layers that torch computes in one kernel, and the gradients of single samples
where no rule describes them.

A network may take any arguments. The gradients' machinery knows networks of one tensor, whose rows
are samples; here that tensor is a vector of row numbers, and ``Arguments`` picks the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods import State as LikelihoodState
from natural_langevin.statistics import Network, vectorised
from natural_langevin.statistics.prepare import refuse_model
from natural_langevin.statistics.tape import is_real


class Arguments(NamedTuple):
    """What a network was called with: leaves of (args, kwargs), and which of them have samples."""

    leaves: list[Any]
    spec: Any
    batched: tuple[bool, ...]
    size: int  # samples

    @staticmethod
    def of(args: Any, kwargs: Any) -> Arguments:
        """The arguments of a call, and which of them have a batch axis."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim > 0]
        if not tensors:
            raise TypeError(
                "the model was called without a tensor among its arguments, so the number of "
                "samples cannot be seen: give it tensors whose first axis is the batch (they may "
                "be in lists, tuples and dicts)"
            )
        size = len(tensors[0])
        batched = tuple(
            isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == size for leaf in leaves
        )
        kept = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return Arguments(kept, spec, batched, size)

    def first_alone(self) -> Arguments:
        """The same with samples in the first tensor only."""
        first = self.batched.index(True)
        return self._replace(batched=tuple(i == first for i in range(len(self.batched))))

    def rows(self, rows: Tensor) -> tuple[Any, Any]:
        """(args, kwargs) with these samples."""
        pairs = zip(self.leaves, self.batched, strict=True)
        return pytree.tree_unflatten([x[rows] if has else x for x, has in pairs], self.spec)

    @property
    def every_row(self) -> Tensor:
        """The numbers of all samples: (B,)."""
        device = next(x.device for x, has in zip(self.leaves, self.batched, strict=True) if has)
        return torch.arange(self.size, device=device)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls of the same kind have the same plan."""
        shapes = tuple(
            (x.shape, x.dtype) if isinstance(x, Tensor) else repr(x) for x in self.leaves
        )
        return (str(self.spec), *shapes)


class Cotangent(Likelihood):
    """<delta_n, outputs_n>: a loss whose gradient is that of the user's, for known delta."""

    def __init__(self) -> None:
        self.deltas: list[Tensor | None] = []

    def log_loss(self, outputs: Any, y: Tensor, state: LikelihoodState) -> Tensor:
        """``y`` holds row numbers."""
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if is_real(leaf)]
        terms = [
            (o * d[y].to(o.dtype)).reshape(len(y), -1).sum(1)
            for o, d in zip(leaves, self.deltas, strict=True)
            if d is not None
        ]
        return torch.stack(terms).sum(0)


class NetworkCopy(Network):
    """A network of row numbers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.arguments: Arguments | None = None
        self._sampled = {n: p for n, p in model.named_parameters() if p.requires_grad}

    @property
    def first(self) -> Tensor:
        """The first of the trainable parameters."""
        return next(iter(self._sampled.values())).detach()

    def trainable(self) -> Params:
        """As it was at the start: what is frozen on the way keeps its place in the noise."""
        return {name: p.detach() for name, p in self._sampled.items()}

    @contextmanager
    def called_with(self, arguments: Arguments) -> Iterator[None]:
        """Inside, the network is called with these arguments."""
        before, self.arguments = self.arguments, arguments
        try:
            yield
        finally:
            self.arguments = before

    def call(self, params: Params, x: Tensor, *, once: bool = False) -> Any:
        assert self.arguments is not None
        args, kwargs = self.arguments.rows(x)
        with vectorised(x, once=once):
            return self.slots.call(params, args, kwargs)

    def follow(self, model: nn.Module) -> None:
        """Takes over the modes and buffers that ``model`` has by now."""
        for ours, theirs in zip(self.model.modules(), model.modules(), strict=True):
            ours.training = theirs.training
            for name, value in theirs._buffers.items():
                ours._buffers[name] = None if value is None else value.detach().clone()


def copy_network(model: nn.Module) -> nn.Module:
    """A copy that shares all parameters, and nothing else."""
    refuse_model(model)
    if type(model).__name__ == "OptimizedModule":
        raise TypeError(
            "the model is wrapped by torch.compile, inside which no hook sees the layers: give the "
            "original module to the optimizer and call it in the loop, or use Langevin(...), which "
            "compiles the whole step"
        )
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})
