"""Problems on which rules may be chosen: generated, so that every seed is another table. The twenty
(``problems``) are kept for what is claimed of the rules, and are not among them.

Targets that are numbers are standardised by their training rows; ``TEST`` rows are scored on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lab.defaults.problems import Problem
from natural_langevin import models

TEST = 1000


def _made(rows: int, inputs: int, seed: int, target: Callable[[Tensor, torch.Generator], Tensor],
          *, hidden: tuple[int, ...] = (50,), outputs: int | None = None,
          activation: type[nn.Module] = nn.ReLU, size: float = 1.0) -> Problem:  # fmt: skip
    g = torch.Generator().manual_seed(1000 + seed)
    x = size * torch.randn(rows + TEST, inputs, generator=g)
    y = target(x, g)
    if y.is_floating_point():
        y = (y - y[:rows].mean(0)) / y[:rows].std(0)

    def make(dropout: float, seed: int) -> nn.Module:
        return models.mlp(
            inputs, outputs or 1, hidden, dropout=dropout, seed=seed, activation=activation
        )

    return Problem(x[:rows], y[:rows], x[rows:], y[rows:], make)


class _Decay(nn.Module):
    """a exp(-b x) + c, three weights that are no layers'."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.weights = nn.Parameter(0.5 + 0.1 * torch.randn(3, generator=g))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.weights
        return a * (-b * x).exp() + c


def _noise(like: Tensor, g: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=g)


def _labels(logits: Tensor, g: torch.Generator) -> Tensor:
    return torch.multinomial(logits.softmax(-1), 1, generator=g)[:, 0]


def wave(seed: int) -> Problem:
    """A steep function of one input, 80 rows."""
    return _made(
        80, 1, seed, lambda x, g: torch.sin(4 * x) + 0.2 * _noise(x, g), activation=nn.Tanh
    )


def plane(seed: int) -> Problem:
    """A linear function of four inputs by a linear model, 60 rows."""
    return _made(
        60, 4, seed, lambda x, g: x[:, :2].sum(1, keepdim=True) + 0.5 * _noise(x[:, :1], g),
        hidden=(),
    )  # fmt: skip


def correlated(seed: int) -> Problem:
    """Eight inputs that have most of their variance in common, 300 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        x += 3 * x[:, :1]
        return torch.tanh(x[:, 1:2] - x[:, 2:3]) + 0.3 * _noise(x[:, :1], g)

    return _made(300, 8, seed, target)


def sparse(seed: int) -> Problem:
    """Forty inputs of which two count, 150 rows."""
    return _made(
        150, 40, seed, lambda x, g: x[:, :1] * x[:, 1:2] + x[:, :1] + 0.3 * _noise(x[:, :1], g)
    )


def exact(seed: int) -> Problem:
    """Noise of a hundredth, 400 rows of five inputs, two hidden layers."""
    return _made(
        400, 5, seed,
        lambda x, g: torch.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] / 2 + 0.01 * _noise(x[:, :1], g),
        hidden=(50, 50),
    )  # fmt: skip


def outliers(seed: int) -> Problem:
    """Noise of Student's t with two degrees of freedom, 500 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        chi = _noise(x[:, :2], g).square().sum(1, keepdim=True) / 2
        return torch.sin(2 * x[:, :1]) + x[:, 1:2] + 0.2 * _noise(x[:, :1], g) / chi.sqrt()

    return _made(500, 3, seed, target)


def uneven(seed: int) -> Problem:
    """Noise that grows with an input, 1,000 rows."""
    return _made(
        1000, 6, seed,
        lambda x, g: x[:, :1].square() + x[:, 1:2] + (0.5 * x[:, 2:3]).exp() * _noise(x[:, :1], g),
    )  # fmt: skip


def few(seed: int) -> Problem:
    """Twenty-five rows of three inputs."""
    return _made(25, 3, seed, lambda x, g: x[:, :1] + 0.5 * x[:, 1:2] + 0.5 * _noise(x[:, :1], g))


def rings(seed: int) -> Problem:
    """Two classes by the distance from the middle, 300 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        logit = 6 * (x.square().sum(1) - 1.4)
        return _labels(torch.stack([torch.zeros_like(logit), logit], 1), g)

    return _made(300, 2, seed, target, outputs=2)


def blurred(seed: int) -> Problem:
    """Three classes of ten inputs, a tenth of them by chance, 800 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        y = _labels(3 * torch.stack([x[:, 0], x[:, 1] * x[:, 2], x[:, 3].abs()], 1), g)
        other = torch.randint(0, 3, y.shape, generator=g)
        return torch.where(torch.rand(y.shape, generator=g) < 0.1, other, y)

    return _made(800, 10, seed, target, outputs=3)


def rare(seed: int) -> Problem:
    """One row in twenty is of the second class, 500 rows of twenty inputs."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        logit = 2 * x[:, :3].sum(1) - 6
        return _labels(torch.stack([torch.zeros_like(logit), logit], 1), g)

    return _made(500, 20, seed, target, outputs=2)


def clear(seed: int) -> Problem:
    """Five classes of which there is hardly a doubt, 600 rows, two hidden layers."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        return _labels(8 * torch.stack([x[:, k] + x[:, k + 5] for k in range(5)], 1), g)

    return _made(600, 10, seed, target, outputs=5, hidden=(32, 32))


def bowl(seed: int) -> Problem:
    """A quadratic function of three inputs, 180 rows: one minibatch of all."""
    return _made(
        180, 3, seed, lambda x, g: x.square().sum(1, keepdim=True) + 0.5 * _noise(x[:, :1], g)
    )


def wild(seed: int) -> Problem:
    """200 rows, of which two are thirty deviations off."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        y = torch.sin(2 * x[:, :1]) + x[:, 1:2] + 0.3 * _noise(x[:, :1], g)
        y[0], y[1] = 40, -40
        return y

    return _made(200, 3, seed, target)


def words(seed: int) -> Problem:
    """Counts of 300 words in 400 texts of three kinds, by which some words are likelier."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        y = torch.randint(0, 3, (len(x),), generator=g)
        rate = 0.1 * (0.7 * torch.randn(3, x.shape[1], generator=g)).exp()
        x.copy_(torch.poisson(rate[y], generator=g))
        return y

    return _made(400, 300, seed, target, hidden=(20,), outputs=3)


def decay(seed: int) -> Problem:
    """Three weights that are no network's, 60 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        x.abs_()
        return 2 * (-1.5 * x).exp() + 0.1 * _noise(x, g)

    problem = _made(60, 1, seed, target)
    return problem._replace(make=lambda _, seed: _Decay(seed))


def odds(seed: int) -> Problem:
    """Two classes by a linear function of six inputs that have most of their variance in common, by
    a linear model, 2,000 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        x += 2 * x[:, :1]
        logit = x[:, 1] - x[:, 2]
        return _labels(torch.stack([torch.zeros_like(logit), logit], 1), g)

    return _made(2000, 6, seed, target, hidden=(), outputs=2)


def slopes(seed: int) -> Problem:
    """A linear function of ten inputs, of which one is nearly the sum of others, by a linear model,
    1,000 rows."""

    def target(x: Tensor, g: torch.Generator) -> Tensor:
        x[:, 0] = x[:, 1] + x[:, 2] + 0.1 * x[:, 0]
        return x[:, :1] + x[:, 3:4] + _noise(x[:, :1], g)

    return _made(1000, 10, seed, target, hidden=())


def many(seed: int) -> Problem:
    """20,000 rows of eight inputs."""
    return _made(
        20_000, 8, seed,
        lambda x, g: torch.sin(2 * x[:, :1]) * x[:, 1:2] + x[:, 2:3].abs() + _noise(x[:, :1], g),
    )  # fmt: skip


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    one.__name__: one
    for one in (
        wave, plane, correlated, sparse, exact, outliers, uneven, few, rings, blurred, rare, clear,
        bowl, wild, words, decay, odds, slopes, many,
    )
}  # fmt: skip
