"""Reading the gradients that ``backward()`` left, and what a GradScaler multiplied the loss by.

Squares of gradients carry the square of that factor, so it must be known even where the gradients
themselves have been divided by it already (``scaler.unscale_``, before clipping).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from natural_langevin._internal.chains import Params
from natural_langevin.optim import shards


def not_finite(gradient: Params) -> list[str]:
    """The names of gradients that hold an infinity or NaN.

    A sum that is finite has none; it takes a fifth of the time of looking at every element. Where
    one is not, the largest element decides: sums overflow where a GradScaler's scale is large."""
    some = {name: g for name, g in gradient.items() if g.numel()}  # a rank may have no row of it
    if not some or math.isfinite(torch.stack([g.sum() for g in some.values()]).sum()):
        return []
    finite = torch.isfinite(_largest(list(some.values())).float()).tolist()
    return [name for name, ok in zip(some, finite, strict=True) if not ok]


def all_finite(gradient: Params) -> Tensor:
    """Whether none of them holds an infinity or NaN: (1,) bool, on their device."""
    largest = _largest([g for g in gradient.values() if g.numel()])
    return torch.isfinite(largest).all()[None]


def _largest(tensors: list[Tensor]) -> Tensor:
    """The size of every tensor's largest element, NaN where it holds one: (tensor,). A CPU's norm
    takes ten times as long as looking for both ends."""
    if tensors[0].device.type == "cpu":
        ends = [end for t in tensors for end in torch.aminmax(t)]
        return torch.stack(ends).reshape(-1, 2).abs().amax(1)
    return torch.stack(list(torch._foreach_norm(tensors, float("inf"))))


def local_gradient(sampled: Mapping[str, nn.Parameter]) -> Params:
    """This rank's rows of every gradient.

    What was frozen since the optimizer was made is left out."""
    wanted = {n: p for n, p in sampled.items() if p.requires_grad}
    missing = [n for n, p in wanted.items() if p.grad is None]
    if len(missing) == len(wanted):
        raise RuntimeError(
            "no parameter has a gradient: call loss.backward() between zero_grad() and step(), on "
            "a loss of what this very model gave (a model whose parameters were replaced needs a "
            "new optimizer)"
        )
    if missing:
        raise RuntimeError(
            f"parameter {missing[0]!r} has no gradient (and {len(missing) - 1} others): it took no "
            "part in the loss. If that is meant, do not sample it: freeze it with "
            'requires_grad_(False), or leave it out of params=["pattern", ...]'
        )
    return {n: shards.local(p.grad) for n, p in wanted.items()}


class Scale(NamedTuple):
    """What gradients and output gradients have been multiplied by."""

    gradient: float = 1.0
    statistics: float = 1.0
    known: bool = True  # what output gradients have been multiplied by


class Scaling:
    """``scaler`` is the user's GradScaler, where they gave it."""

    def __init__(self, scaler: Any = None) -> None:
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise TypeError(f"scaler must be a torch.amp.GradScaler, got {scaler!r}")
        self.scaler = scaler

    def read(self, optimizer: Optimizer, *, statistics: bool) -> Scale | None:
        """The factors of this step; None where it must be skipped.

        ``GradScaler.step`` sets ``found_inf`` and ``grad_scale`` before it calls ``step``; the
        latter is None when the gradients are to scale already."""
        found: Tensor | None = getattr(optimizer, "found_inf", None)
        if found is None:
            return Scale()
        if float(found) != 0:
            return None
        scale = getattr(optimizer, "grad_scale", None)
        gradient = 1.0 if scale is None else float(scale)
        if self.scaler is not None:
            return Scale(gradient, float(self.scaler.get_scale()))
        if scale is None and statistics:
            raise RuntimeError(
                "scaler.unscale_(optimizer) has brought the gradients to scale, but squares of "
                "per-sample gradients are still scaled by an unknown factor: give "
                "NaturalLangevin(..., scaler=scaler)"
            )
        return Scale(gradient, gradient, known=scale is not None)
