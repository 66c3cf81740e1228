"""The memory of a step, checked before anything of that size is allocated.

    bytes = 5 (state + parameters)

of all chains, for steps on a CPU (measured, including what the allocator keeps). Elsewhere only the
minimum is counted: the state before and after the step, and the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal import capacity
from natural_langevin._internal.chains import Params
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.kernels.layer import KINDS

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
