"""R-hat and effective sample sizes of many numbers at once, against ArviZ number by number."""

import numpy as np
import pytest

from natural_langevin.diagnostics import import_arviz, ranks


def series(chains: int, draws: int, seed: int) -> np.ndarray:
    """Independent draws, autoregressions of both signs, a chain elsewhere, a trend, a stuck chain,
    values with ties, and draws with heavy tails that repeat themselves."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws, 9))
    for k, rho in ((1, 0.9), (2, -0.9), (3, 0.99)):
        for t in range(1, draws):
            noise[:, t, k] += rho * noise[:, t - 1, k]
    noise[0, :, 4] += 3
    noise[:, :, 5] += np.linspace(0, 4, draws)[None]
    noise[-1, :, 6] = noise[-1, 0, 6]
    noise[:, :, 7] = np.round(noise[:, :, 7], 1)
    noise[:, :, 8] = np.repeat(rng.standard_cauchy((chains, draws)), 3, axis=1)[:, :draws]
    return noise


@pytest.mark.parametrize("draws", [4, 5, 6, 7, 8, 9, 10, 11, 40, 101])
@pytest.mark.parametrize("chains", [1, 2, 5])
def test_they_are_those_of_arviz(chains: int, draws: int) -> None:
    arviz = import_arviz()
    values = series(chains, draws, seed=draws)
    halves = np.concatenate([values[:, : draws // 2], values[:, -(draws // 2) :]])
    moving = np.ptp(halves, axis=(0, 1)) > 0
    values = values[:, :, moving]
    assert values.shape[2] >= 7
    columns = [values[:, :, k] for k in range(values.shape[2])]
    expected = [float(arviz.ess(c)) for c in columns]
    np.testing.assert_allclose(ranks.ess(values), expected, rtol=1e-9)
    expected = [float(arviz.mcse(c, method="mean")) for c in columns]
    np.testing.assert_allclose(ranks.error_of_mean(values), expected, rtol=1e-9)
    if chains > 1:
        with np.errstate(divide="ignore", invalid="ignore"):  # ArviZ on chains that are stuck
            expected = [float(arviz.rhat(c)) for c in columns]
        np.testing.assert_allclose(ranks.rhat(values), expected, rtol=1e-9)


def test_three_draws_say_nothing_about_the_error() -> None:
    assert np.isnan(ranks.error_of_mean(np.random.default_rng(0).normal(size=(2, 3, 1)))).all()


def test_numbers_that_stand_still_are_as_good_as_all_their_draws() -> None:
    assert ranks.ess(np.ones((2, 10, 1))).tolist() == [20.0]
