"""Monte-Carlo errors against chains whose autocorrelation and disagreement are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from natural_langevin.posterior import monte_carlo


def autoregression(chains: int, draws: int, rho: float, apart: float, numbers: int) -> Tensor:
    """Of variance 1 within a chain; means of chains have the standard deviation ``apart``."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(draws + 1, chains, numbers, generator=generator, dtype=torch.float64)
    values = [noise[0]]
    for t in range(1, draws):
        values.append(rho * values[-1] + (1 - rho**2) ** 0.5 * noise[t])
    return torch.stack(values, 1) + apart * noise[-1][:, None]


def exact(chains: int, draws: int, rho: float, apart: float) -> float:
    """The standard deviation of the mean of all draws, over runs."""
    lags = torch.arange(1, draws, dtype=torch.float64)
    inefficiency = 1 + 2 * float(((1 - lags / draws) * rho**lags).sum())
    return math.sqrt((inefficiency / draws + apart**2) / chains)


@pytest.mark.parametrize("chains", [4, 8])
@pytest.mark.parametrize(
    ("draws", "rho", "apart"),
    [
        (480, 0.0, 0.0),
        (480, 0.5, 0.0),
        (480, 0.9, 0.0),
        (480, 0.99, 0.0),  # as long as a fifth of the chain
        (480, 0.9, 0.2),
        (480, 0.5, 2.0),  # modes
        (50, 0.9, 0.0),
        (20, 0.3, 1.0),
    ],
)
def test_errors_are_right_of_chains_that_agree_and_of_others(
    chains: int, draws: int, rho: float, apart: float
) -> None:
    """The standard deviation over runs divided by what a run reports, in the mean over 400 runs.
    That mean is known to 3 %: 1.085 of variances of four chains, whose roots are too small in the
    mean. Without the chains' own means the ratio is up to 5.7, with the larger of both .88."""
    values = autoregression(chains, draws, rho, apart, 400)
    error = monte_carlo.standard_error(values)
    assert error is not None
    assert 0.91 < exact(chains, draws, rho, apart) / float(error.mean()) < 1.15


def test_the_error_of_one_chain_is_by_its_parts() -> None:
    """sqrt((1 + rho) / ((1 - rho) n)) for an autoregression."""
    error = monte_carlo.standard_error(autoregression(1, 2500, 0.5, 0.0, 400))
    assert error is not None
    assert 0.9 < math.sqrt(3 / 2500) / float(error.mean()) < 1.05
    assert monte_carlo.standard_error(torch.zeros(1, 3, 2)) is None
    assert monte_carlo.standard_error(torch.zeros(2, 8, 0)) is None


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_the_log_score_and_its_error(apart: float) -> None:
    """The score itself by its definition; its error against the spread over independent runs, of
    chains alike and of chains with another scale each."""
    generator = torch.Generator().manual_seed(2)
    size = (200, 4, 64, 30)
    scale = (apart * torch.randn(200, 4, 1, 1, generator=generator, dtype=torch.float64)).exp()
    runs = -torch.randn(size, generator=generator, dtype=torch.float64).square() * scale
    readings = [monte_carlo.log_score(one) for one in runs]
    flat = runs[0].flatten(0, 1)
    assert readings[0].value == pytest.approx(float(-flat.exp().mean(0).log().mean()))
    spread = torch.tensor([r.value for r in readings]).std()
    error = torch.tensor([r.error for r in readings]).mean()
    assert 0.75 < float(spread / error) < 1.25  # 5 errors of a spread of 200, around 1
