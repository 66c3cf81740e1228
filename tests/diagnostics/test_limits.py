"""Verdicts follow from how many draws there are: no false ones, and none missing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from natural_langevin.diagnostics import diagnose, ranks
from natural_langevin.diagnostics.configurational import Configurational
from natural_langevin.diagnostics.function_space import mixing
from natural_langevin.diagnostics.halved import compare
from natural_langevin.diagnostics.limits import ess_limit, rhat_limit, too_high
from natural_langevin.diagnostics.reading import Reading


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("chains", "draws"), [(4, 50), (4, 10), (2, 20)])
def test_independent_draws_get_no_verdict(chains: int, draws: int) -> None:
    """With limits of 1.01 and 50 per chain, 37 of 40 diagnoses of 4 x 50 were false. Expected here
    is about one in a hundred: more than 3 of 40 has probability 1e-3."""
    false = [diagnose(normal(chains, draws, 3, seed=s), {}).verdicts for s in range(40)]
    assert sum(bool(v) for v in false) <= 3, [v for v in false if v]


@pytest.mark.parametrize(("chains", "draws"), [(2, 10), (4, 10), (4, 50), (16, 50)])
def test_the_limits_are_what_independent_draws_stay_within(chains: int, draws: int) -> None:
    """200 simulations: beyond a limit at most 2 % are expected, 4 sd of a binomial above that."""
    count = 200
    values = normal(chains, draws, count).numpy()
    rhat, ess = ranks.rhat(values), ranks.ess(values)
    allowed = 0.02 * count + 4 * math.sqrt(0.02 * count)
    assert (rhat > rhat_limit(chains, draws)).sum() <= allowed
    assert (ess < ess_limit(chains, draws)).sum() <= allowed


def test_limits_are_those_of_the_books_with_many_draws() -> None:
    assert rhat_limit(4, 2000) == 1.01
    assert ess_limit(4, 2000) == 200
    assert ess_limit(4, 200, 200, wanted=400.0) == 400 > ess_limit(4, 150, 200, wanted=400.0)
    assert rhat_limit(4, 2) == math.inf
    assert rhat_limit(4, 2000, 100, ess=10.0) == 1.1  # two chains apart are no correlation


@pytest.mark.parametrize("draws", [3, 10, 400])
def test_the_verdict_on_many_numbers_is_that_on_each(draws: int) -> None:
    rhat = np.array([math.nan, 0.99, 1.0, 1.005, 1.02, 1.05, 1.09, 1.11, 1.3, 2.0, 40.0, math.inf])
    for ess in (math.nan, 1.0, 12.0, 100.0, 1000.0, 5000.0):
        limit = rhat_limit(4, draws, 7, ess=ess)
        found = too_high(rhat, np.full(len(rhat), ess), 4, draws, 7)
        assert found.tolist() == (rhat > limit).tolist(), (ess, limit)


def test_chains_that_disagree_are_still_found_with_few_draws() -> None:
    values = normal(4, 50, 3)
    values[0] += 1.5
    assert any("disagree" in v for v in diagnose(values, {}).verdicts)


def test_correlated_chains_that_agree_are_not_said_to_disagree() -> None:
    """Autoregressions of 4 x 400 with 90 effective draws, 40 numbers: the largest R-hat is above
    what independent draws would show, and within what so few effective ones do."""
    noise = normal(4, 400, 40)
    values = [noise[:, 0]]
    for t in range(1, 400):
        values.append(0.9 * values[-1] + (1 - 0.9**2) ** 0.5 * noise[:, t])
    found = diagnose(torch.stack(values, 1), {})
    assert found.rhat is not None
    assert found.rhat.max() > rhat_limit(4, 400, 40)
    (verdict,) = found.verdicts
    assert "strongly correlated" in verdict


def test_chains_that_share_noise_count_less() -> None:
    """A third of the variance is common to four chains: 1 + 3/3 = 2 times the variance of the mean.

    The corrected size is known to about 15 %; the sum over chains is 1600."""
    own, common = normal(4, 400, 6), normal(1, 400, 6, seed=1)
    values = (2 / 3) ** 0.5 * own + (1 / 3) ** 0.5 * common
    assert 1300 < np.median(mixing(values).ess) < 1900
    assert 550 < np.median(mixing(values, shared=True).ess) < 1050
    assert 1100 < np.median(mixing(own, shared=True).ess) < 1900
    found = diagnose(values, {}, shared=True)
    assert any("same minibatches" in v for v in found.verdicts)


def heated(temperature: Reading, **tensors: Reading) -> list[str]:
    configurational = Configurational(temperature, tensors)
    return diagnose(normal(4, 200, 3), {}, configurational=configurational).verdicts


def test_one_hot_tensor_is_named_where_the_sum_looks_fine() -> None:
    (verdict,) = heated(Reading(1.05, 0.03), a=Reading(1.0, 0.03), b=Reading(3.5, 0.2))
    assert verdict.startswith("The samples of 'b' are too hot, 3.50 ± 0.20 times")
    assert heated(Reading(1.0, 0.03), a=Reading(1.12, 0.05)) == []
    assert heated(Reading(1.27, 0.06))  # by four errors, though not four above a tenth
    (verdict,) = heated(Reading(2.0, 0.1), a=Reading(2.0, 0.1))
    assert verdict.startswith("The samples are too hot")


def test_a_temperature_less_known_than_large_is_no_reading() -> None:
    found = diagnose(normal(4, 200, 3), {}, configurational=Configurational(Reading(1.2, 3.4), {}))
    assert "Temperature of the samples: no reading, its error 3.4 exceeds it" in str(found)
    assert "1.2" not in str(found)
    assert found.verdicts == []


def test_a_run_is_held_against_half_its_step_size() -> None:
    """Variances 1.5 and 1.25 times those of small steps: a ratio of 1.2, and an excess of half."""
    full, half = 1.5**0.5 * normal(4, 1000, 5), 1.25**0.5 * normal(4, 1000, 5, seed=1)
    both = compare({"predictions": full, "w": half}, {"predictions": half, "w": half})
    hot, same = both["predictions"], both["w"]
    assert hot.hot
    assert abs(hot.ratio.value - 1.2) < 4 * hot.ratio.error < 0.25
    assert hot.excess == pytest.approx(0.5, abs=0.2)
    assert not same.hot
    assert not same.shifted
    assert compare({"w": half + 0.5}, {"w": half})["w"].shifted
    verdicts = diagnose(full, {}, halved=both).verdicts
    assert len(verdicts) == 1
    assert verdicts[0].startswith("The draws of predictions are too wide")


def test_a_metric_that_goes_on_adapting_is_said() -> None:
    (verdict,) = diagnose(normal(4, 200, 3), {}, adapting=True).verdicts
    assert "was still adapting" in verdict
