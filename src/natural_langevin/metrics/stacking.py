"""Stacking: how much to trust each of several predictive distributions, by held-out data.

The mixture sum_c w_c p_c(y | x) of candidates c is given the weights of largest held-out density,

    max over w of  sum_n ln sum_c w_c p_c(y_n | x_n),      w_c >= 0, sum_c w_c = 1,

which is concave in w (Yao, Vehtari, Simpson & Gelman 2018, "Using stacking to average Bayesian
predictive distributions"). Unlike posterior model probabilities it does not suppose that one of
the candidates is true.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Updates of the weights; each one raises the held-out density.
_UPDATES = 300


def stacking_weights(log_density: Tensor) -> Tensor:
    """``log_density`` (n, candidate): ln p_c(y_n | x_n) on held-out data. float64, sums to one.

    A candidate that is -inf somewhere cannot explain that datum, but others may.

    >>> stacking_weights(torch.tensor([[0.0, -9.0], [0.0, -9.0]]).double()).round(decimals=3)
    tensor([1., 0.], dtype=torch.float64)
    """
    if log_density.ndim != 2 or not len(log_density):
        raise ValueError(f"log_density must be (n, candidate), got {tuple(log_density.shape)}")
    if bool(torch.isnan(log_density).any()):
        raise ValueError("log_density holds NaN: give a candidate that failed -inf instead")
    values = log_density.double()
    best = values.max(1, keepdim=True).values
    if not bool(torch.isfinite(best).all()):
        raise ValueError("a held-out datum has density zero under every candidate")
    density = (values - best).exp()
    count = density.shape[1]
    weights = torch.full((count,), 1 / count, dtype=torch.float64, device=values.device)
    for _ in range(_UPDATES):  # expectation-maximisation of a mixture with known components
        share = density * weights
        weights = (share / share.sum(1, keepdim=True)).mean(0)
    return weights
