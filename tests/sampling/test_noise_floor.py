"""Learned noise of few rows: no smaller than what the rows can tell."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import Langevin, likelihoods, models
from natural_langevin.posterior import calibration


def straight(rows: int, noise: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 1, generator=generator)
    return x, 0.8 * x + noise * torch.randn(rows, 1, generator=generator)


def test_the_least_noise_is_a_row_s_part_of_the_targets_size() -> None:
    y = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).repeat(50, 1)
    assert calibration.least_noise(y) == pytest.approx(math.sqrt(0.5) / 100)
    learned = {"variance": torch.tensor([1e-9, 0.25])}
    found = calibration.raised(learned, y)["variance"]
    torch.testing.assert_close(found, torch.tensor([0.5e-4, 0.25]))


def test_ten_rows_of_a_function_without_noise_are_no_certainty() -> None:
    """By 50 tanh units; the noise of its chains is far below what ten rows can tell."""
    x, y = straight(300)
    model = models.mlp(1, 1, (50,), activation=nn.Tanh)
    sampler = Langevin(model, likelihoods.Gaussian("rmse"), chains=2)
    found = sampler.sample((x[:10], y[:10]), 2500, progress=False)
    least = calibration.least_noise(y[:10])
    assert found.sigma is not None
    assert found.sigma.tolist() == pytest.approx([least] * 2, rel=1e-5)
    scores = found.evaluate(x[10:], y[10:])
    assert scores.nll < scores.blind_nll  # type: ignore[operator]
