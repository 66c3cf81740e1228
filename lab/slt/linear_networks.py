"""Random deep linear networks: their exact learning coefficient, data, and the truth at finite n.

The learning coefficient of W_L ... W_1 of rank r is known (Aoyagi 2023). At finite n the local one
is n beta (E[L_n] - L_n(w*)), under the same Gaussian prior as the estimate's: by Hamiltonian Monte
Carlo with Metropolis' decision, in float64, on the sufficient statistics of the data, whose cost
does not depend on n.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from natural_langevin import slt

#: Layers, widths and data of the random networks.
LAYERS, WIDTHS, ROWS = (2, 4), (4, 15), 20_000


class LinearNetwork(NamedTuple):
    """Weights w* of a network and data from it, with noise of variance 1: all float64."""

    weights: list[Tensor]
    rank: int
    x: Tensor
    y: Tensor

    @property
    def widths(self) -> list[int]:
        return [self.weights[0].shape[1], *(len(w) for w in self.weights)]

    @property
    def exact(self) -> float:
        return aoyagi(self.widths, self.rank)

    def model(self) -> nn.Sequential:
        """The network in float32."""
        layers = [nn.Linear(w.shape[1], w.shape[0], bias=False) for w in self.weights]
        for layer, w in zip(layers, self.weights, strict=True):
            layer.weight.data.copy_(w)
        return nn.Sequential(*layers)


def aoyagi(widths: list[int], rank: int) -> float:
    """The learning coefficient of a deep linear network of these widths at a truth of this rank.

    >>> aoyagi([5, 7], 5), aoyagi([3, 1, 4], 1), aoyagi([3, 1, 4], 0)
    (17.5, 3.0, 1.5)
    """
    free = sorted(w - rank for w in widths)
    for count in range(1, len(free)):
        inside, total = free[: count + 1], sum(free[: count + 1])
        outside = free[count + 1] if count + 1 < len(free) else math.inf
        if count * inside[-1] <= total < count * outside:
            whole = math.ceil(total / count)
            a = total - (whole - 1) * count
            pairs = (total**2 - sum(v * v for v in inside)) / 2
            regular = rank * (widths[0] + widths[-1] - rank) / 2
            singular = (
                a * (count - a) / (4 * count) - count * (count - 1) / 4 * (total / count) ** 2
            )
            return regular + singular + pairs / 2
    raise ValueError(f"no learning coefficient for widths {widths} and rank {rank}")


def network(seed: int, rows: int = ROWS) -> LinearNetwork:
    """Random widths, weights N(0, 1 / fan_in), in half of the cases of a lower rank."""
    g = torch.Generator().manual_seed(seed)
    layers = int(torch.randint(LAYERS[0], LAYERS[1] + 1, (1,), generator=g))
    widths = torch.randint(WIDTHS[0], WIDTHS[1] + 1, (layers + 1,), generator=g).tolist()
    weights = [
        torch.randn(o, i, generator=g, dtype=torch.float64) / math.sqrt(i)
        for i, o in itertools.pairwise(widths)
    ]
    rank = min(widths)
    if torch.rand(1, generator=g) < 0.5:
        place, rank = (
            int(torch.randint(0, layers, (1,), generator=g)),
            int(torch.randint(1, rank + 1, (1,), generator=g)),
        )
        u, s, v = torch.linalg.svd(weights[place], full_matrices=False)
        s[rank:] = 0
        weights[place] = u @ torch.diag(s) @ v
    x = torch.randn(rows, widths[0], generator=g, dtype=torch.float64)
    y = x @ torch.linalg.multi_dot(weights[::-1]).T if layers > 1 else x @ weights[0].T
    return LinearNetwork(weights, rank, x, y + torch.randn(y.shape, generator=g, dtype=y.dtype))


class Truth(NamedTuple):
    """The finite-n coefficient with its Monte-Carlo error, the mean acceptance, and by how much the
    first half of the kept trajectories is above the second."""

    value: float
    error: float
    acceptance: float
    drift: float


def truth(
    of: LinearNetwork, *, power: float, gamma: float = 1.0, variance: float | None = None,
    chains: int = 96, trajectories: int = 40, burn_in: int = 14, steps: int = 600, seed: int = 0,
) -> Truth:  # fmt: skip
    """n beta (E[L_n] - L_n(w*)) by HMC, under the prior of ``slt.localised``, or with one
    ``variance`` for all weights."""
    n, weights = len(of.x), of.weights
    prior = slt.localised({str(k): w for k, w in enumerate(weights)}, gamma=gamma)
    variances = [float(prior[str(k)].variance) for k in range(len(weights))]  # type: ignore[attr-defined]
    if variance is not None:
        variances = [variance] * len(weights)
    second = of.x.T @ of.x / n
    best, root = torch.linalg.solve(second, of.x.T @ of.y / n).T, torch.linalg.cholesky(second)

    def loss(theta: list[Tensor]) -> Tensor:
        product = theta[0]
        for w in theta[1:]:
            product = w @ product
        return ((product - best) @ root).square().sum((-1, -2)) / 2

    def evaluated(theta: list[Tensor]) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        theta = [t.detach().requires_grad_() for t in theta]
        own = loss(theta)
        away = [(t - w).square().sum((-1, -2)) / (2 * v)
                for t, w, v in zip(theta, weights, variances, strict=True)]  # fmt: skip
        energy = n * power * own + sum(away)
        return torch.autograd.grad(energy.sum(), theta), energy.detach(), own.detach()

    g = torch.Generator().manual_seed(seed)
    theta = [w.expand(chains, *w.shape).clone() for w in weights]
    slope, energy, own = evaluated(theta)
    size, kept, rates = 0.5 / math.sqrt(4 * n * power), [], []
    for trajectory in range(trajectories):
        momentum = [torch.randn(t.shape, generator=g, dtype=t.dtype) for t in theta]
        before = energy + sum(p.square().sum((-1, -2)) for p in momentum) / 2
        eta = size * (0.8 + 0.4 * torch.rand(chains, 1, 1, generator=g, dtype=torch.float64))
        there, pull = [t.clone() for t in theta], slope
        for _ in range(steps if trajectory > 1 else steps // 4):
            momentum = [p - eta / 2 * s for p, s in zip(momentum, pull, strict=True)]
            there = [t + eta * p for t, p in zip(there, momentum, strict=True)]
            pull, now, lost = evaluated(there)
            momentum = [p - eta / 2 * s for p, s in zip(momentum, pull, strict=True)]
        after = now + sum(p.square().sum((-1, -2)) for p in momentum) / 2
        rate = (before - after).clamp(max=0).exp().nan_to_num(0.0)
        accept = torch.rand(chains, generator=g, dtype=torch.float64) < rate
        rows = accept[:, None, None]
        theta = [torch.where(rows, a, b) for a, b in zip(there, theta, strict=True)]
        slope = tuple(torch.where(rows, a, b) for a, b in zip(pull, slope, strict=True))
        energy, own = torch.where(accept, now, energy), torch.where(accept, lost, own)
        if trajectory < burn_in:
            size *= math.exp(0.6 * (float(rate.mean()) - 0.8))
        else:
            kept.append(n * power * (own - loss(weights)))
            rates.append(float(rate.mean()))
    values = torch.stack(kept)
    half = len(values) // 2
    return Truth(
        float(values.mean()), float(values.mean(0).std() / math.sqrt(chains)),
        sum(rates) / len(rates), float(values[:half].mean() - values[half:].mean()),
    )  # fmt: skip
