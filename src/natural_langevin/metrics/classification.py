"""Scores of predictive probabilities (n, classes) against labels (n,).

Not torchmetrics, because ``import natural_langevin`` needs only torch, numpy and safetensors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.extras import new_figure


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


def agreement(probabilities: Tensor, reference: Tensor) -> float:
    """Share of inputs for which both have the same most probable class.

    >>> import torch
    >>> p, q = torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([[0.6, 0.4], [0.7, 0.3]])
    >>> agreement(p, q)
    0.5
    """
    return float((probabilities.argmax(-1) == reference.argmax(-1)).double().mean())


def total_variation(probabilities: Tensor, reference: Tensor) -> float:
    """Mean over inputs of sum_k |p_k - q_k| / 2: 0 where they are equal, at most 1.

    >>> import torch
    >>> round(total_variation(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.6, 0.4]])), 6)
    0.3
    """
    apart = (probabilities.double() - reference.double()).abs().sum(-1) / 2
    return float(apart.mean())


class Reliability(NamedTuple):
    """One number per occupied bin, in order of confidence."""

    confidence: Tensor  # mean confidence in the bin
    accuracy: Tensor  # fraction of its predictions that were right
    count: Tensor  # type: ignore[assignment]  # how many there are (tuples have a count too)

    @property
    def error(self) -> Tensor:
        """Standard error of each bin's accuracy."""
        return (self.accuracy * (1 - self.accuracy) / self.count).sqrt()


def reliability(probabilities: Tensor, y: Tensor, *, bins: int = 15) -> Reliability:
    """Mean confidence, accuracy and count in equal-width confidence bins; empty bins left out.

    >>> found = reliability(torch.tensor([[0.8, 0.2], [0.9, 0.1]]), torch.tensor([0, 1]), bins=1)
    >>> [round(float(column), 3) for column in found]
    [0.85, 0.5, 2.0]
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    confidence, predicted = probabilities.double().max(1)
    right = (predicted == y).double()
    bin_of = (confidence * bins).long().clamp(0, bins - 1)
    count = torch.bincount(bin_of, minlength=bins).double()
    occupied = count > 0
    sums = [torch.bincount(bin_of, weights=w, minlength=bins) for w in (confidence, right)]
    means = [total[occupied] / count[occupied] for total in sums]
    return Reliability(means[0], means[1], count[occupied].long())


def plot_reliability(found: Reliability, *, label: str | None = None, axes: Any = None) -> Any:
    """Accuracy against confidence with two standard errors; the diagonal is perfect. Returns axes.

    Needs matplotlib (the extra ``report``)."""
    axes = axes if axes is not None else new_figure().add_subplot()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, zorder=0)
    columns = (found.confidence.tolist(), found.accuracy.tolist(), (2 * found.error).tolist())
    axes.errorbar(*columns, marker="o", markersize=4, capsize=2, label=label)
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    if label is not None:
        axes.legend()
    return axes
