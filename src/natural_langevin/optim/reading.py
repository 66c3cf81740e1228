"""Reading the gradients that ``backward()`` left, and agreeing on them with the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from natural_langevin.optim import shards
from natural_langevin.sampling.loop import DivergenceError
from natural_langevin.statistics import Params


def local_gradient(sampled: Mapping[str, nn.Parameter]) -> Params:
    """This rank's rows of every gradient, with a leading chain axis of one.

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
    return {n: shards.local(p.grad)[None] for n, p in wanted.items()}


def agreed(
    gradient: Params,
    sampled: Mapping[str, nn.Parameter],
    seen: int,
    reduction: str,
    group: Any = None,
) -> tuple[float, float]:
    """Samples of this step on all ranks, and how many ranks there are.

    Where one rank cannot take the step none does: the error is raised on all of them."""
    norms = torch.stack([n.float() for n in torch._foreach_norm(list(gradient.values()))])
    bad = [k for k, ok in zip(gradient, torch.isfinite(norms).tolist(), strict=True) if not ok]
    mine = [float(seen), float(seen) ** 2, float(len(bad)), 1.0]
    samples, squares, broken, ranks = shards.total(mine, next(iter(sampled.values())), group)
    if broken:
        where = repr(bad[0]) if bad else "a parameter on another rank"
        raise DivergenceError(
            f"the gradient of {where} is not finite; the parameters were left as they are. The "
            "step size is most likely too large: try a tenth of it; more damping or a prior of "
            "smaller variance also help"
        )
    if reduction == "mean" and samples**2 != ranks * squares:
        raise ValueError(
            f"the ranks saw different numbers of samples (this one {seen} of {samples:g} on "
            f'{ranks:g} ranks), so means over them do not add up: use reduction="sum", or a '
            "DistributedSampler with drop_last=True"
        )
    return samples, ranks
