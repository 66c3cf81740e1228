"""Weights that only the prior sees: dead inputs and dead units, for every metric at the defaults.

There C is at its largest, and a step is theta <- (1 - k) theta + noise: an autoregression whose
variance is the prior's / (1 - k/2), k = eta precision c / N (``step_size_checks.largest_step``).
"""

from __future__ import annotations

import logging

import pytest
import torch
from monte_carlo import assert_within
from torch import nn

from natural_langevin import Langevin, likelihoods, priors
from natural_langevin.preconditioners import (
    DiagonalFisher,
    EigenKroneckerFisher,
    Euclidean,
    FullFisher,
    KroneckerFisher,
    QuasiDiagonalFisher,
    RMSProp,
    UnitFisher,
)

#: Step sizes at which the live weights are stable too.
ETA = {
    Euclidean: 0.05,
    RMSProp: 0.01,
    DiagonalFisher: 0.1,
    QuasiDiagonalFisher: 0.1,
    FullFisher: 0.1,
    UnitFisher: 0.1,
    KroneckerFisher: 0.1,
    EigenKroneckerFisher: 0.1,
}
N, VARIANCE, CHAINS = 101, 0.1, 256


def sampler(metric, eta: float, **options) -> Langevin:
    """Three inputs of which the last is always 0, and ReLU units of which one never fires."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        model[0].bias[2] = -1e3  # kept there by its prior
    return Langevin(
        model, likelihoods.Gaussian(sigma=1.0), step_size=eta, chains=CHAINS, init="model",
        prior={"0.bias": priors.Gaussian(VARIANCE, mean=0.0), "*": priors.Gaussian(VARIANCE)},
        preconditioner=metric, **options,
    )  # fmt: skip


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    x[:, 2] = 0
    return x, x[:, :1].sin()


@pytest.mark.parametrize("metric", ETA, ids=lambda m: m.__name__)
def test_dead_weights_have_the_law_of_their_prior(metric) -> None:
    """The weights of the dead input, and those into and out of the dead unit, whose bias walks
    back towards 0 too slowly to fire. From their start, exactly:

        theta_t ~ N((1 - k)^t theta_0, prior variance (1 - (1 - k)^2t) / (1 - k/2))."""
    run, steps = sampler(metric(), ETA[metric]), 40
    k = ETA[metric] / (N * VARIANCE) if metric is Euclidean else ETA[metric]
    posterior = run.sample(data(), steps, batch_size=N, burn_in=steps - 1, progress=False)
    start, decay = run.init().params, (1 - k) ** steps
    variance = VARIANCE / (1 - k / 2) * (1 - decay**2)
    dead = [("0.weight", (slice(0, 2), 2)), ("0.weight", (2,)), ("2.weight", (0, 2))]
    if metric is KroneckerFisher:  # C is 1/epsilon where both of its factors see nothing
        dead = [("0.weight", (2, 2))]
    for name, where in dead:
        z = (posterior.last[name] - decay * start[name])[:, *where] / variance**0.5
        moments = torch.stack([z.mean(), z.square().mean() - 1])
        error = torch.tensor([1.0, 2.0], dtype=z.dtype).sqrt() / z.numel() ** 0.5
        assert_within(moments, error)


@pytest.mark.parametrize(
    ("metric", "eta", "said"),
    [
        (DiagonalFisher(), 0.05, None),
        (DiagonalFisher(), 0.2, "comes out 1.11 times too large"),
        (RMSProp(), 0.2, "comes out 1.11 times too large"),
        (QuasiDiagonalFisher(damping=1e-4), 1e-3, "comes out 1.98 times too large"),  # k = .99
        (DiagonalFisher(), 2.5, "grows without bound"),
        (Euclidean(), 0.2 * N * VARIANCE, "comes out 1.11 times too large"),
    ],
    ids=["small", "Fisher", "RMSProp", "the paper's damping", "diverging", "Euclidean"],
)
def test_stiffness_is_said_with_its_size(
    metric, eta: float, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        sampler(metric, eta).prepare(data(), steps=3, batch_size=N)
    assert (said or "") in caplog.text
    assert bool(caplog.text) == (said is not None)
