"""Split conformal prediction: sets and intervals whose coverage does not depend on the model.

With n held-out samples exchangeable with the new one, and a nonconformity score s(x, y),

    q = the k-th smallest held-out score,  k = ceil((n + 1) level)
    P(s(x_new, y_new) <= q) >= level,      and <= level + 1/(n + 1) without ties

(Vovk et al.; Lei et al. 2018). When k > n no finite q is enough: everything is included. The
guarantee is an average over inputs and over draws of the held-out data, not for every input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def threshold(scores: Tensor, level: float) -> float:
    """q for the held-out scores (n,)."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}")
    if scores.numel() == 0:
        raise ValueError("conformal prediction needs held-out samples, got none")
    if torch.isnan(scores).any():
        raise ValueError("a held-out score is NaN: are the predictions and the targets finite?")
    # Decimals such as 0.9 are slightly off in binary: do not let ceil see that.
    rank = math.ceil((scores.numel() + 1) * level - 1e-9)
    if rank > scores.numel():
        return math.inf
    return float(scores.double().flatten().sort().values[rank - 1])


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes: those whose probability is at least 1 - threshold.

    >>> p = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1]])
    >>> ConformalSets.fit(p, torch.tensor([0, 0, 0]), level=0.5)(torch.tensor([[0.75, 0.25]]))
    tensor([[ True, False]])
    """

    threshold: float
    level: float

    @staticmethod
    def fit(probabilities: Tensor, y: Tensor, *, level: float = 0.9) -> ConformalSets:
        """From probabilities (n, classes) of held-out samples, and their labels (n,)."""
        chosen = probabilities.double().gather(1, y.long()[:, None])[:, 0]
        return ConformalSets(threshold(1 - chosen, level), level)

    def __call__(self, probabilities: Tensor) -> Tensor:
        """Which classes are in each sample's set: (n, classes) bool."""
        return 1 - probabilities.double() <= self.threshold


@dataclass(frozen=True)
class ConformalIntervals:
    """mean ± threshold · sqrt(variance): the model gives the relative widths, the held-out data
    their scale."""

    threshold: float
    level: float

    @staticmethod
    def fit(mean: Tensor, variance: Tensor, y: Tensor, *, level: float = 0.9) -> ConformalIntervals:
        """From predictive means and total variances (n,) or (n, 1) of held-out samples.

        Several components per target (n, D) each need their own: they are not exchangeable.
        """
        if mean[0].numel() != 1:
            raise ValueError(
                f"conformal intervals are for one number per sample, got shape "
                f"{tuple(mean.shape)}: fit one for every column"
            )
        error = (y.reshape(mean.shape).double() - mean.double()).abs()
        return ConformalIntervals(threshold(error / variance.double().sqrt(), level), level)

    def __call__(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, the shape of ``mean``."""
        half = self.threshold * variance.sqrt()
        return mean - half, mean + half
