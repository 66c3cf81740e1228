"""Choosing the prior's variance and the step size together, on held-out parts of the training data.

For every variance a pilot (see ``natural_langevin.pilot``) scores step sizes as chains of one run;
the variance whose best step size predicts the held-out data best is taken with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import Tensor

from natural_langevin import pilot
from natural_langevin.sampler import Langevin

log = logging.getLogger("natural_langevin")

#: Below this many data one held-out fifth is too noisy a judge: three of them are averaged.
FEW_DATA, SPLITS_OF_FEW = 1000, 3


def choose_prior(
    build: Callable[[float], Langevin],
    variances: Sequence[float],
    data: tuple[Tensor, Tensor],
    *,
    steps: int,
    batch_size: int,
) -> tuple[float, pilot.Choice]:
    """The variance, and the step size for it. ``build(variance)`` gives a sampler."""
    splits = SPLITS_OF_FEW if len(data[0]) < FEW_DATA else 1
    found = {
        variance: build(variance).choose_step_size(
            data, steps, batch_size=batch_size, splits=splits
        )
        for variance in variances
    }
    best = min(found, key=lambda variance: found[variance].nll)
    if len(found) > 1:
        scores = ", ".join(f"{choice.nll:.4g} at {v:g}" for v, choice in found.items())
        log.info("prior_variance=%g: held-out NLL %s", best, scores)
    return best, found[best]
