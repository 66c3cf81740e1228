"""The optimizer takes nothing that it ignores, and believes no loss but the likelihood's."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from natural_langevin import likelihoods, preconditioners
from natural_langevin.optim import NaturalLangevin

CLASSES = likelihoods.Categorical()


def regression() -> tuple[nn.Module, Tensor, Tensor]:
    return nn.Linear(3, 2), torch.randn(12, 3), torch.randn(12, 2)


def step(model, likelihood, loss, x, y, **options) -> NaturalLangevin:
    optimizer = NaturalLangevin(model, likelihood, num_data=100, **options)
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("group", "remedy"),
    [
        ({"weight_decay": 1e-2}, r"weight_decay=0\.01 .* no effect.* prior=priors.Gaussian\(1 /"),
        ({"momentum": 0.9}, r"momentum=0\.9 in a group has no effect"),
        ({"betas": (0.9, 0.99)}, "preconditioner has its own rates"),
        ({"warmth": 1}, "unknown option 'warmth'.* lr, temperature and prior"),
    ],
)
def test_options_that_would_be_ignored_are_refused(group: dict, remedy: str) -> None:
    model, x, y = regression()
    gaussian = likelihoods.Gaussian(sigma=1.0)
    with pytest.raises(ValueError, match=remedy):
        NaturalLangevin(model, gaussian, num_data=9, params=[{"params": "*", **group}])
    optimizer = NaturalLangevin(model, gaussian, num_data=9)
    optimizer.param_groups[0].update(group)  # afterwards, as some loops do
    optimizer.loss(model(x), y).backward()
    with pytest.raises(ValueError, match=remedy):
        optimizer.step()


def test_schedulers_keep_their_notes() -> None:
    model, x, y = regression()
    optimizer = NaturalLangevin(model, likelihoods.Gaussian(sigma=1.0), num_data=9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=4, cycle_momentum=False
    )
    optimizer.loss(model(x), y).backward()
    optimizer.step()
    schedule.step()
    assert optimizer.steps == 1


@pytest.mark.parametrize("metric", [preconditioners.QuasiDiagonalFisher, preconditioners.Euclidean])
def test_a_mean_square_is_no_gaussian_of_a_tenth(metric) -> None:
    """d mse = 2 (o - y) / (B D); the likelihood's is (o - y) / (sigma^2 B): 2 sigma^2 / D."""
    model, x, y = regression()
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match=r"is 0\.01 times that of .*Gaussian\(sigma=0\.1\)"):
        step(model, likelihoods.Gaussian(sigma=0.1), F.mse_loss, x, y, preconditioner=metric())
    assert torch.equal(before, model.weight)


def test_the_same_loss_is_right_where_it_is_the_likelihood() -> None:
    """2 sigma^2 / D = 1 for two outputs and sigma = 1; by hand; and whatever the factor, asked."""
    model, x, y = regression()
    one = likelihoods.Gaussian(sigma=1.0)
    assert step(model, one, F.mse_loss, x, y).steps == 1
    by_hand = lambda o, y: ((o - y) ** 2).sum(1).mean() / 2  # noqa: E731
    assert step(model, one, by_hand, x, y).steps == 1
    tenth = likelihoods.Gaussian(sigma=0.1)
    assert step(model, tenth, F.mse_loss, x, y, check_loss=False).steps == 1


@pytest.mark.parametrize(
    ("likelihood", "loss", "factor"),
    [
        (CLASSES, lambda o, y: F.cross_entropy(o, y, reduction="sum"), "12"),
        (CLASSES, lambda o, y: F.cross_entropy(o, y) / 4, r"0\.25"),
        (CLASSES, lambda o, y: F.nll_loss(o.log_softmax(1), y) * 2, "2"),
        (likelihoods.Bernoulli(), lambda o, y: F.binary_cross_entropy_with_logits(o, y), r"0\.5"),
    ],
    ids=["sum", "quarter", "double", "per output"],
)
def test_other_factors_are_said(likelihood, loss, factor: str) -> None:
    model, x, _ = regression()
    binary = isinstance(likelihood, likelihoods.Bernoulli)
    y = torch.randint(2, (12, 2)).float() if binary else torch.arange(12) % 2
    with pytest.raises(ValueError, match=rf"gradient is {factor} times that of the mean log-loss"):
        step(model, likelihood, loss, x, y)


def test_unequal_micro_batches_divided_by_their_number() -> None:
    """Parts of 10 and 2: each mean over 2 parts weighs the samples of the small one 6/12 x 12/2."""
    model, x, y = regression()
    y = y.argmax(1)
    for divide, fine in ((lambda k: 2, False), (lambda k: 12 / k, True)):
        optimizer = NaturalLangevin(model, CLASSES, num_data=100)
        for rows in (slice(0, 10), slice(10, 12)):
            part = F.cross_entropy(model(x[rows]), y[rows])
            (part / divide(len(y[rows]))).backward()
        if fine:
            optimizer.step()
            assert optimizer.steps == 1
            continue
        with pytest.raises(ValueError, match=r"is 0\.6 times .* micro-batch of 10 of 12 samples"):
            optimizer.step()


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: F.cross_entropy(o, y, label_smoothing=0.4),
        lambda o, y: F.cross_entropy(o, y, weight=torch.tensor([1.0, 5.0])),
    ],
    ids=["smoothed", "weighted"],
)
def test_a_loss_of_another_shape_is_warned_of(loss, caplog: pytest.LogCaptureFixture) -> None:
    model, x, y = regression()
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        step(model, CLASSES, loss, x, y.argmax(1))
    assert "the loss is not that of Categorical(" in caplog.text
    assert "off in direction" in caplog.text


def test_labels_that_are_never_seen_are_said(caplog: pytest.LogCaptureFixture) -> None:
    model, x, _ = regression()
    with caplog.at_level(logging.WARNING, logger="natural_langevin"):
        step(model, CLASSES, lambda o, y: o.logsumexp(1).mean(), x, None)
    assert "was not compared with Categorical(" in caplog.text


def test_outputs_are_plain_after_the_first_step() -> None:
    model, x, y = regression()
    optimizer = NaturalLangevin(model, likelihoods.Gaussian(sigma="rmse"), num_data=100)
    kinds = []
    for _ in range(2):
        optimizer.zero_grad()
        outputs = model(x)
        kinds.append(type(outputs))
        optimizer.loss(outputs, y).backward()
        optimizer.step()
    assert kinds[0] is not Tensor
    assert issubclass(kinds[0], Tensor)
    assert kinds[1] is Tensor


def test_what_is_looked_at_before_the_first_step_is_not_kept() -> None:
    """Passes without a backward leave no outputs behind, and a pass with one no activations."""
    model, x, y = regression()
    optimizer = NaturalLangevin(model, likelihoods.Gaussian(sigma=1.0), num_data=9)
    for _ in range(5):
        model(x)
    optimizer.loss(model(x), y).backward()
    assert len(optimizer._loss_check._passes) == 1
    optimizer.step()
    assert not optimizer._loss_check._passes
