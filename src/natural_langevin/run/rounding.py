"""The effect of autocast's rounding: how far it moves the gradient, in posterior standard
deviations.

A gradient that is wrong by d moves the chain's target by C d, where C/N is about the posterior's
covariance if C is a Fisher metric. In standard deviations, averaged over the P parameters,

    shift = sqrt(N d^T C d / P).

A wide posterior is not affected by bfloat16; one whose standard deviations are near the rounding of
its weights, 2^-9 of them, is widened.
"""

from __future__ import annotations

import logging

import torch

from natural_langevin.diagnostics.energy import energy_gradient
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.engine import Engine

log = logging.getLogger("natural_langevin")

#: Shifts beyond this many standard deviations are worth a word.
NOTICEABLE = 0.1


def autocast_shift(engine: Engine, state: State) -> float | None:
    """The shift at ``state``, on one batch; None without autocast or a Fisher metric."""
    dynamics = engine.dynamics
    assert isinstance(dynamics, LangevinDynamics)
    network, preconditioner = dynamics.gradients.network, dynamics.preconditioner
    if network.autocast is None or not preconditioner.requests:
        return None
    likelihood, prior = dynamics.gradients.likelihood, dynamics.prior
    count = dynamics.weight(engine.num_data)

    def gradient() -> dict[str, torch.Tensor]:
        return energy_gradient(
            network.call, likelihood, prior, count, state.params, state.likelihood,
            engine.stream.example(), chain_axis=False,
        )  # fmt: skip

    low, kind = gradient(), network.autocast
    try:
        network.autocast = None
        full = gradient()
    finally:
        network.autocast = kind
    factor = preconditioner.factor(state.metric, dynamics.damping(list(low), engine.num_data))
    parts = factor.transpose({k: low[k] - full[k] for k in low}).values()
    square = torch.stack([p.double().square().reshape(len(p), -1).sum(1) for p in parts]).sum(0)
    weights = sum(p[0].numel() for p in state.params.values())
    shift = float((count * square / weights)[state.diverged < 0].mean().sqrt())
    if shift > NOTICEABLE:
        log.warning(
            "autocast=%s moves the gradient by %.2g posterior standard deviations: the draws are "
            "that much off, and too wide. Sample without autocast", kind, shift,
        )  # fmt: skip
    return shift
