"""The least noise that predictions claim, where the noise is learned.

With few rows a network may fit all of them exactly, and the noise that is learned as small as its
residuals falls without end; so does the width of the predictions, and a row a little beyond the
others is a surprise of a thousand nats. But N rows say nothing of what lies between them: at best,
along one input, they are a part 1/N of its range apart, over which targets that vary by s may
change by s/N. Noise smaller than that cannot be told from the shape of the function, so that

    sigma >= s / N,        s the standard deviation of the targets,

is what a run by the recipe ends with. Chains know nothing of it: the draws are the same. With a
hundred rows it is a hundredth of the targets' size, and out of sight.
"""

from __future__ import annotations

import logging

from torch import Tensor

from natural_langevin.types import Params

log = logging.getLogger("natural_langevin")


def least(y: Tensor) -> float:
    """The smallest standard deviation of noise that targets y (row, ...) allow to claim."""
    spread = y.double().reshape(len(y), -1).var(0, correction=0).mean().sqrt()
    return float(spread) / len(y)


def raised(learned: Params, y: Tensor) -> Params:
    """What the likelihood has learned, the ``variance`` of every chain at least the least one."""
    floor = least(y)
    variance = learned["variance"]
    if bool((variance < floor**2).any()):
        log.info("the learned noise is below what %d rows can tell: %.2g is taken", len(y), floor)
    return learned | {"variance": variance.clamp_min(floor**2)}
