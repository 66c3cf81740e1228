"""Scores of predictions, their calibration, and methods that calibrate them.

Imports likelihoods; diagnostics and up import it.

* classes: ``nll``, ``accuracy``, ``brier``, ``expected_calibration_error``,
  ``classwise_calibration_error``, ``reliability`` (and ``plot_reliability``)
* against another predictive distribution: ``agreement``, ``total_variation``
* which inputs to label next: ``bald``, and ``batch_bald`` for several at a time
* selective prediction: ``risk_coverage``, ``ood_auroc``
* regression, from an ensemble's means (network, n, ...) and noise: ``crps``, ``rmse``,
  ``interval_coverage``
* on held-out data: ``ConformalSets``, ``ConformalIntervals``, ``TemperatureScaling``, and
  ``stacking_weights`` of several predictive distributions

Scores are plain floats, averages over samples, computed in float64.
"""

from natural_langevin.metrics.acquisition import bald, batch_bald
from natural_langevin.metrics.classification import (
    Reliability,
    accuracy,
    agreement,
    brier,
    classwise_calibration_error,
    expected_calibration_error,
    nll,
    plot_reliability,
    reliability,
    total_variation,
)
from natural_langevin.metrics.conformal import ConformalIntervals, ConformalSets
from natural_langevin.metrics.regression import crps, interval_coverage, rmse
from natural_langevin.metrics.scaling import TemperatureScaling
from natural_langevin.metrics.selective import RiskCoverage, ood_auroc, risk_coverage
from natural_langevin.metrics.stacking import stacking_weights
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores

__all__ = [
    "ClassificationScores",
    "ConformalIntervals",
    "ConformalSets",
    "RegressionScores",
    "Reliability",
    "RiskCoverage",
    "TemperatureScaling",
    "accuracy",
    "agreement",
    "bald",
    "batch_bald",
    "brier",
    "classwise_calibration_error",
    "crps",
    "expected_calibration_error",
    "interval_coverage",
    "nll",
    "ood_auroc",
    "plot_reliability",
    "reliability",
    "risk_coverage",
    "rmse",
    "stacking_weights",
    "total_variation",
]
