"""Tolerances of the law tests: Monte-Carlo standard error times a quantile fixed beforehand.

Every check has error rate ``ERROR_RATE``, shared equally by its comparisons (Bonferroni). A known
bias is an argument: it is derived where it is used, and never chosen to let a test pass.
"""

import math

import torch
from scipy import stats
from torch import Tensor

#: Probability that one check of a correct sampler fails, before its seed is fixed.
ERROR_RATE = 1e-4


def quantile(comparisons: int) -> float:
    """Two-sided normal quantile for that many comparisons in one check."""
    return float(stats.norm.isf(ERROR_RATE / (2 * comparisons)))


def assert_within(error: Tensor, standard_error: Tensor, bias: Tensor | float = 0.0) -> None:
    """|error| <= quantile * standard_error + |bias|, entry by entry."""
    excess = (error.abs() - torch.as_tensor(bias).abs()) / standard_error
    worst, allowed = float(excess.max()), quantile(error.numel())
    assert math.isfinite(worst), "a statistic is not finite"
    assert worst <= allowed, f"{worst:.2f} standard errors beyond the bias, {allowed:.2f} allowed"


def assert_normal(
    z: Tensor,
    mean_bias: Tensor | float = 0.0,
    second_bias: Tensor | float = 0.0,
) -> None:
    """Independent rows z (n, p) have mean 0 and second moments Id, up to the biases given.

    Standard errors of a standard normal: 1/sqrt(n) for a mean, sqrt((1 + delta_ij)/n) for a
    second moment; a biased law has variance Id + second_bias, which scales them.
    """
    n, p = z.shape
    identity = torch.eye(p, dtype=z.dtype)
    law = identity + second_bias
    assert_within(z.mean(0), (law.diagonal() / n).sqrt(), mean_bias)
    variance = law.diagonal()[:, None] * law.diagonal() + law.square()
    assert_within(z.mT @ z / n - identity, (variance / n).sqrt(), second_bias)


def assert_same_distribution(sample: Tensor, cdf, bias: float = 0.0) -> float:  # type: ignore[no-untyped-def]
    """Kolmogorov-Smirnov: sup |F_n - F| below its quantile plus ``bias``; returns the distance."""
    distance = stats.kstest(sample.double().numpy(), cdf).statistic
    allowed = stats.kstwo.isf(ERROR_RATE, len(sample)) + bias
    assert distance <= allowed, f"KS distance {distance:.4f}, {allowed:.4f} allowed"
    return float(distance)
