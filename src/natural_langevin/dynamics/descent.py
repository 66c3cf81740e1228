"""Gradient descent, the baselines' dynamics: SGD, with or without momentum, many networks at once.

    r = momentum r - eta g,      theta = theta + r

on the mean loss of the minibatch only: no prior, no metric, no noise. The caller defines the loss,
with dropout or without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from natural_langevin._internal.chains import Batch, Params, per_chain
from natural_langevin.dynamics.base import Info, State, note_diverged, select, still_running
from natural_langevin.dynamics.dropout import PerceptronLoss
from natural_langevin.dynamics.rates import Rates

#: (params, batch, step) -> the mean loss of every chain: (chain,). Batches have a chain axis.
Loss = Callable[[Params, Batch, Tensor], Tensor]


class Velocity(NamedTuple):
    """r, of every parameter."""

    velocity: Params


@dataclass(frozen=True, eq=False)
class Descent:
    """Minibatch gradient descent on ``loss`` for every chain's network."""

    loss: Loss
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum!r}")

    def init(self, params: Params) -> State:
        """The state before the first update; without momentum nothing is carried over."""
        first = next(iter(params.values()))
        still = {k: torch.zeros_like(p) for k, p in params.items()}
        return State(
            step=torch.zeros((), dtype=torch.int64, device=first.device),
            params=params,
            mean={},
            metric={},
            likelihood={},
            diverged=torch.full((len(first),), -1, dtype=torch.int64, device=first.device),
            own=Velocity(still) if self.momentum else (),
        )

    def step(
        self,
        state: State,
        batch: Batch,
        rates: Rates,
        num_data: float | Tensor,
        *,
        chain_axis: bool = False,
    ) -> tuple[State, Info]:
        """One update of all chains; N does not matter."""
        x, y = batch
        if not chain_axis:
            x, y = (t.expand(state.chains, *t.shape) for t in batch)

        def loss(params: Params) -> tuple[Tensor, Tensor]:
            losses = self.loss(params, (x, y), state.step)
            return losses.sum(), losses  # a sum over networks: their gradients do not mix

        g, (_, losses) = grad_and_value(loss, has_aux=True)(state.params)
        eta, own = rates.step_size, state.own
        r = {k: -per_chain(eta, g[k]) * g[k] for k in g}
        if self.momentum:
            r = {k: self.momentum * own.velocity[k] + r[k] for k in r}
            own = Velocity(r)
        params = {k: p + r[k] for k, p in state.params.items()}
        keep = still_running(state, losses)
        diverged = note_diverged(state, keep)
        new = state._replace(step=state.step + 1, params=params, own=own)
        return select(keep, new, state, diverged), Info(losses, diverged >= 0)

    def prepare(self, params: Params, x: Tensor) -> None:
        """Nothing to prepare."""

    @property
    def kernels(self) -> frozenset[str]:
        """The native engine, for the loss it implements; otherwise none."""
        known = type(self) is Descent and type(self.loss) is PerceptronLoss
        return frozenset({"mlp"}) if known else frozenset()
