"""Reliability diagrams: of the predictions made with confidence c, which fraction was right?"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from natural_langevin._internal.figures import new_figure


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
