"""Control variates: minibatch gradients whose noise vanishes near an anchor (SVRG).

With an anchor theta~ whose gradient on all N data is known, the gradient of a minibatch B is

    g = g_B(theta) - g_B(theta~) + g_all(theta~)

unbiased whatever the anchor, and exact at theta = theta~. Its covariance is that of the per-sample
differences d l_n(theta) - d l_n(theta~), of order |theta - theta~|^2, where that of g_B does not
depend on theta at all: minibatches heat a chain far less (see ``heat``), and it can take larger
steps at the right temperature. Before every ``control_variates``-th step the anchor moves to the
chain's position, which takes one pass over all data; every step takes two minibatch gradients.

About an epoch, N / B, is a good interval: a step then costs three minibatch gradients. It pays
where data are few and minibatches much smaller (Dubey et al. 2016, Baker et al. 2019), but not if a
chain travels far between two anchors, as networks at a large step size do: then the differences are
as large as the gradients.

Metrics use the plain minibatch gradients at theta. Data must be in memory, since an anchor needs
all of them; ``Langevin.step``, which sees one batch, refuses.
"""

from __future__ import annotations

from typing import NamedTuple

from natural_langevin._internal.chains import Params
from natural_langevin.statistics import Evaluation


class Anchor(NamedTuple):
    """theta~ and g_all(theta~), (chain, *shape) each."""

    params: Params
    gradient: Params


def corrected(evaluation: Evaluation, at_anchor: Params, anchor: Anchor) -> Evaluation:
    """``evaluation`` with g in place of g_B, which the metric still uses; ``at_anchor`` is
    g_B(theta~) of the same minibatch."""
    evaluation.minibatch_gradient = evaluation.gradient
    evaluation.gradient = {
        k: g - at_anchor[k] + anchor.gradient[k] for k, g in evaluation.gradient.items()
    }
    return evaluation
