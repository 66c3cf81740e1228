"""Six small problems whose posterior can be sampled by NUTS: data, network, likelihood.

All data are generated from fixed seeds; the digits are scikit-learn's. Test targets are drawn from
the same law as the training targets, so a test NLL is an estimate of the expected one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from natural_langevin import data, likelihoods, models
from natural_langevin.likelihoods import Likelihood


@dataclass(frozen=True)
class Problem:
    """``x``, ``y`` to learn from, ``x_test``, ``y_test`` to score on."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    likelihood: Likelihood
    network: Callable[[], nn.Module]


def _split(name: str, x: Tensor, y: Tensor, train: int, likelihood: Likelihood,
           network: Callable[[], nn.Module]) -> Problem:  # fmt: skip
    return Problem(name, x[:train], y[:train], x[train:], y[train:], likelihood, network)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def regression_1d() -> Problem:
    """1-50-1 tanh, known noise: a wave on [-2, 2] with a gap in the middle."""
    g = _generator(1)
    x = torch.rand(600, 1, generator=g) * 4 - 2
    x = x[(x[:, 0] < -0.3) | (x[:, 0] > 0.6)][:440]
    y = torch.sin(3 * x) + 0.5 * x + 0.2 * torch.randn(x.shape, generator=g)
    net = lambda: models.mlp(1, 1, (50,), activation=nn.Tanh)  # noqa: E731
    return _split("regression 1-50-1", x, y, 100, likelihoods.Gaussian(sigma=0.2), net)


def moons() -> Problem:
    """Two interleaved half circles, 2-32-2."""
    g = _generator(2)
    count = 800
    label = torch.arange(count) % 2
    angle = torch.rand(count, generator=g) * torch.pi
    x = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    x = torch.where(label[:, None] == 1, torch.stack([1 - x[:, 0], 0.5 - x[:, 1]], 1), x)
    x = x + 0.3 * torch.randn(x.shape, generator=g)
    net = lambda: models.mlp(2, 2, (32,))  # noqa: E731
    return _split("moons 2-32-2", x, label, 200, likelihoods.Categorical(), net)


def two_layers() -> Problem:
    """8-50-50-1 ReLU regression of a product and a wave, known noise."""
    g = _generator(3)
    x = torch.randn(1300, 8, generator=g)
    clean = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    y = (clean + 0.5 * torch.randn(len(x), generator=g))[:, None]
    net = lambda: models.mlp(8, 1, (50, 50))  # noqa: E731
    return _split("regression 8-50-50-1", x, y, 500, likelihoods.Gaussian(sigma=0.5), net)


def counts() -> Problem:
    """Poisson counts, 3-20-1 tanh."""
    g = _generator(4)
    x = torch.randn(1100, 3, generator=g)
    rate = torch.exp(0.8 + 0.6 * torch.sin(x[:, 0]) + 0.4 * x[:, 1] * x[:, 2].tanh())
    y = torch.poisson(rate, generator=g)[:, None]
    net = lambda: models.mlp(3, 1, (20,), activation=nn.Tanh)  # noqa: E731
    return _split("counts 3-20-1", x, y, 300, likelihoods.Poisson(), net)


def three_classes() -> Problem:
    """Three overlapping classes in four dimensions, 4-16-3 tanh."""
    g = _generator(5)
    y = torch.arange(1200) % 3
    centres = torch.randn(3, 4, generator=g)
    x = centres[y] + torch.randn(len(y), 4, generator=g)
    net = lambda: models.mlp(4, 3, (16,), activation=nn.Tanh)  # noqa: E731
    return _split("classes 4-16-3", x, y, 150, likelihoods.Categorical(), net)


def small_images() -> Problem:
    """8x8 digits, a small convolutional network."""
    digits = data.load("digits")
    g = _generator(6)
    x = torch.cat([digits.train_x, digits.test_x]).reshape(-1, 1, 8, 8)
    y = torch.cat([digits.train_y, digits.test_y])
    order = torch.randperm(len(x), generator=g)

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 10)
        )

    return _split("digits CNN", x[order], y[order], 400, likelihoods.Categorical(), net)


PROBLEMS = (regression_1d, moons, two_layers, counts, three_classes, small_images)
