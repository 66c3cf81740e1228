"""Scores of predictive probabilities (n, classes) against labels (n,)."""

from __future__ import annotations

from typing import Any

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
    """Mean gap between confidence and accuracy over equal-width confidence bins (torchmetrics).

    Confidence is the largest probability; bins are weighted by how many samples fall in them."""
    value = torchmetrics_classification().multiclass_calibration_error(
        _in_unit_interval(probabilities), y.long(), num_classes=probabilities.shape[1], n_bins=bins
    )
    return float(value)


def classwise_calibration_error(probabilities: Tensor, y: Tensor, *, bins: int = 15) -> float:
    """Mean over classes of the binary calibration error of that class's probability.

    Unlike ``expected_calibration_error`` it sees every probability, not only the largest
    (Kull et al. 2019).
    """
    error = torchmetrics_classification().binary_calibration_error
    by_class = _in_unit_interval(probabilities).mT.contiguous()
    values = [error(p, (y == k).int(), n_bins=bins) for k, p in enumerate(by_class)]
    return float(torch.stack(values).mean())


def _in_unit_interval(probabilities: Tensor) -> Tensor:
    """An average of many networks' ones may round to 1 + 1e-7, and torchmetrics takes anything
    above 1 for a sign that it was given logits, all of them."""
    return probabilities.float().clamp(0, 1)


def torchmetrics_classification() -> Any:
    """TorchMetrics' functions for classes; ImportError names the extra."""
    try:
        from torchmetrics.functional import classification
    except ImportError as error:
        raise ImportError(
            "this score needs torchmetrics: pip install 'natural-langevin[metrics]'"
        ) from error
    return classification
