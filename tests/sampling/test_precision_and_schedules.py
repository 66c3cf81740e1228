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


def test_draws_count_by_their_step_size() -> None:
    """Halved after every second draw, 1 : 1/2 : 1/4: four, two and one sevenths of the draws."""
    model = nn.Linear(1, 1)
    halving = schedules.halving(1e-3, every=70)
    sampler = Langevin(model, likelihoods.Gaussian(sigma=1.0), step_size=halving, chains=2)
    x = torch.ones(8, 1)
    posterior = sampler.sample((x, x), 210, batch_size=8, thin=10, progress=False)
    weights = torch.tensor(posterior.config["draw_weights"])
    torch.testing.assert_close(weights[0, ::7], torch.tensor([12, 6, 3]) / 7, rtol=1e-3, atol=0)
    weighted = posterior.weighted_by_step_size()
    assert weighted.draws == posterior.draws == 21
    for chain in range(2):
        before, after = (p.samples["weight"][chain].flatten() for p in (posterior, weighted))
        counts = [(after[:, None] == part).sum() for part in before.split(7)]
        assert [int(c) for c in counts] == [12, 6, 3]
    assert weighted.weighted_by_step_size() is weighted


def test_draws_of_a_constant_step_count_alike() -> None:
    x = torch.ones(8, 1)
    sampler = Langevin(nn.Linear(1, 1), likelihoods.Gaussian(sigma=1.0), step_size=1e-3, chains=2)
    posterior = sampler.sample((x, x), 20, batch_size=8, progress=False)
    assert posterior.weighted_by_step_size() is posterior


def test_weighted_draws_mend_a_schedule_that_freezes() -> None:
    """N(0, 1) sampled with ever smaller steps: the late draws are one draw, counted a thousand
    times. 400 chains that start there: their means spread less when draws count by their step."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    sampler = Langevin(
        model, likelihoods.Gaussian(sigma=1.0), prior=priors.Gaussian(1.0), num_data=1,
        preconditioner=preconditioners.Euclidean(), step_size=schedules.halving(0.2, every=100),
        chains=400,
    )  # fmt: skip
    x = torch.zeros(1, 1)
    posterior = sampler.sample((x, x), 1000, batch_size=1, thin=10, progress=False)
    plain, weighted = (
        p.samples["weight"].flatten(1).mean(1).var()
        for p in (posterior, posterior.weighted_by_step_size())
    )
    assert float(weighted) < 0.5 * float(plain)
