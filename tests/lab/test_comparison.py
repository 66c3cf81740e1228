"""The comparison with what others would use: its laws, its scores, and the committed results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from lab.defaults import calibration
from lab.tables import compare, networks, public, rivals
from lab.tables.laws import Amounts, Counts, of_counts, of_residuals

ROOT = Path(__file__).parents[2]


def test_the_list_has_tables_of_every_kind():
    kinds = [table.kind for table in public.TABLES.values()]
    assert len(kinds) >= 20
    assert set(kinds) == {"number", "count", "class"}


def test_laws_of_amounts_are_mixtures_with_a_probability_of_zero():
    """Two members at weights of a half each, by hand; all probability together is one."""
    centre, scale = np.array([[0.0], [1.0]]), np.array([[0.5], [0.8]])
    zero = np.array([[0.2], [0.4]])
    law = Amounts(centre, scale, log=True, zero=zero)
    y = np.array([1.7])
    parts = [
        (1 - zero[k]) * stats.lognorm(scale[k], scale=np.exp(centre[k])).pdf(y) for k in (0, 1)
    ]
    np.testing.assert_allclose(law.log_prob(y), np.log(np.mean(parts, axis=0)), rtol=1e-5)
    np.testing.assert_allclose(np.exp(law.log_prob(np.zeros(1))), [0.3])
    above = integrate.quad(lambda v: float(np.exp(law.log_prob(np.array([v]))[0])), 1e-9, 200)[0]
    assert above == pytest.approx(0.7, abs=1e-5)
    np.testing.assert_allclose(law.cdf(np.array([-1.0, 0.0, 1e9])[None][0]), [0, 0.3, 1], atol=1e-6)
    means = [(1 - zero[k]) * np.exp(centre[k] + scale[k] ** 2 / 2) for k in (0, 1)]
    np.testing.assert_allclose(law.mean, np.mean(means, axis=0))


def test_laws_of_residuals_find_the_law_they_were_drawn_from():
    rng = np.random.default_rng(0)
    centre = rng.normal(size=4000)
    found = of_residuals(centre, np.exp(centre + 0.3 * rng.standard_t(3, size=4000)), log=True)
    assert found.tails == 3
    assert found.scale.item() == pytest.approx(0.3, rel=0.05)
    rate = rng.uniform(1, 4, size=4000)
    y = rng.negative_binomial(2, 2 / (2 + rate)).astype(float)
    assert of_counts(rate, y).size.item() == pytest.approx(2, rel=0.15)


def test_levels_of_a_right_law_are_uniform_also_where_it_jumps():
    rng = np.random.default_rng(0)
    rate = np.full(4000, 1.5)
    y = rng.poisson(rate).astype(float)
    counted = compare.number_scores(Counts(rate[None], np.full((1, 1), 1e8)), y, step=1.0)
    half = np.where(rng.uniform(size=4000) < 0.6, 0.0, np.exp(rng.normal(size=4000)))
    ones = np.ones((1, 4000))
    law = Amounts(0 * ones, ones, log=True, zero=0.6 * ones)
    for scores in (counted, compare.number_scores(law, half, step=0.0)):
        assert stats.kstest(scores["level"], "uniform").pvalue > 0.01
        assert calibration.error([compare.of_calibration(scores)]) < 3 * np.sqrt(0.25 / 4000)


def test_differences_are_taken_row_by_row():
    """Rows of very different difficulty, and the same difference on all: no error. RMSE's is that
    of the two."""
    nll, off = np.array([0.0, 5.0, 50.0]), np.array([1.0, -2.0, 3.0])
    ours, other = {"nll": nll, "off": off}, {"nll": nll + 0.5, "off": 2 * off}
    found = compare.paired(ours, other, classes=False)
    assert found["nll"] == pytest.approx([-0.5, 0.0])
    rmse = np.sqrt(np.mean(off**2))
    assert found["off"][0] == pytest.approx(rmse - 2 * rmse)
    wrong = compare.paired({"nll": nll, "off": np.array([0.0, 1, 1])},
                           {"nll": nll, "off": np.array([0.0, 0, 1])}, classes=True)  # fmt: skip
    assert wrong["off"][0] == pytest.approx(1 / 3)


def test_the_error_of_confidence_is_the_gap_to_accuracy():
    p = np.array([[0.8, 0.2]] * 10)
    scores = compare.class_scores(p, np.array([0] * 5 + [1] * 5))
    assert calibration.error([compare.of_calibration(scores)]) == pytest.approx(0.3)
    assert scores["nll"].mean() == pytest.approx(-0.5 * (np.log(0.8) + np.log(0.2)))


@pytest.mark.parametrize("classes", [True, False])
def test_what_calibrated_predictions_of_few_rows_score_by_chance(classes, tmp_path):
    """Twenty rows of a right law: the error is that of chance, whose size is in the summary."""
    rng, found = np.random.default_rng(0), []
    name = "wine" if classes else "mammals"
    for _ in range(200):
        p = rng.uniform(0.6, 1.0, size=20)
        level = rng.uniform(size=20)
        scores = {"nll": p, "off": (rng.uniform(size=20) > p).astype(float)}
        scores |= {"confidence": p} if classes else {"level": level}
        about = json.dumps({"cpu_seconds": 1.0, "chosen": ""})
        np.savez(tmp_path / f"{name}.ours.0.npz", about=about, **scores)
        (row,) = compare.summary(tmp_path)
        found.append([row["calibration"], row["calibration_if_calibrated"]])
    error, chance = np.array(found).T
    assert chance.mean() > 0.05
    assert abs(error.mean() - chance.mean()) < 4 * error.std() / np.sqrt(200)


@pytest.mark.parametrize("method", ["ridge or logistic", "five Adam networks"])
def test_a_rival_learns_a_small_table(method, monkeypatch):
    """Wine's first split: a rival that fails would make ours look good."""
    monkeypatch.setattr(networks, "RATES", (1e-2,))
    monkeypatch.setattr(networks, "DECAYS", (0.0,))
    monkeypatch.setattr(networks, "EPOCHS", 30)
    x, y, x_test, y_test = public.split("wine", 0, ROOT)
    p = rivals.run_rival(method, x, y, x_test, "class", 0)
    assert compare.class_scores(p, y_test)["nll"].mean() < 0.15
