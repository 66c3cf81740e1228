"""Multiply-adds of a network, counted and not timed: two runs of one seed must choose the same.

A forward pass takes M multiply-adds per sample; a step of all chains about 6 M B floating-point
operations per chain (forward, and twice that backward, two operations each). A chain of linear
layers has M = its number of weights; convolutions and attention use every weight many times.

The memory of a step, checked before anything of that size is allocated.

    bytes = 5 (state + parameters)

of all chains, for steps on a CPU (measured, including what the allocator keeps). Elsewhere only the
minimum is counted: the state before and after the step, and the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from natural_langevin._internal import capacity
from natural_langevin._internal.chains import Params
from natural_langevin._internal.threads import FEW_WEIGHTS
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.kernels.layer import KINDS
from natural_langevin.execution.kernels.native.trace import LayerSpec, other_tensors, trace
from natural_langevin.run.problem.problem import Problem
from natural_langevin.statistics import Network

#: Layers that use a weight at many places of a sample.
REUSES = (_ConvNd, nn.RNNBase, nn.MultiheadAttention)


def is_small(problem: Problem) -> bool:
    """Whether operations on all chains are too small for several threads."""
    weights = sum(p.numel() for p in problem.template.parameters())
    few = weights <= FEW_WEIGHTS and weights * problem.chains.count <= 8 * FEW_WEIGHTS
    return problem.device.type == "cpu" and few and not reuses(problem.template)


def reuses(model: nn.Module) -> bool:
    """Whether a layer uses its weights at many places."""
    return any(isinstance(m, REUSES) for m in model.modules())


def chain_of_layers(network: Network, x: Tensor) -> list[LayerSpec] | None:
    """The layers that an engine on a CPU takes one after the other, for inputs ``x``, or None."""
    named = other_tensors(network.model, ())
    few = x[:3].to(next(iter(named.values())).device, copy=True)
    return trace(lambda batch: network.call(named, batch), named, few)


def products(network: Network, chain: list[LayerSpec]) -> float:
    """M of these layers."""
    trained = network.trainable()
    weights = sum(p.numel() for p in trained.values())
    positions = {s.weight: 1 if s.places is None else len(s.places.table) for s in chain}
    products = sum(p.numel() * positions.get(name, 0) for name, p in trained.items())
    return float(max(weights, products))


def counted(problem: Problem, x: Tensor) -> float:
    """M by the calls of its layers on one row."""
    params = problem.network.trainable()
    counts: list[float] = []
    layers = [m for m in problem.network.model.modules() if not isinstance(m, nn.Embedding)]
    hooks = [m.register_forward_hook(lambda *call: counts.append(_of_call(*call))) for m in layers]
    try:
        with torch.no_grad():
            problem.network.call(params, x[:1].to(problem.device).clone())
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
    return sum(p.numel() for p in matrices) * positions


#: Multiples of state plus parameters that a step on the CPU has in memory at once.
ON_CPU = 5


def state_bytes(dynamics: LangevinDynamics, params: Params, chains: int) -> int:
    """Bytes of the state of so many chains, found by making it on ``meta``: shapes without numbers.

    ``params``: of one chain."""
    shapes = {
        k: torch.empty((chains, *p.shape), dtype=p.dtype, device="meta") for k, p in params.items()
    }
    try:
        state: Any = dynamics.init(shapes)
    except (RuntimeError, NotImplementedError):  # a metric that looks at numbers: the least it has
        state = [shapes, shapes]
    return sum(t.nbytes for t in pytree.tree_leaves(state) if isinstance(t, Tensor))


def check_step_memory(
    dynamics: LangevinDynamics, params: Params, chains: int, device: torch.device
) -> None:
    """ValueError where state and temporaries of one step cannot fit."""
    weights = chains * sum(p.nbytes for p in params.values())
    # Parameters, mean, momentum, two tensors of a metric and of control variates; a dense metric
    # has a row per parameter. Where even that fits, nothing is laid out on meta, whose functions
    # take half a second to load, and two where Python may not keep what it has compiled of them.
    rows = 0 if type(dynamics.preconditioner) in KINDS else sum(p.numel() for p in params.values())
    largest = weights * (rows + 8)
    if ON_CPU * largest <= capacity.in_memory(device):
        return
    state = state_bytes(dynamics, params, chains)
    needed = ON_CPU * (state + weights) if device.type == "cpu" else 2 * state + weights
    there = capacity.in_memory(device)
    if needed <= there:
        return
    count = sum(p.numel() for p in params.values())
    raise ValueError(
        f"{chains} chain{'s' * (chains > 1)} of {count:,} parameters take about "
        f"{needed / 2**30:.3g} GiB in a step ({state / 2**30:.3g} of them for their state), and "
        f"there are {there / 2**30:.3g}: use fewer chains, a metric that keeps less (RMSProp, "
        "Euclidean), or several processes with torchrun"
    )
