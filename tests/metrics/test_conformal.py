"""Conformal coverage: the finite-sample guarantee, over many draws of the held-out data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from natural_langevin.metrics import ConformalIntervals, ConformalSets
from natural_langevin.metrics.conformal import threshold

REPEATS = 4000


@pytest.mark.parametrize(("count", "level"), [(9, 0.9), (20, 0.8), (37, 0.9), (19, 0.5)])
def test_coverage_is_exact_for_every_number_of_samples(count: int, level: float) -> None:
    """Without ties the coverage is ceil((n + 1) level) / (n + 1): at least the level, and less
    than 1/(n + 1) above it. Scores of any law; one new sample for each held-out set."""
    scores = torch.randn(REPEATS, count + 1, generator=torch.Generator().manual_seed(0)).exp()
    inside = [float(row[-1]) <= threshold(row[:-1], level) for row in scores]
    exact = math.ceil((count + 1) * level - 1e-9) / (count + 1)
    assert level <= exact <= level + 1 / (count + 1)
    error = math.sqrt(exact * (1 - exact) / REPEATS)
    assert abs(sum(inside) / REPEATS - exact) < 4 * error + 1e-12


def badly_calibrated(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Probabilities far too sure, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 5, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (6 * logits).softmax(1), y


def test_sets_cover_where_the_model_is_wrong() -> None:
    p, y = badly_calibrated(3000, 0)
    sets = ConformalSets.fit(*badly_calibrated(1000, 1), level=0.9)
    inside = sets(p).gather(1, y[:, None]).double().mean()
    # The held-out set's own error: coverage is Beta distributed with about n level (1 - level).
    error = math.sqrt(0.09 / 3000 + 0.09 / 1000)
    assert abs(float(inside) - 0.9) < 4 * error
    claimed = (p.sort(1, descending=True).values.cumsum(1) < 0.9).sum(1) + 1
    named = p.argsort(1, descending=True) == y[:, None]
    trusted = (named.float().argmax(1) < claimed).double().mean()
    assert float(trusted) < 0.85  # what the probabilities themselves promise is not kept


def test_intervals_are_wide_where_the_model_says_so() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(3000, generator=generator) + 0.1
    y = scale * torch.randn(3000, generator=generator) * 3  # three times the model's claim
    mean = torch.zeros(3000)
    held, new = slice(0, 1000), slice(1000, None)
    fitted = ConformalIntervals.fit(mean[held], scale[held] ** 2, y[held], level=0.8)
    lower, upper = fitted(mean[new], scale[new] ** 2)
    inside = ((lower <= y[new]) & (y[new] <= upper)).double().mean()
    assert abs(float(inside) - 0.8) < 4 * math.sqrt(0.16 / 2000 + 0.16 / 1000)
    torch.testing.assert_close((upper - lower) / scale[new], (upper - lower)[:1] / scale[new][:1]
                               * torch.ones(2000))  # fmt: skip


def test_too_few_samples_include_everything() -> None:
    p, y = badly_calibrated(8, 0)
    assert ConformalSets.fit(p, y, level=0.9)(p).all()
    assert math.isinf(ConformalIntervals.fit(p[:, 0], p[:, 0], p[:, 0], level=0.9).threshold)


def test_bad_arguments() -> None:
    p, y = badly_calibrated(8, 0)
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got 90"):
        ConformalSets.fit(p, y, level=90)
    with pytest.raises(ValueError, match="got none"):
        ConformalSets.fit(p[:0], y[:0])
    with pytest.raises(ValueError, match="NaN"):
        ConformalSets.fit(p * math.nan, y)
    with pytest.raises(ValueError, match=r"one number per sample, got shape \(8, 5\)"):
        ConformalIntervals.fit(p, p, p)
