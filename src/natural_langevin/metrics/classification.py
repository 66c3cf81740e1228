"""Scores of predictive probabilities (n, classes) against labels (n,).

Ours and not torchmetrics': ``import natural_langevin`` needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def nll(probabilities: Tensor, y: Tensor) -> float:
    """Mean -ln p(y_n | x_n), in nats. Probabilities are averaged first, logarithms taken last.

    >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0])), 4)
    0.6931
    """
    chosen = probabilities.double().gather(1, y.long()[:, None]).squeeze(1)
    return float(-chosen.clamp_min(torch.finfo(torch.float64).tiny).log().mean())


def accuracy(probabilities: Tensor, y: Tensor) -> float:
    """Fraction of samples whose most probable class is the label."""
    return float((probabilities.argmax(1) == y).double().mean())


def brier(probabilities: Tensor, y: Tensor) -> float:
    """Mean over samples of sum_k (p_k - 1[y = k])^2: between 0 and 2."""
    one_hot = torch.nn.functional.one_hot(y.long(), probabilities.shape[1])
    return float((probabilities.double() - one_hot).square().sum(1).mean())


def expected_calibration_error(probabilities: Tensor, y: Tensor, *, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over equal-width confidence bins.

    Confidence is the largest probability; bins are weighted by how many samples fall in them."""
    confidence, predicted = probabilities.double().max(1)
    return _calibration_gap(confidence, predicted == y, bins)


def classwise_calibration_error(probabilities: Tensor, y: Tensor, *, bins: int = 15) -> float:
    """Mean over classes of the binary calibration error of that class's probability.

    Unlike ``expected_calibration_error`` it sees every probability, not only the largest
    (Kull et al. 2019).
    """
    gaps = [_calibration_gap(p, y == k, bins) for k, p in enumerate(probabilities.double().mT)]
    return sum(gaps) / len(gaps)


def _calibration_gap(stated: Tensor, happened: Tensor, bins: int) -> float:
    """sum_b n_b/n |mean stated - mean happened|; bin b holds b/bins <= stated < (b + 1)/bins, the
    last one 1 too, and what has been rounded to above it."""
    bin_of = (stated * bins).long().clamp(0, bins - 1)
    gaps = torch.bincount(bin_of, weights=stated - happened.double(), minlength=bins)
    return float(gaps.abs().sum() / len(stated))
