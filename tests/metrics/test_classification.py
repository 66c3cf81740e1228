"""Scores of probabilities against loops over samples, scikit-learn and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from torch import Tensor

from natural_langevin import metrics


@pytest.fixture
def predictions() -> tuple[Tensor, Tensor]:
    """300 probabilities over 4 classes, in float64, and labels that do not quite follow them."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(300, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    return logits.softmax(1), (logits + 2 * noise).argmax(1)


def test_log_loss_and_brier(predictions: tuple[Tensor, Tensor]) -> None:
    p, y = predictions
    assert metrics.nll(p, y) == pytest.approx(log_loss(y.numpy(), p.numpy()))
    by_class = sum(brier_score_loss((y == k).numpy(), p[:, k].numpy()) for k in range(4))
    assert metrics.brier(p, y) == pytest.approx(by_class)


def binned_gap(confidence: Tensor, right: Tensor, bins: int) -> float:
    """The definition, one bin at a time."""
    total = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            gap = right[inside].double().mean() - confidence[inside].mean()
            total += float(inside.double().mean() * gap.abs())
    return total


def test_calibration_errors(predictions: tuple[Tensor, Tensor]) -> None:
    p, y = predictions
    confidence, predicted = p.max(1)
    found = metrics.expected_calibration_error(p, y, bins=10)
    assert found == pytest.approx(binned_gap(confidence, predicted == y, 10), abs=1e-6)
    assert found > 0.05
    by_class = [binned_gap(p[:, k], y == k, 10) for k in range(4)]
    expected = sum(by_class) / 4
    assert metrics.classwise_calibration_error(p, y, bins=10) == pytest.approx(expected, abs=1e-6)


def test_reliability_adds_up_to_the_calibration_error(predictions: tuple[Tensor, Tensor]) -> None:
    p, y = predictions
    found = metrics.reliability(p, y, bins=10)
    assert int(found.count.sum()) == 300
    gap = (found.count * (found.accuracy - found.confidence).abs()).sum() / 300
    expected = metrics.expected_calibration_error(p, y, bins=10)
    assert float(gap) == pytest.approx(expected, abs=1e-6)
    axes = metrics.plot_reliability(found, label="some network")
    assert axes.get_xlabel() == "confidence"
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["some network"]


def test_labels_drawn_from_the_probabilities_are_calibrated(
    predictions: tuple[Tensor, Tensor],
) -> None:
    """Every bin within 4 standard errors, and wrong by more than that when squared."""
    p = predictions[0].repeat(40, 1)
    y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    found = metrics.reliability(p, y, bins=10)
    assert ((found.accuracy - found.confidence) / found.error).abs().max() < 4
    sharp = metrics.reliability(p**2 / (p**2).sum(1, keepdim=True), y, bins=10)
    assert ((sharp.accuracy - sharp.confidence) / sharp.error).abs().max() > 10


def test_risk_coverage(predictions: tuple[Tensor, Tensor]) -> None:
    p, y = predictions
    confidence, predicted = p.max(1)
    wrong = (predicted != y).double()
    curve = metrics.risk_coverage(-confidence, wrong)
    order = sorted(range(300), key=lambda n: -float(confidence[n]))
    risks = [float(wrong[order[:k]].mean()) for k in range(1, 301)]
    torch.testing.assert_close(curve.risk, torch.tensor(risks, dtype=torch.float64))
    assert curve.area == pytest.approx(sum(risks) / 300)
    assert float(curve.risk[-1]) == pytest.approx(1 - metrics.accuracy(p, y))
    assert curve.area < float(wrong.mean())  # confidence says something
    with pytest.raises(ValueError, match=r"\(300,\) and \(4,\)"):
        metrics.risk_coverage(confidence, wrong[:4])


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_ood_auroc(scale: float) -> None:
    """Against scikit-learn, with ties, in units where a sigmoid would saturate."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(80, generator=generator).round(decimals=1) * scale
    outside = (torch.randn(50, generator=generator).round(decimals=1) + 1) * scale
    labels = [0] * 80 + [1] * 50
    expected = roc_auc_score(labels, torch.cat([inside, outside]).numpy())
    assert metrics.ood_auroc(inside, outside) == pytest.approx(expected, abs=1e-6)
    assert 0.6 < expected < 0.95


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_temperature_scaling_undoes_a_power(power: float) -> None:
    """Labels from p, but the model says p^power: the scale is the power, to its standard error."""
    generator = torch.Generator().manual_seed(2)
    log_p = torch.randn(4000, 3, generator=generator, dtype=torch.float64).log_softmax(1)
    y = torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
    sharp = (power * log_p).softmax(1)
    found = metrics.TemperatureScaling.fit(sharp, y)
    # Fisher information of 1/scale in units of 1/power: the mean variance of log p under p.
    variance = (log_p.exp() * log_p.square()).sum(1) - (log_p.exp() * log_p).sum(1).square()
    assert abs(found.scale / power - 1) < 4 / math.sqrt(float(variance.sum()))
    assert metrics.nll(found(sharp), y) <= metrics.nll(sharp, y) + 1e-12
    for nudged in (0.99, 1.01):
        other = metrics.TemperatureScaling(found.scale * nudged)
        assert metrics.nll(other(sharp), y) > metrics.nll(found(sharp), y)


def test_probabilities_that_round_above_one_are_still_probabilities() -> None:
    """An average of float32 ones can be such: there is no bin for them but the last."""
    y = torch.arange(40) % 4
    p = torch.nn.functional.one_hot(y, 4).float()
    p[0] *= 1 + 2 * torch.finfo(torch.float32).eps
    assert p.max() > 1
    assert metrics.expected_calibration_error(p, y) == pytest.approx(0, abs=1e-6)
    assert metrics.classwise_calibration_error(p, y) == pytest.approx(0, abs=1e-6)
