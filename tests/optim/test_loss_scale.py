"""A GradScaler's scale, up to what float32 holds, changes no bit of a step and makes no NaN."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from natural_langevin import likelihoods, preconditioners
from natural_langevin.optim import NaturalLangevin

METRICS = {
    "quasi-diagonal": preconditioners.QuasiDiagonalFisher,
    "diagonal": preconditioners.DiagonalFisher,
    "kronecker": preconditioners.KroneckerFisher,
    "eigen": preconditioners.EigenKroneckerFisher,
    "unit": preconditioners.UnitFisher,
    "rmsprop": preconditioners.RMSProp,
    "euclidean": preconditioners.Euclidean,
}


@functools.cache
def run(metric: str, scale: float, *, unscale: bool = False, pieces: int = 1) -> dict:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=100, lr=1e-3, preconditioner=METRICS[metric](),
        scaler=scaler if unscale else None,
    )  # fmt: skip
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    for _ in range(6):
        optimizer.zero_grad()
        for a, b in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            loss = F.cross_entropy(model(a), b) / pieces
            scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.steps == 6
    return {n: p.detach().clone() for n, p in model.named_parameters()}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "power", [16, *(pytest.param(p, marks=pytest.mark.thorough) for p in (40, 68)), 100]
)
def test_the_scale_changes_no_bit(metric, power):
    plain, scaled = run(metric, 1.0), run(metric, 2.0**power)
    for name, value in plain.items():
        assert torch.isfinite(scaled[name]).all()
        assert torch.equal(scaled[name], value), (name, power)


@pytest.mark.parametrize("power", [16, 68])
def test_also_where_gradients_were_brought_to_scale_before(power):
    for name, value in run("quasi-diagonal", 1.0, unscale=True, pieces=3).items():
        found = run("quasi-diagonal", 2.0**power, unscale=True, pieces=3)[name]
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-7)


def test_a_scale_that_overflows_skips_the_step_and_keeps_the_weights():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=10**6)
    optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=100, lr=1e-3)
    x, y = 100 * torch.randn(8, 3), torch.arange(8) % 2
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert optimizer.steps == 0
    assert scaler.get_scale() == 2.0**125
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])


def test_micro_batches_of_very_different_gradients_add_up():
    """The second is 2^40 times the others; so are the sums, whichever comes first."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    metric = preconditioners.DiagonalFisher(damping=1e-3, ema_rate=1.0)
    optimizer = NaturalLangevin(
        model, likelihoods.Gaussian(sigma=1.0), num_data=10, lr=0.0, preconditioner=metric,
        reduction="sum", check_loss=False,
    )  # fmt: skip
    for size in (1.0, 2.0**40, 1.0):
        optimizer.loss(model(torch.ones(1, 2)), torch.full((1, 1), size)).backward()
    optimizer.step()
    expected = torch.full((1, 2), 2.0**80 / 3)
    torch.testing.assert_close(optimizer.state[model.weight]["second"], expected)


def test_gradients_that_were_brought_to_scale_need_no_scaler_where_nothing_is_squared():
    """The loss is then not compared with the likelihood's, whose factor nobody knows."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = NaturalLangevin(
        model, likelihoods.Categorical(), num_data=100, preconditioner=preconditioners.RMSProp()
    )
    loss = F.cross_entropy(model(torch.randn(12, 3)), torch.arange(12) % 2)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert optimizer.steps == 1
