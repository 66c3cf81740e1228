"""Gradient descent, the baselines' dynamics: SGD, with or without momentum, many networks at once.

    r = momentum r - eta g,      theta = theta + r

on the mean loss of the minibatch only: no prior, no metric, no noise. The caller defines the loss;
``PerceptronLoss`` is the baselines': cross-entropy of ReLU perceptrons, with or without dropped
units. Inverted dropout on every hidden layer: h / keep where u <= keep, otherwise 0. The uniforms u
are counter-based like every other draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value

from natural_langevin import random
from natural_langevin._internal.chains import Batch, Params, per_chain
from natural_langevin.dynamics.base import Info, State, note_diverged, select, still_running
from natural_langevin.dynamics.rates import Rates


@dataclass(frozen=True, eq=False)
class PerceptronLoss:
    """Mean cross-entropy of every network on its minibatch, with its own dropout masks."""

    rate: Tensor  # (network,): the dropout rate
    origin: Tensor | None = None  # (network,): where the mask streams start, None: no dropout

    def __call__(self, params: Params, batch: tuple[Tensor, Tensor], step: Tensor) -> Tensor:
        """The losses, (network,), on x (network, B, D) and y (network, B)."""
        x, y = batch
        masks = None
        if self.origin is not None:
            count = hidden_units(params) * x.shape[1]
            masks = random.uniform(random.stream(self.origin, step), count)
        logits = forward(params, x, self.rate, masks)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return losses.reshape(y.shape).mean(1)


def forward(params: Params, x: Tensor, rate: Tensor, masks: Tensor | None) -> Tensor:
    """Logits of all networks, (network, B, classes), for x of (network, B, D) or (B, D).

    ``rate`` (network,) is the dropout rate; ``masks`` are uniforms (network, all hidden units of
    the batch), or None for the deterministic network.
    """
    names, used = layers(params), 0
    h = x
    for index, name in enumerate(names):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        h = h @ weight.mT + bias[:, None]
        if index < len(names) - 1:
            h = F.relu(h)
            if masks is not None:
                size = h.shape[1] * h.shape[2]
                u = masks[:, used : used + size].reshape(h.shape)
                keep = 1 - rate[:, None, None]
                h = torch.where(u <= keep, h / keep, 0.0)
                used += size
    return h


def layers(params: Params) -> list[str]:
    """Names of the linear layers in their order, as ``nn.Sequential`` numbers them."""
    return sorted({name.rsplit(".", 1)[0] for name in params}, key=int)


def hidden_units(params: Params) -> int:
    """Units of all layers but the last."""
    return sum(params[f"{name}.bias"].shape[1] for name in layers(params)[:-1])


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
