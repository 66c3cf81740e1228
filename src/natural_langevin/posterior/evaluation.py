"""Evaluation: the scores that a predictive distribution calls for."""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Distribution

from natural_langevin.likelihoods.predictive import Mixture, probabilities
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores


def score(
    law: Distribution,
    y: Tensor,
    *,
    inside: Tensor,
    outside: Tensor | None,
    ignored: int | None = None,
) -> ClassificationScores | RegressionScores:
    """Scores of a predictive distribution on its targets. Binary targets, and the positions of a
    sequence, count as samples each; those with the label ``ignored`` do not count.

    ``inside``, ``outside``: epistemic uncertainty here and elsewhere."""
    if isinstance(law, Mixture):
        sums = None if outside is None else outside.reshape(len(outside), -1).sum(1)
        return RegressionScores.of(law, y, outside=sums)
    p, y = probabilities(law), y.flatten().long()
    p = p.reshape(-1, p.shape[-1])
    if ignored is not None:
        p, y = p[y != ignored], y[y != ignored]
    return ClassificationScores.of(p, y, inside=inside, outside=outside)
