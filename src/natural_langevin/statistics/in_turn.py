"""Several networks at once (``vmap``), or one after the other.

Together, the convolutions of several networks become one of as many groups, which libraries do by
detours, while one alone fills the device. On a GPU one network's part is recorded as a CUDA graph,
and replayed for every other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from natural_langevin._internal.cuda_graphs import RecordedFunction, copy_all

#: Numbers that a convolution gives for a minibatch, from which on networks are taken one by one.
ONE_BY_ONE = 1 << 20


def one_by_one(model: nn.Module, own: Iterable[str], x: Tensor) -> bool:
    """Whether networks like ``model``, each with parameters of its ``own`` and the others shared,
    are better taken one by one on inputs ``x``: by shapes alone, so that the same run keeps its
    bits. A convolution that they share is done once for all."""
    return convolved(model, own, x) >= ONE_BY_ONE


def convolved(model: nn.Module, parameters: Iterable[str], x: Tensor) -> int:
    """Numbers that the widest convolution with some of the ``parameters`` gives for inputs ``x`` at
    most; 0 without one."""
    names = tuple(parameters)
    widest = max(
        (
            module.out_channels
            for name, module in model.named_modules()
            if _is_conv(module) and any(k.startswith(f"{name}." if name else "") for k in names)
        ),
        default=0,
    )
    return widest * (x.numel() // x.shape[1]) if x.ndim > 2 else 0


def in_turn(
    function: Callable[..., Any], count: int, axes: tuple[int | None, ...], *values: Any
) -> Any:
    """``vmap``, one network after the other."""
    found = [function(*one_of(k, axes, values)) for k in range(count)]
    return pytree.tree_map(lambda *parts: torch.stack(parts), *found)


def replayed(
    function: Callable[..., Any],
    recorded: RecordedFunction,
    count: int,
    axes: tuple[int | None, ...],
    *values: Any,
) -> Any:
    """``in_turn``, by the graph of the function in which ``recorded`` holds it."""
    trees: list[Sequence[Tensor]] = []
    for axis, value in zip(axes, values, strict=True):
        own = pytree.tree_leaves(value)
        trees += [[t] * count if axis is None else t.unbind() for t in own]
    spec = pytree.tree_structure(values)
    every: list[Tensor] = []
    for k, one in enumerate(zip(*trees, strict=True)):
        found = recorded(lambda *given: function(*pytree.tree_unflatten(given, spec)), one)
        parts, shape = pytree.tree_flatten(found)
        every = every or [t.new_empty(count, *t.shape) for t in parts]
        copy_all([t[k] for t in every], parts)  # the next one writes over them
    return pytree.tree_unflatten(every, shape)


def of_each(
    function: Callable[..., Tensor], model: nn.Module, x: Tensor, *trees: dict[str, Tensor]
) -> Tensor:
    """``function`` of each network's own part of the ``trees``, all of them on inputs ``x``."""
    if not one_by_one(model, trees[0], x):
        return vmap(function)(*trees)
    count = len(next(iter(trees[0].values())))
    found: Tensor = in_turn(function, count, (0,) * len(trees), *trees)
    return found


def one_of(k: int, axes: tuple[int | None, ...], values: tuple[Any, ...]) -> list[Any]:
    """The ``k``-th network's part of every value that has an axis of networks."""
    pairs = zip(axes, values, strict=True)
    return [v if a is None else pytree.tree_map(lambda t: t[k], v) for a, v in pairs]


def _is_conv(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    return isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
