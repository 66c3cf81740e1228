"""Microcanonical Langevin dynamics in the metric (MCLMC of Robnik & Seljak 2023, with a C).

The momentum has a direction and a fixed length: r = R A u with C = A A^T, |u| = 1, and

    R = sqrt(d eta T / N),      d the number of weights,

the mean length of the momentum of ``underdamped``. With the scaling of ``frame`` one step turns u
by the gradient, moves, and forgets a share a = ``friction`` of the direction:

    u <- (u + e (sinh D + (e.u)(cosh D - 1))) / (cosh D + (e.u) sinh D)                     B
         e = -A^T v / |A^T v|,   D = R |A^T v| N / (T (d - 1))
    theta <- theta + R A u / 2                                                              A
    u <- w / |w|,   w = (1 - a) u + sqrt((1 - (1 - a)^2) / d) z                             O
    theta <- theta + R A u / 2                                                              A

B solves du/dt = -(Id - u u^T) A^T v N / (T (d - 1)) exactly, whose equilibrium with dtheta/dt = A u
is the target itself, u uniform on the sphere (the energy is kept, hence the name). For many weights
that is Underdamped(a, "baoab") with a momentum of fixed length, and eta has the same meaning, so
the recipe's rules apply. For few weights the two differ, and a single weight has no direction.

Minibatches are taken as they are. The noise of independent ones turns u and cannot lengthen it:
where C is about the inverse of its covariance, as a Fisher metric is, it is another refreshment and
hardly a bias. Otherwise the directions of large noise are heated at the cost of the others.
Minibatches of one shuffled epoch leave it too cold: their errors cancel in theta but not in u;
``sample`` warns. At the recipe's heat of .1 the difference is below a tenth
(lab/notes/microcanonical.md).

Chains start at rest, u = 0, and have a direction after their first step. With parameters in several
vectors (``optim``: groups of parameters, and ranks that hold rows of them) each vector has its own
direction.

References: Robnik & Seljak, Fluctuation without dissipation: microcanonical Langevin Monte Carlo,
2023 (arXiv 2303.18221); Ver Steeg & Galstyan, Hamiltonian dynamics with non-Newtonian momentum for
rapid sampling, 2021; Sommer et al. 2026 (arXiv 2602.06500) for minibatches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params, dot, per_chain
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import Conditions, Integrator, LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.statistics import Evaluation

#: What ``sample`` says of minibatches of one shuffled epoch.
COLD_EPOCHS = (
    "Microcanonical: minibatches that are parts of one shuffled epoch leave the chain too cold, by "
    "up to their heat N eta / (2 B friction): variances came out a sixth too small at a heat of "
    "1.5. Give independent minibatches (data.SharedBatches of a DataLoader with "
    "RandomSampler(replacement=True)), or use dynamics.Underdamped"
    '(0.1, integrator="baoab")'
)


class Direction(NamedTuple):
    """u of every parameter: (chain, *shape), of length 1 over all of them."""

    direction: Params


@dataclass(frozen=True)
class Microcanonical(Integrator):
    """Langevin dynamics with a momentum of fixed length; ``friction`` is a, the share of its
    direction that a step forgets.

    >>> Microcanonical()
    Microcanonical(friction=0.1)
    """

    friction: float = 0.1

    needs_temperature = True

    def __post_init__(self) -> None:
        if isinstance(self.friction, bool) or not 0 < self.friction <= 1:
            raise ValueError(
                f"friction must be above 0 and at most 1, got {self.friction!r}: it is the share "
                "of the momentum's direction that a step forgets"
            )

    def check(self, on: LangevinDynamics, run: Conditions) -> None:
        if not bool((on.temperature > 0).all()):
            raise ValueError(
                f"Microcanonical needs a temperature above 0, got {on.temperature.tolist()}: at 0 "
                "its momentum has no length, and dynamics.Underdamped() is descent"
            )

    def init(self, params: Params) -> Direction:
        if _weights(params) < 2:
            raise ValueError(
                f"Microcanonical needs two weights or more, got {_weights(params)}: the momentum "
                "of a single weight has no direction. Use dynamics.Underdamped(0.1, "
                'integrator="baoab")'
            )
        return Direction({k: torch.zeros_like(p) for k, p in params.items()})

    def update(
        self,
        on: LangevinDynamics,
        state: State,
        evaluation: Evaluation,
        rates: Rates,
        num_data: float | Tensor,
    ) -> State:
        theta = state.params
        v = on.posterior_gradient(theta, evaluation.gradient, num_data)
        metric, C = on.metric(state, evaluation, rates, num_data)
        kicked = _turned(state.own.direction, C.transpose(v), self._angle(on, v, rates, num_data))
        u = self._refreshed(kicked, on.standard_normal(theta, state.step))
        way = C.forward({k: kicked[k] + u[k] for k in u})
        half = _length(on, theta, rates, num_data) / 2
        moved = {k: theta[k] + per_chain(half, way[k]) * way[k] for k in theta}
        return on.arrived(state, moved, metric, evaluation, rates, own=Direction(u))

    def relocated(
        self,
        on: LangevinDynamics,
        state: State,
        change: Callable[[], Params],
        rates: Rates,
        num_data: float | Tensor,
    ) -> Direction:
        """u stands half a kick before the direction that is independent of theta: half a kick back
        by the change in v, up to the product of two half kicks."""
        v = {k: -x for k, x in change().items()}
        force = on.factor(state.metric, v, num_data).transpose(v)
        half = self._angle(on, v, rates, num_data) / 2
        return Direction(_turned(state.own.direction, force, half))

    @property
    def cold_epochs(self) -> str:
        return COLD_EPOCHS

    def _angle(
        self, on: LangevinDynamics, like: Params, rates: Rates, num_data: float | Tensor
    ) -> Tensor:
        """R N / (T (d - 1)), what |A^T v| is multiplied by in D: (chain,)."""
        count, tau = on.weight(num_data), on.temperature_at(rates.kind)
        return _length(on, like, rates, num_data) * count / (tau * (_weights(like) - 1))

    def _refreshed(self, u: Params, z: Params) -> Params:
        """O: a share of u and of noise, of length 1 again."""
        kept = 1 - self.friction
        scale = ((1 - kept**2) / _weights(u)) ** 0.5
        w = {k: kept * x + scale * z[k] for k, x in u.items()}
        norm = dot(w, w).sqrt()
        return {k: x / per_chain(norm, x) for k, x in w.items()}


def _turned(u: Params, force: Params, angle: Tensor) -> Params:
    """B, with D = ``angle`` |force|; u stays at 0 only where there is no force.

    In z = e^{-D}, which cannot overflow: cosh and sinh times 2 z are 1 + z^2 and 1 - z^2."""
    square = dot(force, force)
    smallest = torch.finfo(square.dtype).tiny
    norm = square.sqrt()
    over = -1 / norm.clamp_min(smallest)  # e = over * force
    along = over * dot(force, u)
    lost = -torch.expm1(-angle * norm)  # 1 - z
    z = 1 - lost
    grown = (1 + z.square() + along * lost * (1 + z)).clamp_min(smallest)
    kept, added = 2 * z / grown, over * lost * (1 + z + along * lost) / grown
    return {k: per_chain(kept, x) * x + per_chain(added, x) * force[k] for k, x in u.items()}


def _length(on: LangevinDynamics, like: Params, rates: Rates, num_data: float | Tensor) -> Tensor:
    """R: (chain,)."""
    return on.noise_scale(rates, num_data, _weights(like) / 2)


def _weights(params: Params) -> int:
    """d."""
    return sum(p[0].numel() for p in params.values())
