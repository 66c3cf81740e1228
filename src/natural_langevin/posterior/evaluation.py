"""Evaluation: the scores of a prediction that its likelihood calls for."""

from __future__ import annotations

import torch
from torch import Tensor

from natural_langevin.likelihoods import Bernoulli, Likelihood
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores
from natural_langevin.posterior.prediction import Prediction


def score(
    prediction: Prediction,
    y: Tensor,
    likelihood: Likelihood,
    *,
    noise: Tensor | None,
    outside: Tensor | None,
) -> ClassificationScores | RegressionScores:
    """The scores that the likelihood calls for. Binary targets, and the positions of a sequence,
    count as samples each; a regression needs ``interval_levels()`` among the quantiles.

    ``noise`` (network,): observation variances; ``outside``: epistemic uncertainty elsewhere."""
    likelihood.check(prediction.mean, y)
    if likelihood.discrete:
        p = prediction.mean
        if isinstance(likelihood, Bernoulli):  # of y = 1, as two classes
            p = torch.stack([1 - p.flatten(), p.flatten()], dim=1)
        return ClassificationScores.of(
            p.flatten(0, -2), y.flatten().long(), inside=prediction.epistemic, outside=outside
        )
    if noise is None or prediction.samples is None or prediction.quantiles is None:
        raise TypeError(
            f"scoring needs a predictive distribution, and {type(likelihood).__name__} gives a "
            "mean alone: score posterior.predict(x).samples with your own loss"
        )
    variance = noise.reshape(-1, *(1,) * prediction.mean.ndim).to(prediction.mean.device)
    other = None if outside is None else outside.reshape(len(outside), -1).sum(1)
    return RegressionScores.of(prediction.samples, variance, y, prediction.quantiles, outside=other)
