"""Friction and step size where some directions of a posterior are much slower than others.

In a direction of curvature k in the metric, momentum with friction a relaxes by the slower root of
s^2 + a s + eta k = 0: after

    tau = 2 / (a - sqrt(max(0, a^2 - 4 eta k)))      steps,

a / (eta k) where k is small. eta is bounded by the steepest curvature lambda, eta lambda <= 0.1;
with a friction of 0.1, tau is then in proportion to the condition number kappa = lambda / k. With
a = 2 sqrt(eta k) the slowest direction is damped critically, and tau = 1 / sqrt(eta k) is in
proportion to sqrt(kappa).

Less friction leaves more of the minibatches' noise in the chain. The m = N / B minibatches of an
epoch visit every row once, so that their errors add up to zero, except for dropped rows. Filtered
by momentum they heat the direction of curvature k, where gradients of single rows have the variance
k as in a model that fits, by

    heat = eta k (m - 1) / (2 a) * min(1, eta k m (m + 1) / 12 + dropped / (N - B)),

the first factor for independent minibatches, the second for epochs (simulated: within a seventh of
it at m = 4, below it at m = 20). It is kept below ``mean_heat`` in the mean over all directions,
and below ``most_heat`` in the steepest (``settings.StepSize`` has these and the names below).

This needs the eigenvalues of the posterior's curvature in the metric, which are measured up to
``most_weights`` weights and used if all of them are positive. A network's are not, and its slowest
direction is unknown. But in a Fisher metric, damped by the prior, directions that only the prior
determines have the curvature 1, and those that are slow because the metric lacks correlations are
below it. The friction of a network therefore damps the curvature ``damped`` critically,

    a = 2 sqrt(eta damped),

if minibatches then heat it by no more than ``mean_heat``, and never exceeds the usual one: the
smaller the step that lambda allows, the less friction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.diagnostics.kinetic import left_by_epochs
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.recipe.curvature import curvature_products
from natural_langevin.recipe.settings import StepSize


class Epochs(NamedTuple):
    """N, the rows B of a minibatch, whether minibatches are parts of one shuffled epoch, and the
    power of the likelihood, to which the heat is in proportion; and what is ``bearable``."""

    num_data: float
    batch: int
    shuffled: bool
    limits: StepSize
    power: float = 1.0

    def heat(self, eta_k: float, friction: float) -> float:
        """Of a direction of curvature k.

        >>> [round(Epochs(100, rows, True, StepSize()).heat(0.03, 0.1), 4) for rows in (25, 100)]
        [0.0225, 0.0]
        """
        m = self.num_data / self.batch
        if m <= 1:
            return 0.0
        alone = self.power * eta_k * (m - 1) / (2 * friction)
        return alone * (left_by_epochs(eta_k, self.num_data, self.batch) if self.shuffled else 1.0)

    def largest_step(self, curvatures: Sequence[float], friction: float) -> float:
        """eta up to ``steepness`` / lambda at which heat is at most what it may be."""
        low, high = 0.0, self.limits.steepness / max(curvatures)
        if self.bearable(high, curvatures, friction):
            return high
        for _ in range(40):
            eta = (low + high) / 2
            low, high = (eta, high) if self.bearable(eta, curvatures, friction) else (low, eta)
        return low

    def bearable(self, eta: float, curvatures: Sequence[float], friction: float) -> bool:
        """Whether heat is at most ``mean_heat`` in the mean and ``most_heat`` in the steepest."""
        heats, limits = [self.heat(eta * k, friction) for k in curvatures], self.limits
        return max(heats) <= limits.most_heat and sum(heats) <= limits.mean_heat * len(heats)


class Pace(NamedTuple):
    """Step size eta and friction a."""

    step_size: float
    friction: float

    def relaxation(self, curvature: float) -> float:
        """Steps after which a direction of this curvature has forgotten all but 1/e.

        >>> round(Pace(0.01, 0.1).relaxation(0.01)), round(Pace(0.01, 0.1).relaxation(1.0))
        (990, 20)
        """
        a = self.friction
        lost = math.sqrt(max(0.0, a * a - 4 * self.step_size * curvature))
        return 2 * (a + lost) / (4 * self.step_size * curvature) if lost else 2 / a


def quickest(usual: Pace, curvatures: Sequence[float], epochs: Epochs) -> Pace:
    """The pace at which the slowest direction relaxes soonest, among the frictions compared with
    the largest step each allows, and the usual one."""
    frictions = epochs.limits.compared()
    compared = [Pace(epochs.largest_step(curvatures, a), a) for a in frictions]
    return min([usual, *compared], key=lambda p: p.relaxation(min(curvatures)))


def friction_of_network(usual: Pace, heat: float, limits: StepSize) -> float:
    """The friction of a network; ``heat`` is that of minibatches at the pace ``usual``.

    >>> paces = [Pace(eta, 0.1) for eta in (1e-4, 4e-4, 0.04)]
    >>> [round(friction_of_network(pace, 1e-3, StepSize()), 3) for pace in paces]
    [0.01, 0.02, 0.1]
    """
    critical = 2 * math.sqrt(usual.step_size * limits.damped)
    cool = usual.friction * heat / limits.mean_heat  # heat is in proportion to 1 / friction
    return min(usual.friction, max(critical, cool, limits.least_friction))


def spectrum(
    dynamics: LangevinDynamics, state: State, data: tuple[Tensor, Tensor], num_data: float
) -> Tensor:
    """All eigenvalues of A^T H A (see ``curvature``), (chain, weights), in ascending order."""
    apply = curvature_products(dynamics, state, data, num_data)
    shapes = {k: p.shape for k, p in state.params.items()}
    sizes = [math.prod(s[1:]) for s in shapes.values()]
    first = next(iter(state.params.values()))
    columns = []
    for unit in torch.eye(sum(sizes), dtype=first.dtype, device=first.device):
        parts: Params = {
            k: part.expand(state.chains, -1).reshape(shapes[k])
            for k, part in zip(shapes, unit.split(sizes), strict=True)
        }
        bent = apply(parts)
        columns.append(torch.cat([bent[k].reshape(state.chains, -1) for k in shapes], 1))
    matrix = torch.stack(columns, 2).double().cpu()
    if not bool(torch.isfinite(matrix).all()):
        return torch.full((state.chains, len(columns)), math.nan, dtype=torch.float64)
    return torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
