"""``State``: everything that a step updates, and what becomes of chains that diverge.

Samplers share one frame and differ in their integrator (see ``frame``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params


class State(NamedTuple):
    """Everything the next step needs: a plain tree of tensors, parameters as (chain, *shape)."""

    step: Tensor  # () int64: updates done so far
    params: Params  # theta
    mean: Params  # running average of theta with rate mu_t; {} where none is kept
    metric: dict[str, Any]  # the preconditioner's J
    likelihood: dict[str, Tensor]  # what the likelihood learns, (chain,) each
    diverged: Tensor  # (chain,) int64: the update whose result had a non-finite loss, or -1
    own: Any = ()  # what the integrator itself carries on: a NamedTuple of its file
    anchor: Any = ()  # where gradients are compared with all data's (``control_variates.Anchor``)
    swaps: Any = ()  # how often chains have swapped (``sampling.exchange.Swaps``)

    @property
    def chains(self) -> int:
        """How many chains there are."""
        return len(self.diverged)


#: The fields with a chain axis: what a stopped chain keeps.
CHAINWISE = ("params", "mean", "metric", "likelihood", "own")


class Info(NamedTuple):
    """Diagnostics of one step."""

    loss: Tensor  # (chain,) mean log-loss of the minibatch, before the update
    diverged: Tensor  # (chain,) bool


def still_running(state: State, loss: Tensor) -> Tensor:
    """Chains that take this step: (chain,) bool. A chain whose loss is not finite is stopped.

    Finite as a float32, whatever the model's dtype: a diverging chain in float64 would reach 1e154
    before it is noticed. The loss depends on every parameter and is known before the update, so
    that the check needs no pass over the parameters."""
    return (state.diverged < 0) & (loss.float().abs() < math.inf)


def note_diverged(state: State, keep: Tensor) -> Tensor:
    """``state.diverged`` with the chains that stop at this step."""
    return torch.where((state.diverged < 0) & ~keep, state.step, state.diverged)


def select(keep: Tensor, new: State, old: State, diverged: Tensor) -> State:
    """``new`` for the chains in ``keep``, ``old`` for the others; the step is counted for all."""
    if _at_hand(keep) and bool(keep.all()):
        return new._replace(diverged=diverged)

    def choose(after: Tensor, before: Tensor) -> Tensor:
        return torch.where(keep.reshape(-1, *(1,) * (after.ndim - 1)), after, before)

    kept = {
        name: pytree.tree_map(choose, getattr(new, name), getattr(old, name)) for name in CHAINWISE
    }
    return new._replace(diverged=diverged, **kept)


def _at_hand(value: Tensor) -> bool:
    """Whether a value can be read without synchronising a device and outside of compiled code."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()
