"""The quality of the noise: law, tails and independence, far more closely than ``test_random``.

Seeds are fixed and every bound is an error rate chosen beforehand: a p-value of 1e-5 or five
standard errors (6e-7, two-sided). The heavy counting runs in the C form of the generator, which is
what long runs on a CPU use; it is compared with the eager form.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.gpu_kernels import plain
from natural_langevin.execution.kernels.native.build import library

P_MIN, SIGMAS = 1e-5, 5.0
CHUNK, CHUNKS = 1 << 20, 256
TAILS = (3.0, 4.0, 4.5, 5.0, 5.5)
SUMMARY = Path(__file__).parents[1] / "results" / "dieharder.txt"


def origin(seed: int = 0, chains: int = 1, purpose: int = random.NOISE) -> Tensor:
    return random.origin(seed, purpose, torch.arange(chains))


def key(step: int | Tensor = 0, **address: int) -> Tensor:
    return random.stream(origin(**address), step)


def counted(z: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of powers 1 to 6, by products, which ``pow`` takes ten times as long for, and counts of
    both tails. In parts that stay in the processor's cache: of all at once it takes twice as long.
    """
    powers = torch.zeros(6, dtype=torch.float64)
    for part in z.split(1 << 15):
        z1 = part.double()
        z2 = z1 * z1
        z3 = z2 * z1
        sums = [z1.sum(), z1.dot(z1), z2.dot(z1), z2.dot(z2), z3.dot(z2), z3.dot(z3)]
        powers += torch.stack(sums)
    far = z[z.abs() > TAILS[0]]
    beyond = torch.stack([torch.stack([(far > t).sum(), (far < -t).sum()]) for t in TAILS])
    return powers, beyond


def native_draws() -> Callable[[int, int], Tensor]:
    """A chunk of a chain's normals at a step, as long runs on a CPU make them: in C."""
    found = library(torch.float32)
    if found is None:
        pytest.skip("no C compiler")
    found.draw_normals.argtypes = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 2
    room, z = torch.empty(CHUNK + 64), torch.empty(CHUNK)

    def draw(step: int, chain: int) -> Tensor:
        own = int(origin(chains=4)[chain])
        found.draw_normals(own, step, 0, CHUNK, room.data_ptr(), z.data_ptr())
        return z

    return draw


def eager_draws() -> Callable[[int, int], Tensor]:
    def draw(step: int, chain: int) -> Tensor:
        with plain():
            return random.normal(key(step, chains=4)[chain, None], CHUNK)[0]

    return draw


@pytest.fixture(
    scope="module",
    params=[native_draws, pytest.param(eager_draws, marks=pytest.mark.thorough)],
    ids=["native", "eager"],
)
def totals(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Sums of powers and tail counts of 2^28 draws: four chains, 64 steps each."""
    draw = request.param()
    powers = torch.zeros(6, dtype=torch.float64)
    beyond = torch.zeros(len(TAILS), 2, dtype=torch.int64)
    for step in range(CHUNKS // 4):
        for chain in range(4):
            some_powers, some_beyond = counted(draw(step, chain))
            powers += some_powers
            beyond += some_beyond
    return powers, beyond


def test_native_numbers_are_the_eager_ones_up_to_rounding() -> None:
    """Logarithm and cosine are polynomials there, with an error below 5e-7 each, times a radius of
    at most 6.66."""
    native, eager = native_draws(), eager_draws()
    for step, chain in ((0, 0), (12345, 3)):
        z, other = native(step, chain), eager(step, chain)
        assert (z - other).abs().max() < 6.66 * (5e-7 + 2**-22)
        assert not torch.equal(z, other)  # or the comparison compares a thing with itself
        assert torch.equal(z, random.normal(key(step, chains=4), CHUNK)[chain])


@pytest.mark.thorough  # that the compiled step has the noise of the eager one: test_fused_step
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # raised inside inductor
def test_compiled_numbers_are_the_eager_ones_up_to_rounding() -> None:
    """Words to the bit. Normals: the compiled cosine is a polynomial with an error below 5e-7,
    times a radius of at most 6.66; and an ulp of the radius itself, wherever the logarithm differs.
    """

    def both(stream: Tensor) -> tuple[Tensor, Tensor]:
        return random.normal(stream, CHUNK)[0], random.bits(stream, CHUNK)[0]

    compiled = torch.compile(both, fullgraph=True, dynamic=False)
    for step in (0, 12345):
        z, words = compiled(key(step))
        assert torch.equal(words, random.bits(key(step), CHUNK)[0])
        other = random.normal(key(step), CHUNK)[0]
        assert (z - other).abs().max() < 6.66 * (5e-7 + 2**-22)
        assert not torch.equal(z, other)  # or the comparison compares a thing with itself


@pytest.mark.parametrize("order", range(1, 7))
def test_moments_to_order_six(totals, order: int) -> None:
    """E z^k = 0, 1, 0, 3, 0, 15 with variance E z^2k - (E z^k)^2 over the number of draws."""

    def moment(k: int) -> float:
        return 0.0 if k % 2 else float(math.prod(range(1, k, 2)))

    count = CHUNKS * CHUNK
    error = math.sqrt((moment(2 * order) - moment(order) ** 2) / count)
    assert abs(totals[0][order - 1] / count - moment(order)) < SIGMAS * error


@pytest.mark.parametrize("side", [0, 1], ids=["right", "left"])
@pytest.mark.parametrize("row", range(len(TAILS)), ids=map(str, TAILS))
def test_tails_past_five_sigma(totals, row: int, side: int) -> None:
    """Counts are Poisson: 77 expected beyond 5 sigma on each side, 5.1 beyond 5.5."""
    mean = CHUNKS * CHUNK * math.erfc(TAILS[row] / math.sqrt(2)) / 2
    count = int(totals[1][row, side])
    law = stats.poisson(mean)
    assert min(law.cdf(count), law.sf(count - 1)) > P_MIN, (count, mean)


def test_the_farthest_draw_is_where_the_resolution_ends() -> None:
    """The word 0 gives the smallest uniform, 2^-32: 6.66 standard deviations, as documented."""
    largest = torch.sqrt(-2 * torch.log(random._open_unit(torch.zeros(1, dtype=torch.int32))))
    assert float(largest) == pytest.approx(math.sqrt(64 * math.log(2)), rel=1e-6)


def kolmogorov(z: Tensor) -> float:
    """p-value of sup |F_n - Phi|."""
    z = z.double().flatten().sort().values
    n = len(z)
    phi, rank = torch.special.ndtr(z), torch.arange(n, dtype=torch.float64)
    distance = torch.maximum(((rank + 1) / n - phi).max(), (phi - rank / n).max())
    return float(stats.kstwobign.sf(float(distance) * math.sqrt(n)))


def grid(axis: str, rows: int, columns: int, first: int = 0) -> Tensor:
    """(rows, columns) normals: elements along columns; along rows the named coordinate."""
    if axis == "step":
        steps = random.stream(origin(seed=3).expand(rows), torch.arange(rows) + 7)
        z = random.normal(steps, first + columns)
    elif axis == "chain":
        z = random.normal(key(7, seed=3, chains=rows), first + columns)
    elif axis == "tensor":  # tensors of one network, each from its own start
        starts = random.aligned_starts([columns - 5] * rows)
        one = key(7, seed=3)
        z = torch.cat([random.normal(one, first + columns, start=s) for s in starts])
    elif axis == "seed":
        z = torch.cat([random.normal(key(7, seed=s), first + columns) for s in range(rows)])
    else:
        raise ValueError(axis)
    return z[:, first:].double()


AXES = ("step", "chain", "tensor", "seed")


@pytest.mark.parametrize("axis", AXES)
def test_kolmogorov_smirnov(axis: str) -> None:
    """Over a whole grid, and along each coordinate alone at one element."""
    assert kolmogorov(grid(axis, 64, 16384)) > P_MIN
    if axis in ("step", "chain"):
        for element in (0, 17, 63):
            assert kolmogorov(grid(axis, 20_000, 1, first=element)) > P_MIN


def transforms(z: Tensor) -> dict[str, Tensor]:
    """Functions of a draw, with mean 0 and variance 1: dependence may hide from the product."""
    return {
        "value": z,
        "square": (z.square() - 1) / math.sqrt(2),
        "sign": z.sign(),
        "size": (z.abs() - math.sqrt(2 / math.pi)) / math.sqrt(1 - 2 / math.pi),
    }


@pytest.mark.parametrize("axis", AXES)
def test_no_correlation_at_any_lag(axis: str) -> None:
    """All lags (row 0..4, element -64..64) at once, for every pair of transforms.

    The circular correlation of independent draws over n places has standard error 1/sqrt(n); its
    square times n, summed over L lags, is chi-squared with L degrees of freedom (Box-Pierce). The
    lags used are no mirror images of each other, so that the terms are uncorrelated.
    """
    rows, columns = (256, 4096) if axis != "seed" else (64, 16384)
    spectra = {k: torch.fft.rfft2(v) for k, v in transforms(grid(axis, rows, columns)).items()}
    n = rows * columns
    for first, a in spectra.items():
        for second, b in spectra.items():
            products = torch.fft.irfft2(a.conj() * b, (rows, columns)) / math.sqrt(n)
            ahead = products[0, 1:65]
            later = torch.cat([products[1:5, :65], products[1:5, -64:]], dim=1).flatten()
            terms = torch.cat([ahead, later])
            p = float(stats.chi2.sf(float(terms.square().sum()), len(terms)))
            assert p > P_MIN, (first, second, p)
            assert terms.abs().max() < SIGMAS + 1, (first, second)  # one lag alone: 6 sigma


def cells(columns: list[Tensor], bins: int) -> float:
    """p-value of chi-squared on ``bins``^d equally likely cells."""
    code = torch.zeros_like(columns[0], dtype=torch.int64)
    for z in columns:
        code = code * bins + (torch.special.ndtr(z) * bins).long().clamp_max(bins - 1)
    counts = torch.bincount(code.flatten(), minlength=bins ** len(columns))
    return float(stats.chisquare(counts.numpy()).pvalue)


@pytest.mark.parametrize("axis", AXES)
def test_neighbours_are_jointly_uniform(axis: str) -> None:
    """Pairs on 32 x 32 cells and triples on 12^3, along the axis, across it, and along both."""
    z = grid(axis, 128, 8192)
    a, right, below = z[:-2, :-2], z[:-2, 1:-1], z[1:-1, :-2]
    for pair in ([a, right], [a, below], [a, z[1:-1, 1:-1]]):
        assert cells(pair, 32) > P_MIN
    for triple in ([a, right, z[:-2, 2:]], [a, below, z[2:, :-2]], [a, right, below]):
        assert cells(triple, 12) > P_MIN


def test_halves_of_a_pair_are_jointly_uniform() -> None:
    """Elements i and i + 16 of a block share a radius and an angle."""
    z = random.normal(key(seed=4), 1 << 21)[0].double().reshape(-1, 2, 16)
    assert cells([z[:, 0], z[:, 1]], 64) > P_MIN
    angle = torch.atan2(z[:, 1], z[:, 0]) / (2 * math.pi) + 0.5
    radius = torch.exp(-(z[:, 0].square() + z[:, 1].square()) / 2)
    for u in (angle, radius):
        assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > P_MIN


def addresses(changed: str) -> tuple[Tensor, Tensor]:
    """Words at many addresses, and at the addresses whose one coordinate is larger by one."""
    n = 1 << 18
    many = torch.arange(n)
    if changed == "element":
        words = random.bits(key(seed=5), n + 1)[0]
        return words[:-1], words[1:]
    if changed == "step":
        words = random.bits(random.stream(origin(seed=5).expand(n + 1), torch.arange(n + 1)), 1)
        return words[:-1, 0], words[1:, 0]
    if changed == "chain":
        words = random.bits(key(seed=5, chains=n + 1), 1)[:, 0]
        return words[:-1], words[1:]
    pair = [random.origin(5 + d, random.NOISE, many) for d in (0, 1)]
    if changed == "purpose":
        pair = [random.origin(5, p, many) for p in (random.NOISE, random.INIT)]
    one, other = (random.bits(random.stream(o, 0), 1)[:, 0] for o in pair)
    return one, other


@pytest.mark.parametrize("changed", ["element", "step", "chain", "seed", "purpose"])
def test_every_bit_is_fair_and_flips_for_every_neighbour(changed: str) -> None:
    """Avalanche: bit by bit, ones and changes are binomial with p = 1/2; and the bits of a change
    are pairwise uncorrelated (496 pairs, chi-squared)."""
    one, other = addresses(changed)
    shifts = torch.arange(32, dtype=torch.int32)
    for words in (one, one ^ other):
        signs = 1 - 2 * ((words[:, None] >> shifts) & 1).float()  # sums below 2^24 are exact
        ones = signs.sum(0) / math.sqrt(len(signs))
        assert ones.abs().max() < SIGMAS, ones
        gram = (signs.mT @ signs / math.sqrt(len(signs)))[torch.ones(32, 32).triu(1).bool()]
        assert float(stats.chi2.sf(float(gram.square().sum()), 496)) > P_MIN
        assert gram.abs().max() < SIGMAS + 1


def test_collisions_between_streams_are_as_frequent_as_chance() -> None:
    """Words of 64 keys: a stream repeats none of its own, and meets another's at the rate 2^-32."""
    count = 1 << 15
    words = random.bits(key(9, seed=6, chains=64), count)
    assert all(len(row.unique()) == count for row in words)
    total = words.numel()
    repeated = total - len(words.unique())
    mean = 64 * 63 / 2 * count**2 / 2**32
    assert abs(repeated - mean) < SIGMAS * math.sqrt(mean), (repeated, mean)


@pytest.mark.parametrize("start", [0, 32, 480, 1 << 20, (1 << 31) - 4096])
def test_a_draw_does_not_depend_on_where_reading_starts(start: int) -> None:
    whole = random.normal(key(3, chains=2), 2048, start=start)
    for offset in (32, 1024):
        part = random.normal(key(3, chains=2), 2048 - offset, start=start + offset)
        assert torch.equal(whole[:, offset:], part)
    assert torch.equal(whole[:, :100], random.normal(key(3, chains=2), 100, start=start))
    with pytest.raises(ValueError, match="multiple of 32"):
        random.normal(key(3), 10, start=start + 1)


@pytest.mark.parametrize("chains", [1, 2, 7, 33])
def test_a_draw_does_not_depend_on_how_many_chains_there_are(chains: int) -> None:
    many = random.normal(key(5, seed=8, chains=40), 1000, start=64)
    assert torch.equal(many[:chains], random.normal(key(5, seed=8, chains=chains), 1000, start=64))
    # Nor on which chains stand beside it.
    alone = random.origin(8, random.NOISE, torch.tensor([chains]))
    assert torch.equal(many[chains], random.normal(random.stream(alone, 5), 1000, start=64)[0])


def test_tensors_never_share_a_draw() -> None:
    """``aligned_starts`` gives every tensor its own blocks, however odd the sizes."""
    sizes = [1, 31, 32, 33, 400, 313_600, 10, 4000, 1]
    starts = random.aligned_starts(sizes)
    for start, size, following in zip(starts, sizes, [*starts[1:], 10**9], strict=True):
        assert start % random.BLOCK == 0
        assert start + -(-size // random.BLOCK) * random.BLOCK <= following


def test_the_committed_summary_of_dieharder_is_about_these_bits() -> None:
    """Fingerprints of the streams that were judged; no test FAILED; WEAK as often as by chance."""
    from lab import dieharder

    text = SUMMARY.read_text()
    judged = dict(re.findall(r"^order (\w+) \((\w+)\)", text, flags=re.MULTILINE))
    assert {"element", "step", "chain"} <= set(judged)
    for order, fingerprint in judged.items():
        assert dieharder.fingerprint(order) == fingerprint, order
    verdicts = re.findall(r"\|\s*(PASSED|WEAK|FAILED)\s*$", text, flags=re.MULTILINE)
    assert len(verdicts) >= 100
    assert "FAILED" not in verdicts
    # A perfect generator's p-values are WEAK once in a hundred.
    assert stats.binom.sf(verdicts.count("WEAK") - 1, len(verdicts), 0.01) > 1e-3
