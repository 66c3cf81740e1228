"""Evaluation: the scores that a predictive distribution calls for, and ln p of every datum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import vmap

from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods.predictive import Mixture, probabilities
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores
from natural_langevin.posterior import monte_carlo, networks
from natural_langevin.posterior.draws import Draws
from natural_langevin.posterior.ensemble import Options, averaged, learned_by
from natural_langevin.posterior.prediction import Averager, join


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


def evaluate(
    posterior: Draws, x: Any, y: Tensor, *, outside: Tensor | None, options: Options
) -> ClassificationScores | RegressionScores:
    """See ``Posterior.evaluate``. ``outside``: epistemic uncertainty of inputs of another kind."""
    found = list(averaged(posterior, x, options, keep_samples=False, whole=True, errors=True))
    prediction = join([averager.finish() for averager in found])
    y = y.to(prediction.mean.device)
    posterior.likelihood.check(found[0].example, y)
    law = found[0].distribution(*found[1:])
    scores = score(
        law, y, inside=prediction.epistemic, outside=outside,
        ignored=posterior.likelihood.ignore_index,
    )  # fmt: skip
    if options.estimate != "ensemble" or scores.count != len(y) or not posterior.processes.whole:
        return scores
    each = log_likelihood(
        posterior, x, y, pooled=posterior.chosen(options.chains), batch_size=1000, sample_batch=16
    )
    single = -float(each.double().mean(-1).max())
    if isinstance(law, Mixture):
        each = law.log_prob_of_each(y).unflatten(0, each.shape[:2])
    return dataclasses.replace(scores, nll_error=_error(found, each, y), single_nll=single)


def _error(found: Sequence[Averager], log_likelihood: Tensor, y: Tensor) -> float:
    """The Monte-Carlo error of the score, of sharpened predictions where they are."""
    moves = [averager.moves for averager in found if averager.moves is not None]
    if not moves:
        return monte_carlo.log_score(log_likelihood).error
    rows = torch.cat(moves, 2).flatten(2, -2)  # (chain, block, N, K)
    index = y.flatten().long().to(rows.device).expand(*rows.shape[:2], -1).unsqueeze(-1)
    error = monte_carlo.error_of_blocks(rows.gather(-1, index).mean((2, 3)))
    return math.nan if error is None else float(error)


def log_likelihood(
    posterior: Draws,
    x: Tensor,
    y: Tensor,
    *,
    pooled: Sequence[int],
    batch_size: int,
    sample_batch: int,
) -> Tensor:
    """ln p(y_n | x_n, theta) of every draw of the ``pooled`` chains: (chain, draw, N), in nats."""
    like = next(iter(posterior.last.values()))
    state = learned_by(posterior.calibrated(False), pooled, posterior.draws)
    seen, rows = 0, []

    def one(outputs: Any, learned: dict[str, Tensor], y: Tensor) -> Tensor:
        return -posterior.likelihood.log_loss(outputs, y, learned)

    def several(params: Params, learned: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = posterior.native(posterior.call, params, x)
        if outputs is not None:
            return vmap(one, in_dims=(0, 0, None))(outputs, learned, y)
        return posterior.each(lambda found, s: one(found, s, y), x, params, learned)

    with torch.no_grad():
        size = networks.at_once(
            posterior.samples, sample_batch, batch_size=batch_size, inputs=min(len(y), batch_size)
        )
        for some in networks.chunks(posterior.samples, pooled, size, like=posterior.last):
            count = len(next(iter(some.values())))
            learned = {k: v[seen : seen + count].to(like) for k, v in state.items()}
            seen += count
            found = [
                several(some, learned, a.to(like.device), b.to(like.device))
                for a, b in zip(x.split(batch_size), y.split(batch_size), strict=True)
            ]
            rows.append(torch.cat(found, dim=1))
    return torch.cat(rows).unflatten(0, (len(pooled), posterior.draws))
