"""The bias of E[n beta L_n] by minibatch noise, for independent minibatches and shuffled epochs.

A minibatch's noise, eta C (g_B - g), adds half of its heat to the energy of every direction k, and
the sum over directions does not depend on the curvature: with d weights and the mean heat h of a
weight (``diagnostics.kinetic``: ``minibatch``),

    bias of lambda = d h / 2                                   for independent minibatches.

The errors of the m minibatches of a shuffled epoch add up to zero: at the frequency omega their
noise has the share

    S(omega) = (m - F_m(omega)) / (m - 1),   F_m(omega) = sin(m omega / 2)^2 / (m sin(omega / 2)^2)

of an independent one's power, F_m the Fejer kernel. A direction of curvature k in the metric moves
at omega = sqrt(eta k). Noise is in proportion to k, which lies between its mean over the 2 lambda
directions that the data determine and the steepest; their geometric mean is used for all.
"""

from __future__ import annotations

import math


def share_of_epochs(omega: float, minibatches: float) -> float:
    """S(omega) of m minibatches per epoch.

    >>> [round(share_of_epochs(0.2, m), 3) for m in (1, 5, 100)]
    [0.0, 0.097, 1.007]
    """
    m = minibatches
    if m <= 1:
        return 0.0
    fejer = math.sin(m * omega / 2) ** 2 / (m * math.sin(omega / 2) ** 2)
    return (m - fejer) / (m - 1)


def bias(
    value: float, *, weights: int, heat: float, minibatches: float, step_size: float,
    steepest: float | None, shuffled: bool,
) -> float:  # fmt: skip
    """The amount by which minibatches raised a learning coefficient estimated as ``value``.

    Args:
        weights: d, how many weights are sampled.
        heat: mean heat of a weight, of independent minibatches.
        minibatches: m, of an epoch.
        steepest: the largest curvature in the metric, None: not known.
        shuffled: whether minibatches are parts of shuffled epochs.
    """
    alone = weights * heat / 2
    if not shuffled:
        return alone
    seen = max(1.0, weights / max(1.0, 2 * value))
    k = math.sqrt(seen * max(seen, steepest or seen))
    return alone * share_of_epochs(min(math.pi, math.sqrt(step_size * k)), minibatches)
