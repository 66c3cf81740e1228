"""Stacking: weights of several predictive distributions, fitted on held-out data.

The mixture sum_c w_c p_c(y | x) of candidates c is given the weights of largest held-out density,

    max over w of  sum_n ln sum_c w_c p_c(y_n | x_n),      w_c >= 0, sum_c w_c = 1,

which is concave in w (Yao, Vehtari, Simpson & Gelman 2018, "Using stacking to average Bayesian
predictive distributions"). Unlike posterior model probabilities it does not suppose that one of
the candidates is true.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: When no weights can raise the mean held-out log-density by more than this, it is the optimum.
_TOLERANCE, _MOST_UPDATES = 1e-6, 100_000


def stacking_weights(
    log_density: Tensor,
    *,
    updates: int | None = None,
    prior: Tensor | None = None,
    prior_rows: float = 0.0,
) -> Tensor:
    """``log_density`` (n, candidate): ln p_c(y_n | x_n) on held-out data. float64, sums to one.

    ``updates``: stop after so many updates by expectation-maximisation from equal weights (or those
    of ``prior``, which count as ``prior_rows`` data), instead of at the optimum. Candidates that
    the data cannot distinguish then share their weight. A candidate may be -inf at a datum if
    others are not.

    >>> stacking_weights(torch.tensor([[0.0, -9.0], [0.0, -9.0]]).double()).round(decimals=3)
    tensor([1., 0.], dtype=torch.float64)
    """
    if log_density.ndim != 2 or not log_density.numel():
        raise ValueError(f"log_density must be (n, candidate), got {tuple(log_density.shape)}")
    if bool(torch.isnan(log_density).any()):
        raise ValueError("log_density holds NaN: give a candidate that failed -inf instead")
    if prior_rows and updates is None:
        raise ValueError(f"prior_rows={prior_rows!r} needs a number of updates: updates=100, say")
    values = log_density.double()
    best = values.max(1, keepdim=True).values
    if not bool(torch.isfinite(best).all()):
        raise ValueError("a held-out datum has density zero under every candidate")
    # By numpy, whose calls on a few numbers take a tenth of the time of torch's.
    density = (values - best).exp().cpu().numpy()
    count = density.shape[1]
    start = np.full(count, 1 / count) if prior is None else _normal(prior.double().cpu().numpy())
    weights, share, power = start, prior_rows / (len(values) + prior_rows), 1.0
    for _ in range(_MOST_UPDATES if updates is None else updates):
        # Mean of p_c over that of the mixture: 1 for candidates in use, at the optimum.
        gain = (1 / (density @ weights)) @ density / len(density)
        # By concavity, a bound on what is left to win.
        if gain.max() - 1 < _TOLERANCE and not share:
            break
        # One update of expectation-maximisation.
        following = (1 - share) * _normal(weights * gain) + share * start
        if updates is None:  # which crawls between candidates that are much alike: leap
            leap = _normal(weights * gain**power)
            better = np.log(density @ leap).mean() > np.log(density @ following).mean()
            following, power = (leap, 1.5 * power) if better else (following, max(1.0, power / 4))
            power = max(power, 1.5)
        weights = following
    return torch.from_numpy(weights).to(values.device)


def _normal(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()
