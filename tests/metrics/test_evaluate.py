"""posterior.evaluate against every score computed by hand from ``predict``, and its words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natural_langevin import likelihoods, metrics
from natural_langevin.likelihoods.predictive import Mixture
from natural_langevin.metrics.summary import RegressionScores
from small_run import disagreeing

Data = tuple[Tensor, Tensor]


def test_classes(network: nn.Module, classes: Data) -> None:
    x, y = classes
    posterior = disagreeing(network, likelihoods.Categorical(), classes)
    found = posterior.evaluate(x, y, ood=10 * x + 5, batch_size=7)
    p = posterior.predict(x)
    assert found.count == 40
    assert found.nll == pytest.approx(metrics.nll(p.mean, y), rel=1e-5)
    assert found.accuracy == metrics.accuracy(p.mean, y)
    assert found.brier == pytest.approx(metrics.brier(p.mean, y), rel=1e-5)
    other = posterior.predict(10 * x + 5).epistemic
    assert found.ood_auroc == pytest.approx(metrics.ood_auroc(p.epistemic, other))
    wrong = (p.mean.argmax(1) != y).double()
    expected = metrics.risk_coverage(-p.mean.amax(1), wrong).area
    assert found.risk_coverage_area == pytest.approx(expected)
    text = str(found)
    assert text.startswith("40 samples")
    assert f"{found.nll:.4f}" in text
    assert "out-of-distribution AUROC" in text
    assert "AUROC" not in str(posterior.evaluate(x, y))


def test_binary_targets_are_samples_each(network: nn.Module, regression: Data) -> None:
    x, y = regression[0], (regression[1] > 0).float()
    posterior = disagreeing(network, likelihoods.Bernoulli(), (x, y))
    found = posterior.evaluate(x, y)
    p = posterior.predict(x).mean.double()
    expected = -torch.where(y == 1, p, 1 - p).log().mean()
    assert found.count == 120
    assert found.nll == pytest.approx(float(expected), rel=1e-4)
    assert found.accuracy == pytest.approx(float(((p > 0.5) == (y == 1)).double().mean()))


def test_regression(network: nn.Module, regression: Data) -> None:
    x, y = regression
    posterior = disagreeing(network, likelihoods.Gaussian(sigma=0.3), regression)
    found = posterior.evaluate(x, y, ood=10 * x)
    p = posterior.predict(x, quantiles=(0.05, 0.95))
    log_p = torch.distributions.Normal(p.samples.double(), 0.3).log_prob(y.double()).sum(2)
    expected = -(log_p.exp().mean(0).log()).mean()
    assert found.nll == pytest.approx(float(expected), rel=1e-4)
    assert found.rmse == pytest.approx(float((p.mean - y).square().mean().sqrt()), rel=1e-5)
    inside = (p.quantiles[0] <= y) & (y <= p.quantiles[1])
    assert found.coverage[0.9] == pytest.approx(float(inside.double().mean()), abs=1e-9)
    assert found.crps == pytest.approx(metrics.crps(p.samples, 0.09, y))
    assert found.ood_auroc > 0.7  # ten times as far out
    assert "inside 90% intervals" in str(found)


def test_estimates_differ(network: nn.Module, classes: Data) -> None:
    posterior = disagreeing(network, likelihoods.Categorical(), classes)
    scores = {e: posterior.evaluate(*classes, estimate=e).nll for e in ("ensemble", "mean", "last")}
    assert len(set(scores.values())) == 3


def test_what_cannot_be_scored_is_refused(network: nn.Module, regression: Data) -> None:
    loss = likelihoods.LogLoss(lambda outputs, y: (outputs - y).square().sum(1))
    posterior = disagreeing(network, loss, regression)
    with pytest.raises(TypeError, match="LogLoss has no predictive distribution"):
        posterior.evaluate(*regression)
    posterior = disagreeing(network, likelihoods.Gaussian(sigma=0.3), regression)
    with pytest.raises(ValueError, match="they must agree"):
        posterior.evaluate(regression[0], regression[1][:, :2])


def test_right_intervals_of_counts_are_not_called_wide() -> None:
    """Of counts around .3, the central interval of 90 % goes from 0 to 1 and holds 96 %."""
    mixture = Mixture(likelihoods.Poisson(), torch.full((2, 2000, 1), 0.3).log(), {})
    y = torch.poisson(torch.full((2000, 1), 0.3), generator=torch.Generator().manual_seed(0))
    found = RegressionScores.of(mixture, y, outside=None)
    assert abs(found.coverage[0.9] - 0.963) < 0.02
    assert not any("Intervals" in said for said in found.verdicts)
    assert "96.3% ± 0.4% if the intervals are right" in str(found)
    twice = RegressionScores.of(mixture, y + (y > 0), outside=None)
    assert any("(that say 96%)" in said and "Gaussian" not in said for said in twice.verdicts)


def test_means_that_do_not_exist_are_mentioned() -> None:
    mixture = Mixture(likelihoods.StudentT(1.0, 0.3), torch.zeros(2, 50, 1), {})
    y = 0.3 * torch.linspace(0.01, 0.99, 50).sub(0.5).mul(torch.pi).tan()[:, None]
    (said,) = RegressionScores.of(mixture, y, outside=None).verdicts
    assert "not finite" in said
    assert "quantiles" in said
