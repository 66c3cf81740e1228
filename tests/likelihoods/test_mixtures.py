"""Gaussian mixtures against scipy: densities, quantiles by root finding, CRPS by quadrature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import Tensor

from natural_langevin.likelihoods import mixtures


@pytest.fixture
def mixture() -> tuple[Tensor, Tensor, Tensor]:
    """Means (network, point), variances (network, 1), and a y for each point; partly far apart."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(5, 4, generator=generator) * torch.tensor([0.1, 1.0, 5.0, 0.0]) + 2
    variance = torch.rand(5, 1, generator=generator) + 0.1
    return means, variance, torch.tensor([2.0, 0.5, 9.0, -7.0])


def components(mixture: tuple[Tensor, Tensor, Tensor], point: int):  # type: ignore[no-untyped-def]
    means, variance, _ = mixture
    return stats.norm(means[:, point].double().numpy(), variance[:, 0].double().sqrt().numpy())


def test_density_and_cdf(mixture: tuple[Tensor, Tensor, Tensor]) -> None:
    means, variance, y = mixture
    log_p, below = mixtures.log_density(y, means, variance), mixtures.cdf(y, means, variance)
    for k in range(4):
        parts = components(mixture, k)
        assert float(log_p[k]) == pytest.approx(np.log(parts.pdf(float(y[k])).mean()), rel=1e-9)
        assert float(below[k]) == pytest.approx(parts.cdf(float(y[k])).mean(), rel=1e-9, abs=1e-15)


def test_density_far_from_every_network() -> None:
    """Where every density underflows, its logarithm does not."""
    far = mixtures.log_density(torch.tensor([1e4]), torch.zeros(3, 1), torch.tensor(1.0))
    assert float(far) == pytest.approx(stats.norm.logpdf(1e4))


@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.95, 0.999])
def test_quantiles(mixture: tuple[Tensor, Tensor, Tensor], level: float) -> None:
    means, variance, _ = mixture
    found = mixtures.quantile(level, means, variance)
    for k in range(4):
        parts = components(mixture, k)

        def excess(t: float, parts=parts) -> float:  # type: ignore[no-untyped-def]
            return float(parts.cdf(t).mean() - level)

        assert float(found[k]) == pytest.approx(optimize.brentq(excess, -60, 60), abs=1e-8)


@pytest.mark.parametrize("variance", [(), (90, 1, 1), (90, 7, 2)])
def test_quantiles_are_found_part_by_part(
    variance: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search goes over its numbers again and again: no more of them than a cache holds."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(90, 7, 2, generator=generator)
    variance = torch.rand(variance, generator=generator) + 0.1
    whole = mixtures.quantile(0.1, means, variance)
    search, seen = mixtures.search, list[int]()

    def watched(cdf, density, level, low, high, *, start):  # type: ignore[no-untyped-def]
        seen.append(low.numel())
        return search(cdf, density, level, low, high, start=start)

    monkeypatch.setattr(mixtures, "_IN_CACHE", 90 * 2 * 3)
    monkeypatch.setattr(mixtures, "search", watched)
    found = mixtures.quantile(0.1, means, variance)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)
    assert seen == [6, 6, 2]


def by_quadrature(parts, y: Tensor) -> float:  # type: ignore[no-untyped-def]
    """The integral that defines the score, on each side of y."""
    left = integrate.quad(lambda t: parts.cdf(t).mean() ** 2, -40, float(y), limit=200)[0]
    right = integrate.quad(lambda t: parts.sf(t).mean() ** 2, float(y), 60, limit=200)[0]
    return float(left + right)


def test_crps(mixture: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    means, variance, y = mixture
    found = mixtures.crps(y, means, variance)
    for k in range(4):
        assert float(found[k]) == pytest.approx(by_quadrature(components(mixture, k), y[k]), 1e-6)
    monkeypatch.setattr(mixtures, "_AT_ONCE", 1)  # one network at a time
    torch.testing.assert_close(mixtures.crps(y, means, variance), found)


def test_quadrature_of_many_networks_is_the_sum_over_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    means = torch.randn(400, 3, generator=g) * torch.tensor([0.1, 1.0, 5.0])
    variance = 0.5 + torch.rand(400, 3, generator=g)
    found = mixtures.spread(means, variance)
    monkeypatch.setattr(mixtures, "_STEP", 1e-6)  # so many nodes that pairs are less work
    torch.testing.assert_close(found, mixtures.spread(means, variance), rtol=1e-11, atol=0)
    draws = means[0, 1] + variance[0, 1].sqrt() * torch.randn(2, 10**6, generator=g)
    one = mixtures.spread(means[:1, 1:2].repeat(400, 1), variance[:1, 1:2].repeat(400, 1))
    assert float(one) == pytest.approx(float((draws[0] - draws[1]).abs().mean() / 2), rel=5e-3)


@pytest.mark.parametrize("level", [0.025, 0.5, 0.95])
def test_a_quantile_is_found_in_a_few_steps(level: float) -> None:
    """Rounding at the end must not send a search that has arrived back into its bracket."""
    means = torch.randn(800, 50, generator=torch.Generator().manual_seed(0)).double()
    asked = []

    def cdf(y: Tensor) -> Tensor:
        asked.append(y)
        return mixtures.cdf(y, means, torch.tensor(0.04))

    def density(y: Tensor) -> Tensor:
        return mixtures.log_density(y, means, torch.tensor(0.04)).exp()

    found = mixtures.search(cdf, density, level, means.amin(0) - 1, means.amax(0) + 1)
    assert (mixtures.cdf(found, means, torch.tensor(0.04)) - level).abs().max() < 1e-14
    assert len(asked) <= 20


def test_crps_of_a_point_is_the_absolute_error() -> None:
    found = mixtures.crps(torch.tensor([3.0]), torch.full((2, 1), 1.0), torch.tensor(0.0))
    assert float(found) == pytest.approx(2.0)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, float("nan")])
def test_levels_outside_are_refused(level: float) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        mixtures.quantile(level, torch.zeros(2, 1), torch.tensor(1.0))
