"""The stationary variance of an integrator, to rounding, without sampling.

A step is a deterministic map, read off the dynamics themselves at T = 0 (points as chains), and
Gaussian noise, whose covariance is that of the equations. One weight, one datum, C = 1, T = 1.

Gaussian target, U = theta^2 / 2: the map is linear, z <- M z + n with z = (theta, r), and the
variance solves S = M S M^T + Q.

Quartic target, U = theta^2 / 2 + theta^4 / 4: expectations one step ahead are a matrix P on the
values of a function at Chebyshev points (noise by Gauss-Hermite), and the stationary law is its
left eigenvector. This is for chains with a state of one number: Overdamped, and BAOAB with friction
1, where momentum is nothing but the last noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import solve_discrete_lyapunov
from test_dynamics import free_noise, kicked_noise, ou_noise
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.dynamics import Integrator, Overdamped, Underdamped
from natural_langevin.preconditioners import Euclidean

FRICTION = 0.3
GAUSSIAN: dict[str, Integrator] = {
    "overdamped": Overdamped(),
    "euler": Underdamped(friction=FRICTION),
    "baoab": Underdamped(friction=FRICTION, integrator="baoab"),
    "ubu": Underdamped(friction=FRICTION, integrator="ubu"),
}
QUARTIC: dict[str, Integrator] = {
    "overdamped": Overdamped(),
    "baoab, friction 1": Underdamped(friction=1.0, integrator="baoab"),
}
ETAS = [0.08 / 2**k for k in range(6)]
#: Slope of ln |bias| against ln eta; None: there is no bias.
THEORY: dict[tuple[str, str], int | None] = {
    ("gaussian", "overdamped"): 1,
    ("gaussian", "euler"): 1,
    ("gaussian", "baoab"): None,
    ("gaussian", "ubu"): 1,
    ("quartic", "overdamped"): 1,
    ("quartic", "baoab, friction 1"): 2,
}
#: bias / eta where the target is Gaussian of variance 1, as eta vanishes.
LEADING = {"overdamped": 1 / 2, "euler": 1 / (2 * (2 - FRICTION)), "ubu": -1 / 6}


class Point(nn.Module):
    """A weight that is its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(len(x), 1)


def moved(
    integrator: Integrator, eta: float, theta: Tensor, r: Tensor, quartic: float
) -> tuple[Tensor, Tensor]:
    """(theta, r) after a step at T = 0 of U = theta^2 / 2 + quartic theta^4."""

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.square() / 2 + quartic * outputs**4)[:, 0]

    sampler = Langevin(
        Point(), likelihoods.LogLoss(loss), prior=priors.Flat(), preconditioner=Euclidean(),
        step_size=eta, temperature=0.0, chains=len(theta), num_data=1, dynamics=integrator,
        mean_rate=None,
    )  # fmt: skip
    state = sampler.init()._replace(params={"theta": theta[:, None]})
    if state.own:
        state = state._replace(own=type(state.own)({"theta": r[:, None]}))
    after, _ = sampler.step(state, (torch.zeros(1, 1).double(), torch.zeros(1, 1).double()))
    momentum = after.own.momentum["theta"][:, 0] if after.own else torch.zeros_like(theta)
    return after.params["theta"][:, 0], momentum


def gaussian_bias(name: str, eta: float) -> float:
    """Var theta - 1."""
    integrator, one = GAUSSIAN[name], torch.ones(1, 1).double()
    unit = torch.eye(2).double()
    M = torch.stack(moved(integrator, eta, unit[0], unit[1], 0.0))
    if name == "overdamped":
        return float(2 * eta / (1 - M[0, 0] ** 2)) - 1
    noise = {"euler": kicked_noise, "baoab": ou_noise, "ubu": free_noise}[name]
    Q = eta * noise(FRICTION)(one)
    if name == "ubu":  # the first half's noise passes through the kick and the second half
        g, rho = -math.log1p(-FRICTION), math.sqrt(1 - FRICTION)
        rest = M @ torch.linalg.inv(torch.tensor([[1, (1 - rho) / g], [0, rho]]).double())
        Q = Q + rest @ Q @ rest.mT
    return float(solve_discrete_lyapunov(M.numpy(), Q.numpy())[0, 0]) - 1


def quartic_bias(name: str, eta: float, *, points: int = 80, nodes: int = 32) -> float:
    """E theta^2 over its exact value, less 1."""
    angle = math.pi * (np.arange(points) + 0.5) / points
    x = 4.0 * np.cos(angle)
    xi, weight = np.polynomial.hermite_e.hermegauss(nodes)
    weight = weight / weight.sum()
    scale = math.sqrt(2 * eta if name == "overdamped" else eta)
    start = np.repeat(x, nodes)
    noise = scale * np.tile(xi, points)
    if name == "overdamped":
        seen = start
        there, _ = moved(QUARTIC[name], eta, *map(torch.from_numpy, (seen, 0 * seen)), 0.25)
        there = there.numpy() + noise
    else:  # from the middle of a step to that of the next: half the noise, kick, half the way
        seen = start + noise / 2
        there = moved(QUARTIC[name], eta, *map(torch.from_numpy, (seen, noise)), 0.25)[0].numpy()
    # Interpolation at Chebyshev points, as sums of Chebyshev polynomials; outside: the end.
    degree = np.arange(points)
    to_coefficients = np.cos(np.outer(degree, angle)) * np.where(degree, 2, 1)[:, None] / points
    inside = np.arccos(np.clip(there / 4.0, -1, 1))
    values = np.cos(np.outer(inside, degree)) @ to_coefficients
    P = np.einsum("q,iqj->ij", weight, values.reshape(points, nodes, points))
    system = np.vstack([P.T - np.eye(points), np.ones(points)])
    law = np.linalg.lstsq(system, np.eye(points + 1)[-1], rcond=None)[0]
    found = float(law @ (np.square(seen).reshape(points, nodes) @ weight))
    fine = np.linspace(-6, 6, 4001)
    density = np.exp(-(fine**2) / 2 - fine**4 / 4)
    return found / float((density * fine**2).sum() / density.sum()) - 1


def bias(target: str, name: str, eta: float) -> float:
    """Relative bias of the stationary second moment."""
    return (gaussian_bias if target == "gaussian" else quartic_bias)(name, eta)


def slope(etas: list[float], biases: list[float]) -> tuple[float, float]:
    """s of ln |bias| = c + s ln eta + d eta by least squares, and its standard error."""
    u, v = np.array(etas), np.log(np.abs(biases))
    design = np.stack([np.log(u), np.ones_like(u), u], axis=1)
    found, *_ = np.linalg.lstsq(design, v, rcond=None)
    spread = np.square(v - design @ found).sum() / (len(u) - 3)
    return float(found[0]), float(math.sqrt(spread * np.linalg.inv(design.T @ design)[0, 0]))
