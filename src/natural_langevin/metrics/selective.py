"""Selective prediction: risk against coverage, and detection of out-of-distribution inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RiskCoverage(NamedTuple):
    """``risk[k]``: mean error of the k + 1 most certain of n samples; ``coverage[k]`` = (k+1)/n.

    ``area`` (AURC) is the mean of the risks: lower is better, for the predictions and for the
    order in which they are ranked.
    """

    coverage: Tensor  # (n,)
    risk: Tensor  # (n,)
    area: float


def risk_coverage(uncertainty: Tensor, error: Tensor) -> RiskCoverage:
    """From each sample's uncertainty (n,), in any unit, and its error (n,): 0 or 1, or a loss.

    >>> risk_coverage(torch.tensor([0.1, 0.9, 0.2]), torch.tensor([0.0, 1.0, 0.0])).risk.tolist()
    [0.0, 0.0, 0.3333333333333333]
    """
    if uncertainty.shape != error.shape or uncertainty.ndim != 1 or len(error) == 0:
        raise ValueError(
            "uncertainty and error must hold one value for each sample, got shapes "
            f"{tuple(uncertainty.shape)} and {tuple(error.shape)}"
        )
    order = torch.argsort(uncertainty, stable=True)
    kept = torch.arange(1, len(error) + 1, dtype=torch.float64, device=error.device)
    risk = error.double()[order].cumsum(0) / kept
    return RiskCoverage(kept / len(error), risk, float(risk.mean()))


def ood_auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that an input of a second dataset looks more uncertain than one of the first.

    ``inside`` (n,) and ``outside`` (m,) are uncertainties, in any unit; ties count half. 1 is
    perfect detection, 0.5 is chance.
    """
    both = torch.cat([inside.flatten().double().cpu(), outside.flatten().double().cpu()])
    if not (len(inside) and len(outside)):
        raise ValueError(f"both datasets need samples, got {len(inside)} and {len(outside)}")
    values, rank = torch.unique(both, return_inverse=True)
    of_inside, of_outside = (
        torch.bincount(part, minlength=len(values)).double()
        for part in rank.split([inside.numel(), outside.numel()])
    )
    below = of_inside.cumsum(0) - of_inside / 2
    return float((of_outside * below).sum() / (inside.numel() * outside.numel()))
