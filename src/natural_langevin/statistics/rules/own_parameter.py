"""A likelihood's own parameter, the last column of the outputs: G_n[u] = sum_t delta_nt[-1]."""

from __future__ import annotations

from torch import nn

from natural_langevin.statistics.rules.base import Call, SampleGradient, Sum, positions


def own_parameter_gradients(module: nn.Module, call: Call) -> dict[str, SampleGradient]:
    """What comes back to the column, summed over positions."""
    (name,) = dict(module.named_parameters(recurse=False))
    return {name: Sum(positions(call.delta[..., -1:]))}
