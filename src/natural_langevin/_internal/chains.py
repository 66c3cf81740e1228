"""The chain axis: every parameter-like tensor is (chain, *shape), every setting (), (chain,), or
(chain, *shape) where every weight has its own; a first axis of 1 is shared by all chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: Parameters by name: {name: (*shape)}, with leading axes (chain, draw) where it is said.
Params = dict[str, Tensor]

#: A minibatch (x, y).
Batch = tuple[Tensor, Tensor]

#: For every bias, the weights of its units; for a weight whose units have none, ``{weight: ()}``.
Units = dict[str, tuple[str, ...]]


def per_chain(value: float | Tensor, like: Tensor) -> Tensor:
    """A number or a (chain,) tensor, shaped to broadcast against ``like`` of (chain, *shape); a
    tensor with as many axes as ``like`` stays as it is.

    >>> per_chain(torch.tensor([1.0, 2.0]), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    if not isinstance(value, Tensor):  # made where it is needed: a copy from the host would wait
        return torch.full((), value, dtype=like.dtype, device=like.device)
    tensor = value.to(dtype=like.dtype, device=like.device)
    if tensor.ndim in (0, like.ndim):
        return tensor
    return tensor.reshape(tensor.shape + (1,) * (like.ndim - 1))


def number_or_chains(value: float | Tensor, like: Tensor) -> float | Tensor:
    """Like ``per_chain``, but a plain number stays one, which saves an operation."""
    return per_chain(value, like) if isinstance(value, Tensor) else value


def per_unit(value: Tensor, like: Tensor) -> Tensor:
    """Values (n, unit), shaped to broadcast against ``like`` of (n, unit, ...)."""
    return value.reshape(value.shape + (1,) * (like.ndim - value.ndim))


def average(old: Tensor, new: Tensor, rate: Tensor) -> Tensor:
    """(1 - rate) old + rate new, with one rate per chain. A rate of 1 forgets ``old`` entirely."""
    return torch.lerp(old, new, per_chain(rate, old))


def dot(a: Params, b: Params) -> Tensor:
    """The inner product of every chain: (chain,)."""
    return torch.stack([(x * b[k]).reshape(len(x), -1).sum(1) for k, x in a.items()]).sum(0)


def likelihood_powers(config: Mapping[str, Any], chains: int) -> Tensor:
    """beta of every chain of a run, by its configuration: (chain,), float64."""
    given = torch.as_tensor(config.get("likelihood_power", 1.0), dtype=torch.float64)
    return given.expand(chains)
