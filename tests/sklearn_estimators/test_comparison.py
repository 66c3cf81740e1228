"""The comparison with scikit-learn's networks: the committed results, and a part of them anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from natural_langevin.sklearn import compare
from natural_langevin.sklearn.table import markdown, mean, with_table

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "results" / "tabular.json").read_text())
ROWS = {(row["dataset"], row["method"]): row for row in RESULTS["rows"]}


def test_the_page_shows_the_committed_results():
    page = (ROOT / "docs" / "tabular.md").read_text()
    assert with_table(page, RESULTS) == page


def test_results_name_their_configuration_splits_and_machine():
    assert set(ROWS) == {(d, m) for d in compare.DATASETS for m in compare.METHODS}
    assert RESULTS["config"] == json.loads(json.dumps(compare.configuration()))
    assert RESULTS["commit"]
    assert RESULTS["machine"]["cpu"]
    assert RESULTS["versions"]["scikit-learn"]
    for (name, _), row in ROWS.items():
        assert all(len(v) == compare.DATASETS[name] for v in row["scores"].values())


def test_regression_scores_by_hand():
    """Two networks, one datum: N(0, 1) with weight 0.25 and N(2, 4) with 0.75 at y = 1."""
    means, deviation, y = np.array([[0.0], [2.0]]), np.array([1.0, 2.0]), np.array([1.0])
    found = compare.regression_scores(compare.mixture(means, deviation, np.array([0.25, 0.75])), y)
    density = 0.25 * stats.norm.pdf(1, 0, 1) + 0.75 * stats.norm.pdf(1, 2, 2)
    assert found["nll"] == pytest.approx(-np.log(density))
    assert found["rmse"] == pytest.approx(0.5)
    below = 0.25 * stats.norm.cdf(1, 0, 1) + 0.75 * stats.norm.cdf(1, 2, 2)
    level = abs(2 * below - 1)
    inside = [float(level <= one) for one in compare.LEVELS]
    gaps = [abs(a - b) for a, b in zip(inside, compare.LEVELS, strict=True)]
    assert found["calibration"] == pytest.approx(np.mean(gaps))


def test_a_right_distribution_is_calibrated():
    generator = np.random.default_rng(0)
    y = generator.normal(size=4000)
    found = compare.regression_scores(
        compare.mixture(np.zeros((1, 4000)), np.ones(1), np.ones(1)), y
    )
    assert found["calibration"] < 3 * np.sqrt(0.25 / 4000)  # three standard errors of a coverage
    assert found["coverage_90"] == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 4000))


def test_differences_are_taken_split_by_split():
    """Splits of very different difficulty, and the same difference on all: no standard error."""
    scores = {"accuracy": [0.9, 0.9], "calibration": [0.1, 0.1], "nll": [1.0, 5.0]}
    other = scores | {"nll": [1.5, 5.5]}
    rows = [
        {"dataset": "d", "method": method, "scores": found, "fit_seconds": [1.0]}
        for method, found in (("ours", scores), ("mlp", other))
    ]
    ours, rival = markdown({"rows": rows}).splitlines()[2:]
    assert "| **3.000 ± 2.000** | -0.500 ± 0.000 |" in ours
    assert "| 3.500 ± 2.000 |  |" in rival


def test_the_first_split_of_iris_anew_is_as_good_as_the_tuned_network():
    """The whole comparison takes minutes; this is its first split, against the committed rival."""
    X, X_test, y, y_test = compare.load("iris", 0)
    model = compare.ours("iris", X, y, 0)
    found = compare.classification_scores(compare.predictive("iris", model, (X, y), X_test), y_test)
    committed, rival = (ROWS["iris", method]["scores"]["nll"] for method in ("ours", "mlp"))
    assert found["nll"] == pytest.approx(committed[0], rel=0.05)  # another machine rounds otherwise
    assert found["nll"] <= rival[0]
    assert mean(committed) <= mean(rival)
