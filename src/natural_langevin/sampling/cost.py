"""What a step costs, counted and not timed: two runs of one seed must choose the same lengths.

A forward pass takes M multiply-adds per sample; a step of all chains about 6 M B floating-point
operations per chain (forward, and twice that backward, two operations each). A chain of linear
layers has M = its number of weights; convolutions and attention use every weight many times.

On a CPU, chains of linear layers, convolutions and pools have an engine of their own, which
reaches some 10^10 operations per second and core; other networks have none, and torch a few 10^9.
What they may take by themselves is a ``Budget``, of some tens of seconds. Where it leaves fewer
steps than the recipe would take, the log says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from natural_langevin._internal.threads import FEW_WEIGHTS
from natural_langevin.execution.kernels.native.trace import LayerSpec, trace
from natural_langevin.sampling import slowness
from natural_langevin.statistics import Network


class Budget(NamedTuple):
    """What a run of open length may cost."""

    work: float  # operations of all its steps
    fewest: int  # steps that it has whatever they cost
    relaxations: int  # so many relaxation times it wants to be long
    trial: float | None  # operations of a trial of the prior's scales; None: ``prior_scale``'s own
    spares: bool  # whether a pilot, and the rows of a minibatch, are few where steps cost much


#: Linear layers with an engine, or steps on a GPU, or models of few numbers.
USUAL = Budget(2e11, 2_000, 150, None, spares=False)
#: Convolutions with an engine: every weight is used many times.
PLACES = Budget(4e11, 300, 150, 1.2e11, spares=True)
#: Without an engine on a CPU.
EAGER = Budget(1.5e11, 300, 50, 5e10, spares=True)

#: Operations of a pilot's steps where they are spared.
PILOT_WORK = 4e10
#: A pilot has so many steps before it may end early, and at most where they are spared.
FEWEST_PILOT_STEPS, MOST_PILOT_STEPS = 50, 150
#: A small matrix at many positions (tokens) takes torch as long as one of so many weights.
SMALLEST = 4_000
#: Layers that use a weight at many places of a sample.
REUSES = (_ConvNd, nn.RNNBase, nn.MultiheadAttention)
#: Rows of a minibatch, and rows on which curvature is measured, where steps cost much.
BATCH, ROWS = 100, 250


class Costs(NamedTuple):
    """What the steps of a sampler cost, and may cost."""

    multiplications: float  # M; at least the number of trainable weights
    budget: Budget

    @property
    def per_sample(self) -> float:
        """Operations of one sample's part of a step."""
        return 6.0 * self.multiplications

    def of_pilot(self, samples: int, steps: int) -> tuple[float, bool]:
        """Operations of a pilot's step with so many samples, and whether they are spared where it
        would have so many steps."""
        work = self.per_sample * samples
        return work, self.budget is EAGER or (self.budget.spares and work * steps > PILOT_WORK)


def of_sampler(sampler: Any, x: Tensor) -> Costs:
    """Of a ``Langevin`` on inputs like ``x``.

    A model of few numbers, whose curvatures are measured, may take its time, unless it is a
    network with layers that use them many times: such a model is asked for its posterior."""
    network = sampler._dynamics.gradients.network
    weights = sum(p.numel() for p in network.trainable().values())
    if sampler.device.type != "cpu":
        return Costs(weights, USUAL)
    chain = chain_of_layers(network, x)
    if chain is not None:
        places = any(spec.places is not None for spec in chain)
        return Costs(_products(network, chain), PLACES if places else USUAL)
    reused = any(isinstance(m, REUSES) for m in sampler.model.modules())
    if weights <= slowness.MOST_WEIGHTS and not reused:
        return Costs(weights, USUAL)
    return Costs(max(weights, _counted(sampler, x)), EAGER)


def is_small(sampler: Any) -> bool:
    """Whether operations on all chains of a sampler are too small for several threads."""
    model = sampler.model
    weights = sum(p.numel() for p in model.parameters())
    few = weights <= FEW_WEIGHTS and weights * sampler.chains <= 8 * FEW_WEIGHTS
    reused = any(isinstance(m, REUSES) for m in model.modules())
    return sampler.device.type == "cpu" and few and not reused


def chain_of_layers(network: Network, x: Tensor) -> list[LayerSpec] | None:
    """The layers that an engine on a CPU takes one after the other, for inputs ``x``, or None."""
    named = {**dict(network.model.named_parameters()), **dict(network.model.named_buffers())}
    named = {name: tensor.detach() for name, tensor in named.items()}
    return trace(lambda batch: network.call(named, batch), named, x[:3].clone())


def of_chain(network: Network, x: Tensor) -> float | None:
    """M of a chain of layers, frozen ones not counted; None of other networks."""
    chain = chain_of_layers(network, x)
    return None if chain is None else _products(network, chain)


def _products(network: Network, chain: list[LayerSpec]) -> float:
    trained = network.trainable()
    weights = sum(p.numel() for p in trained.values())
    positions = {s.weight: 1 if s.places is None else len(s.places.table) for s in chain}
    products = sum(p.numel() * positions.get(name, 0) for name, p in trained.items())
    return float(max(weights, products))


def _counted(sampler: Any, x: Tensor) -> float:
    """M by the calls of its layers on one row."""
    params = sampler.init().params
    counts: list[float] = []
    layers = [m for m in sampler.model.modules() if not isinstance(m, nn.Embedding)]
    hooks = [m.register_forward_hook(lambda *call: counts.append(_of_call(*call))) for m in layers]
    try:
        with torch.no_grad():
            sampler._dynamics.gradients.network.call(
                {k: p[0] for k, p in params.items()}, x[:1].to(sampler.device).clone()
            )
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _of_call(module: nn.Module, inputs: Any, output: Any) -> float:
    """Multiply-adds of a layer's call: the sizes of its matrices times its positions (pixels)."""
    matrices = [p for p in module.parameters(recurse=False) if p.ndim > 1]
    out = output[0] if isinstance(output, tuple) else output
    if not matrices or not isinstance(out, Tensor):
        return 0.0
    positions = out.numel() / out.shape[-1]
    if isinstance(module, _ConvNd):
        positions = out.numel() / module.out_channels
        if module.transposed:
            positions = inputs[0].numel() / module.in_channels
    elif positions > 1:
        return sum(max(SMALLEST, p.numel()) for p in matrices) * positions
    return sum(p.numel() for p in matrices) * positions
