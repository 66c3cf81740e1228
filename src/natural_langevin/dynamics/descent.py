"""Gradient descent, the baselines' dynamics: SGD, with or without momentum, many networks at once.

    r = momentum r - eta g,      theta = theta + r

on the mean cross-entropy of ReLU perceptrons on the minibatch, with or without dropped units. As
Langevin dynamics that is T = 0, a flat prior and no metric; with momentum, a friction of one minus
it. Inverted dropout on every hidden layer: h / keep where u <= keep, otherwise 0. The uniforms u
are counter-based like every other draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad_and_value

from natural_langevin import random
from natural_langevin._internal.chains import Batch, Params, per_chain
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.overdamped import Overdamped
from natural_langevin.dynamics.rates import Rates
from natural_langevin.dynamics.underdamped import Momentum, Underdamped
from natural_langevin.likelihoods import Categorical
from natural_langevin.preconditioners import Euclidean
from natural_langevin.priors import Flat
from natural_langevin.statistics import Gradients, Network


@dataclass(frozen=True, eq=False, kw_only=True)
class Descent(LangevinDynamics):
    """Minibatch gradient descent for every chain's network, with dropout masks of its own."""

    rate: Tensor  # (network,): the dropout rate
    origin: Tensor | None = None  # (network,): where the mask streams start, None: no dropout
    momentum: float = 0.0

    @staticmethod
    def of(
        params: Params, rate: Tensor, origin: Tensor | None = None, momentum: float = 0.0
    ) -> Descent:
        """Of perceptrons with parameters like these, (network, *shape)."""
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        names, model = layers(params), nn.Sequential()
        for name in names:
            _, outputs, inputs = params[f"{name}.weight"].shape
            model.add_module(name, nn.Linear(inputs, outputs, device="meta"))
            model.add_module(f"{name}+", nn.ReLU() if name != names[-1] else nn.Identity())
        none = torch.zeros_like(rate, dtype=torch.int64)
        return Descent(
            Underdamped(1 - momentum) if momentum else Overdamped(),
            Gradients(Network(model), Categorical()), Euclidean(), dict.fromkeys(params, Flat()),
            temperature=none.double(), noise=none, labels=none, keep_mean=False,
            rate=rate, origin=origin, momentum=momentum,
        )  # fmt: skip

    def losses(self, params: Params, batch: Batch, step: Tensor) -> Tensor:
        """Mean cross-entropies, (network,), on x (network, B, D) and y (network, B)."""
        x, y = batch
        masks = None
        if self.origin is not None:
            count = hidden_units(params) * x.shape[1]
            masks = random.uniform(random.stream(self.origin, step), count)
        logits = forward(params, x, self.rate, masks)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return losses.reshape(y.shape).mean(1)

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
            losses = self.losses(params, (x, y), state.step)
            return losses.sum(), losses  # a sum over networks: their gradients do not mix

        g, (_, losses) = grad_and_value(loss, has_aux=True)(state.params)
        eta, own = rates.step_size, state.own
        r = {k: -per_chain(eta, g[k]) * g[k] for k in g}
        if self.momentum:
            r = {k: self.momentum * own.momentum[k] + r[k] for k in r}
            own = Momentum(r)
        params = {k: p + r[k] for k, p in state.params.items()}
        new = state._replace(step=state.step + 1, params=params, own=own)
        return self.settled(state, new, losses)

    @property
    def kernels(self) -> frozenset[str]:
        """The native engine."""
        return frozenset({"mlp"}) if type(self) is Descent else frozenset()


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
