"""What a step costs, counted and not timed: two runs of one seed must choose the same lengths.

A forward pass takes M multiply-adds per sample; a step of all chains about 6 M B floating-point
operations per chain (forward, and twice that backward, two operations each). A chain of linear
layers has M = its number of weights; convolutions and attention use every weight many times.

On a CPU such networks have no engine of their own, and torch reaches a few 10^9 operations per
second and core with them: the budgets here are some tens of seconds. Where they leave fewer steps
than the recipe would take, it says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from natural_langevin.sampling import slowness

#: Operations of a run's steps, of a pilot's, and of the trial of the prior's scales.
MOST_WORK, PILOT_WORK, TRIAL_WORK = 1.5e11, 4e10, 5e10
#: A run has so many steps whatever they cost; a pilot so many before it may end early, and at most.
FEWEST_STEPS, FEWEST_PILOT_STEPS, MOST_PILOT_STEPS = 300, 50, 150
#: Relaxation times of a run: more of them are cheap only where an engine runs them.
RELAXATIONS = 50
#: A small matrix at many positions (tokens) takes torch as long as one of so many weights.
SMALLEST = 4_000
#: Layers that use a weight at many places of a sample.
REUSES = (_ConvNd, nn.RNNBase, nn.MultiheadAttention)
#: Rows of a minibatch, and rows on which curvature is measured.
BATCH, ROWS = 100, 250


def is_dear(sampler: Any, x: Tensor) -> bool:
    """Whether steps go by torch's operations on a CPU, and cost more than their calls: the network
    is more than linear layers one after the other, or its inputs are more than rows of numbers.
    Not a model of few numbers, whose curvatures are measured, unless it is a network with layers
    that use them many times: such a model is asked for its posterior.

    ``sampler`` is a ``Langevin``."""
    model = sampler.model
    weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
    few = weights <= slowness.MOST_WEIGHTS and not any(
        isinstance(m, REUSES) for m in model.modules()
    )
    if sampler.device.type != "cpu" or few:
        return False
    return x.ndim > 2 or not only_linear(sampler.model)


def only_linear(model: nn.Module) -> bool:
    """Whether all layers with parameters are linear, as the engines on a CPU take them."""
    layers = [m for m in model.modules() if len(list(m.parameters(recurse=False)))]
    return all(isinstance(m, nn.Linear) for m in layers)


def multiplications(sampler: Any, x: Tensor) -> float:
    """M: multiply-adds of a sample's way forward; at least the number of trainable weights."""
    params = sampler.init().params
    weights = float(sum(p[0].numel() for p in params.values()))
    if not is_dear(sampler, x):
        return weights
    counts: list[float] = []
    layers = [m for m in sampler.model.modules() if not isinstance(m, nn.Embedding)]
    hooks = [m.register_forward_hook(lambda *call: counts.append(_of_call(*call))) for m in layers]
    network = sampler._dynamics.gradients.network
    try:
        with torch.no_grad():
            network.call({k: p[0] for k, p in params.items()}, x[:1].to(sampler.device).clone())
    finally:
        for hook in hooks:
            hook.remove()
    return max(weights, sum(counts))


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
