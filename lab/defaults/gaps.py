"""Small problems beyond the data: gaps, ends and corners, one to three layers, against NUTS.

Test inputs lie where the data do and where they do not; ``gap`` says which. Test targets are of the
same law as the training targets.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab.defaults.small import Problem
from natural_langevin import likelihoods, models


def _noisy(clean: Tensor, sigma: float | Tensor, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return clean + sigma * torch.randn(clean.shape, generator=g)


def gap() -> Problem:
    """1-20-1 tanh: 40 rows on the two sides of a gap between -.8 and .8; test on [-2, 2]."""
    g = torch.Generator().manual_seed(11)
    side = torch.rand(40, 1, generator=g) * 1.0 + 0.8
    x = torch.where(torch.arange(40)[:, None] % 2 == 0, side, -side)
    there = torch.linspace(-2, 2, 161)[:, None]

    def wave(x: Tensor) -> Tensor:
        return torch.sin(2.5 * x) + 0.3 * x

    return Problem(
        "gap 1-20-1", x, _noisy(wave(x), 0.1, 12), there, _noisy(wave(there), 0.1, 13),
        likelihoods.Gaussian(sigma=0.1),
        lambda: models.mlp(1, 1, (20,), activation=nn.Tanh),
    )  # fmt: skip


def varying_noise() -> Problem:
    """1-12-2 tanh, a heteroscedastic Gaussian: 80 rows on [-1, 1], test on [-1.5, 1.5]."""
    g = torch.Generator().manual_seed(21)
    x = 2 * torch.rand(80, 1, generator=g) - 1
    there = torch.linspace(-1.5, 1.5, 121)[:, None]

    def width(x: Tensor) -> Tensor:
        return 0.1 + 0.3 * (x > 0) * x

    return Problem(
        "noise 1-12-2", x, _noisy(torch.sin(3 * x), width(x), 22), there,
        _noisy(torch.sin(3 * there), width(there), 23), likelihoods.HeteroscedasticGaussian(),
        lambda: models.mlp(1, 2, (12,), activation=nn.Tanh),
    )  # fmt: skip


def three_layers() -> Problem:
    """2-8-8-8-1 tanh: 100 rows of a square, test on a square one half wider."""
    g = torch.Generator().manual_seed(31)
    x = 2 * torch.rand(100, 2, generator=g) - 1
    there = 3 * torch.rand(150, 2, generator=g) - 1.5

    def hill(x: Tensor) -> Tensor:
        return torch.sin(2 * x[:, :1]) * x[:, 1:] + 0.5 * x[:, :1]

    return Problem(
        "corners 2-8-8-8-1", x, _noisy(hill(x), 0.1, 32), there, _noisy(hill(there), 0.1, 33),
        likelihoods.Gaussian(sigma=0.1),
        lambda: models.mlp(2, 1, (8, 8, 8), activation=nn.Tanh),
    )  # fmt: skip


def ring() -> Problem:
    """2-16-1 tanh: 60 rows on a ring, test inside of it and outside."""
    g = torch.Generator().manual_seed(41)
    angle, radius = torch.rand(2, 60, generator=g)
    angle, radius = 2 * torch.pi * angle, 1 + 0.2 * radius
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    there = 3 * torch.rand(150, 2, generator=g) - 1.5

    def bowl(x: Tensor) -> Tensor:
        return x[:, :1] * x[:, 1:] + x.square().sum(1, keepdim=True)

    return Problem(
        "ring 2-16-1", x, _noisy(bowl(x), 0.1, 42), there, _noisy(bowl(there), 0.1, 43),
        likelihoods.Gaussian(sigma=0.1),
        lambda: models.mlp(2, 1, (16,), activation=nn.Tanh),
    )  # fmt: skip


def five_inputs() -> Problem:
    """5-10-10-1 tanh: 120 rows of a cube, half of the test rows in its corners."""
    g = torch.Generator().manual_seed(51)
    x = 2 * torch.rand(120, 5, generator=g) - 1
    inside = 2 * torch.rand(75, 5, generator=g) - 1
    there = torch.cat([inside, 1.3 * inside.sign()])

    def plane(x: Tensor) -> Tensor:
        return torch.tanh(2 * x[:, :1] + x[:, 1:2]) + x[:, 2:3] * x[:, 3:4]

    return Problem(
        "corners 5-10-10-1", x, _noisy(plane(x), 0.1, 52), there, _noisy(plane(there), 0.1, 53),
        likelihoods.Gaussian(sigma=0.1),
        lambda: models.mlp(5, 1, (10, 10), activation=nn.Tanh),
    )  # fmt: skip


GAPS = (gap, varying_noise, three_layers, ring, five_inputs)


def beyond(problem: Problem) -> Tensor:
    """Which test rows are further from every training row than any of these is from its nearest
    neighbour: (n,)."""
    apart = torch.cdist(problem.x, problem.x).fill_diagonal_(torch.inf).amin(1)
    return torch.cdist(problem.x_test, problem.x).amin(1) > apart.max()
