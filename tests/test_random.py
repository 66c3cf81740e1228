"""The counter-based numbers: right law, independent addresses, same address same number.

Every bound is a number of standard errors fixed beforehand; seeds are fixed, so nothing is flaky.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from natural_langevin import Langevin, likelihoods, models, preconditioners, random

COUNT = 1 << 20
#: 5 standard errors: two-sided chance 6e-7 for one number.
SIGMAS = 5.0


def key(seed: int = 0, purpose: int = random.NOISE, chains: int = 1, step: int = 0) -> Tensor:
    return random.stream(random.origin(seed, purpose, torch.arange(chains)), step)


def normals(seed: int = 0, step: int = 0, count: int = COUNT) -> Tensor:
    return random.normal(key(seed, step=step), count)[0].double()


def correlation(a: Tensor, b: Tensor) -> float:
    """In standard errors, 1/sqrt(n) each."""
    return float((a * b).mean() * math.sqrt(len(a)))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("order", range(1, 7))
def test_moments(seed: int, order: int) -> None:
    """E z^k = 0, 1, 0, 3, 0, 15; var(z^k) = E z^2k - (E z^k)^2."""

    def moment(k: int) -> float:
        return 0.0 if k % 2 else float(math.prod(range(1, k, 2)))

    error = math.sqrt((moment(2 * order) - moment(order) ** 2) / COUNT)
    assert abs(normals(seed).pow(order).mean() - moment(order)) < SIGMAS * error


@pytest.mark.parametrize("seed", [0, 3])
def test_kolmogorov_smirnov(seed: int) -> None:
    assert stats.kstest(normals(seed).numpy(), "norm").pvalue > 1e-4
    u = random.uniform(key(seed, step=1), COUNT)[0].double()
    assert 0 < u.min() <= u.max() <= 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4


def test_tails_past_five_sigma() -> None:
    """2^25 draws hold 19 beyond 5 sigma on average; a generator that clips has none (counts are
    Poisson: the chance of none is 4e-9)."""
    counts = {4.0: 0, 5.0: 0}
    positive = 0
    for step in range(32):
        z = random.normal(key(step=step), COUNT)[0]
        for bound in counts:
            counts[bound] += int((z.abs() > bound).sum())
        positive += int((z > 4).sum())
        assert z.abs().max() < math.sqrt(64 * math.log(2)) + 1e-5
    for bound, count in counts.items():
        mean = 32 * COUNT * math.erfc(bound / math.sqrt(2))
        assert abs(count - mean) < 4 * math.sqrt(mean)
    assert abs(positive - counts[4.0] / 2) < SIGMAS * math.sqrt(counts[4.0]) / 2


@pytest.mark.parametrize("lag", [1, 2, 8, 15, 16, 17, 31, 32, 33, 400, 784])
def test_neighbouring_elements_are_independent(lag: int) -> None:
    """Values and squares (16 apart are the two halves of a Box-Muller pair)."""
    z = normals()
    a, b = z[:-lag], z[lag:]
    assert abs(correlation(a, b)) < SIGMAS
    assert abs(correlation((a**2 - 1) / 2**0.5, (b**2 - 1) / 2**0.5)) < SIGMAS


def test_pairs_fill_the_square() -> None:
    """Chi-squared of neighbouring uniforms, and of a pair's halves, on a 16 x 16 grid."""
    u = random.uniform(key(), COUNT)[0]
    phi = torch.special.ndtr(normals())
    for a, b in ((u[:-1], u[1:]), (phi[:-16], phi[16:])):
        cells = (a * 16).long().clamp_max(15) * 16 + (b * 16).long().clamp_max(15)
        assert stats.chisquare(torch.bincount(cells, minlength=256).numpy()).pvalue > 1e-4


def test_steps_chains_seeds_and_purposes_are_independent() -> None:
    """Streams whose addresses differ by one in one coordinate are as good as strangers."""
    count = 1 << 17
    addresses = itertools.product((0, 1), (random.NOISE, random.INIT), (0, 1, 2**40))
    streams = [
        row
        for seed, purpose, step in addresses
        for row in random.normal(key(seed, purpose, chains=3, step=step), count).double()
    ]
    together = torch.stack(streams)
    gram = together @ together.mT / count
    off = gram[~torch.eye(len(gram), dtype=torch.bool)] * math.sqrt(count)
    assert off.abs().max() < SIGMAS
    # No stream is another one shifted: no word is shared at a far larger rate than by chance.
    assert len(together[:, :1000].flatten().unique()) > 0.999 * 1000 * len(streams)


def test_along_steps_and_chains_at_one_element() -> None:
    """What a single weight sees over time, and what it sees across chains, is normal as well."""
    start = random.origin(0, random.NOISE, torch.arange(20_000))
    across = random.normal(random.stream(start, 3), 2)[:, 1].double()
    steps = random.stream(start[:1].expand(20_000), torch.arange(20_000))
    along = random.normal(steps, 2)[:, 1].double()
    for z in (across, along):
        assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
        assert abs(correlation(z[:-1], z[1:])) < SIGMAS


def test_same_address_same_number() -> None:
    all_at_once = random.normal(key(9, chains=4, step=7), 1000)
    assert torch.equal(all_at_once, random.normal(key(9, chains=4, step=7), 1000))
    assert torch.equal(all_at_once[:2], random.normal(key(9, chains=2, step=7), 1000))
    assert torch.equal(all_at_once[:, :100], random.normal(key(9, chains=4, step=7), 100))
    by_tensor = random.stream(random.origin(9, random.NOISE, torch.arange(4)), torch.tensor(7))
    assert torch.equal(all_at_once, random.normal(by_tensor, 1000))
    for other in (key(8, chains=4, step=7), key(9, chains=4, step=8), key(9, 1, 4, 7)):
        assert not (all_at_once == random.normal(other, 1000)).all(1).any()


def test_words_of_a_stream_never_repeat() -> None:
    """The map from index to word is a bijection."""
    words = random.bits(key(), COUNT)[0]
    assert len(words.unique()) == COUNT


def test_permutation_is_a_permutation() -> None:
    order = random.permutation(key(chains=5), 101)
    assert order.shape == (5, 101)
    assert torch.equal(order.sort(1).values, torch.arange(101).expand(5, 101))
    assert len({tuple(row.tolist()) for row in order}) == 5


def test_permutations_are_uniform() -> None:
    """All 24 orders of four elements, equally often (chi-squared)."""
    order = random.permutation(key(purpose=random.DATA, chains=24_000), 4)
    code = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.bincount(code, minlength=256)
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("targets", ["data", "model"])
def test_no_global_generator_is_touched(targets: str) -> None:
    """Neither by making a network, nor by sampling, nor by predicting."""
    before = torch.get_rng_state()
    network = models.mlp(3, 3, hidden=(4,))
    x, y = torch.linspace(-1, 1, 60).reshape(20, 3), torch.arange(20) % 3
    for init in ("model", "fan_in", "prior"):
        sampler = Langevin(
            network, likelihoods.Categorical(), chains=2, init=init,
            preconditioner=preconditioners.QuasiDiagonalFisher(targets=targets),
        )  # fmt: skip
        posterior = sampler.sample((x, y), 3, batch_size=4, progress=False)
        posterior.predict(x)
    assert torch.equal(before, torch.get_rng_state())
