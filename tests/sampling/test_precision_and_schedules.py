"""Precisions that cannot sample, schedules that stop exploring, noise that would repeat."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from natural_langevin import Langevin, likelihoods, preconditioners, priors, random, schedules
from natural_langevin.optim import NaturalLangevin
from natural_langevin.run.preparation import DEFAULT_STEP_SIZE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_refused(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 1).to(dtype)
    gaussian = likelihoods.Gaussian(sigma=1.0)
    with pytest.raises(TypeError, match=r"would never move.*model\.float\(\).*autocast"):
        Langevin(model, gaussian)
    with pytest.raises(TypeError, match=r"would never move"):
        NaturalLangevin(model, gaussian, num_data=10)


@pytest.mark.parametrize(("sigma", "tight"), [(1.0, False), (1e-3, True)])
def test_autocast_on_a_tight_posterior_is_warned_of(
    sigma: float, tight: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights of order 1 are rounded to 2^-9 = .002; the posterior has sd sigma / 10."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 3, generator=generator)
    model = nn.Linear(3, 1)
    y = model(x).detach() + sigma * torch.randn(100, 1, generator=generator)
    sampler = Langevin(
        model, likelihoods.Gaussian(sigma=sigma), prior=priors.Gaussian(1.0), step_size=0.05,
        preconditioner=preconditioners.DiagonalFisher(), autocast=torch.bfloat16, chains=2,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        posterior = sampler.sample((x, y), 20, batch_size=50, burn_in=10, progress=False)
    assert (posterior.config["autocast_shift"] > 0.1) is tight
    assert ("moves the gradient by" in caplog.text) is tight


def test_noise_never_repeats_within_a_step() -> None:
    """Addresses are 32 bits: a model of 2^32 weights fits, one more does not."""
    assert random.aligned_starts([1 << 31, 1 << 31]) == [0, 1 << 31]
    with pytest.raises(ValueError, match="2\\^32 normals per step"):
        random.aligned_starts([1 << 31, 1 << 31, 1])


def test_nor_where_a_step_draws_several_times() -> None:
    """UBU's four draws per weight lie one after the other in the chain's stream."""
    sampler = Langevin(nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), step_size=1e-3)
    frame, step = sampler.frame, torch.tensor(0)
    object.__setattr__(frame, "stream_length", 1 << 31)
    with pytest.raises(ValueError, match=r"2\^32 normals per step.*draw once per step"):
        frame.normals(step, draw=2)


@pytest.mark.parametrize(
    ("schedule", "steps", "said"),
    [
        (schedules.halving(1e-3, every=10_000), 20_000, False),
        (schedules.halving(1e-3, every=10_000), 100_000, True),
        (schedules.polynomial(1e-3, offset=10_000), 100_000, False),
        (schedules.constant(1e-3), 100_000, False),
        (schedules.cyclical(1e-3, period=100), 10_000, False),
    ],
)
def test_steps_that_a_schedule_does_not_support_are_said(
    schedule, steps: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = Langevin(nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), step_size=schedule)
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        sampler.prepare((torch.ones(8, 1), torch.ones(8, 1)), steps=steps, batch_size=8)
    assert ("its draws add next to nothing" in caplog.text) is said


def test_the_default_step_size_never_stops_exploring() -> None:
    """Sum eta grows without bound: as steps^(2/3), at least 4 times as far in 8 times the steps.

    A sum that converges, such as that of halving(1e-3, every=10_000), would stay below 20."""
    table = schedules.tabulate(DEFAULT_STEP_SIZE, 0, 800_000, name="step_size", chains=1)
    short, long = float(table[:100_000].sum()), float(table.sum())
    assert long / short > 4
    assert long > 100
