"""Losses and gradients of all data for every chain, computed in pieces.

For data in memory alone. A piece has at least as many rows as a minibatch, whose activations fit;
more through a network of few weights, of which operator calls are what is paid for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.func import vmap

from natural_langevin._internal.chains import Batch, Params
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.control_variates import Anchor
from natural_langevin.dynamics.frame import LangevinDynamics

#: Rows of a piece, of all chains together; and rows times weights, up to which there are more.
ROWS, SMALL = 4096, 1 << 22


class Pause(Protocol):
    """What is done between two steps of a run: before every step whose number ``every`` divides."""

    every: int

    def __call__(self, state: State, step: int) -> State:
        """The state that the step goes on from."""


def pieces(stream: InMemory, params: Params) -> Iterator[tuple[Batch, bool]]:
    """All rows, (x, y), and whether they have a chain axis: where chains see rows of their own."""
    chains = len(next(iter(params.values())))
    size = max(stream.batch_size, ROWS // chains, SMALL // sum(p.numel() for p in params.values()))
    if stream.rows is None:
        for x, y in zip(stream.x.split(size), stream.y.split(size), strict=True):
            yield (x, y), False
    else:
        for rows in stream.rows.split(size, dim=1):
            yield (stream.x[rows], stream.y[rows]), True


def mean_loss(dynamics: LangevinDynamics, state: State, stream: InMemory) -> Tensor:
    """The mean log-loss of all data, in nats and float64: (chain,)."""
    network, likelihood = dynamics.gradients.network, dynamics.gradients.likelihood

    def one(params: Params, learned: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return likelihood.log_loss(network.call(params, x), y, learned).double().sum()

    total = torch.zeros(state.chains, dtype=torch.float64, device=state.step.device)
    with torch.no_grad():
        for (x, y), chain_axis in pieces(stream, state.params):
            axis = 0 if chain_axis else None
            found = vmap(one, in_dims=(0, 0, axis, axis))
            total += found(state.params, state.likelihood, x.clone(), y)
    return total / stream.num_data


def mean_gradient(dynamics: LangevinDynamics, state: State, stream: InMemory) -> Params:
    """d / d theta of the mean log-loss of all data: {name: (chain, *shape)}."""
    total = {k: torch.zeros_like(p) for k, p in state.params.items()}
    for (x, y), chain_axis in pieces(stream, state.params):
        found = dynamics.gradient(state, state.params, (x, y), chain_axis=chain_axis)
        share = x.shape[1 if chain_axis else 0] / stream.num_data
        total = {k: t + share * found[k] for k, t in total.items()}
    return total


class Anchors:
    """The pause of ``dynamics.control_variates``: the anchor moves to where the chain is."""

    def __init__(self, dynamics: LangevinDynamics, stream: InMemory, every: int) -> None:
        self.every, self._dynamics, self._stream = every, dynamics, stream

    def __call__(self, state: State, step: int) -> State:
        """Moves the anchor to the chains' weights, with the gradient of all data there."""
        here = {k: p.clone() for k, p in state.params.items()}
        gradient = mean_gradient(self._dynamics, state, self._stream)
        return state._replace(anchor=Anchor(here, gradient))
