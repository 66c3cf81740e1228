"""The comparison with scikit-learn's networks: the committed results, and a part of them anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lab.tables import compare
from lab.tables.rivals import mixture
from lab.tables.table import markdown, with_table

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "results" / "tabular.json").read_text())
ROWS = {(row["dataset"], row["method"], row["split"]): row for row in RESULTS["rows"]}


def test_the_page_shows_the_committed_results():
    page = (ROOT / "lab" / "notes" / "tabular.md").read_text()
    assert with_table(page, RESULTS) == page


#: Settings of our own fits.
OURS = ("ours", "cross_validation")


def test_results_name_their_configuration_splits_and_machine():
    done = {(name, split) for name, _, split in ROWS}
    for name, split in done:  # like is compared with like
        methods = {m for n, m, k in ROWS if (n, k) == (name, split)}
        expected = {m for m in compare.METHODS if (name, m) not in compare.LEFT_OUT}
        assert methods | {"ngboost"} == expected  # which is not installed everywhere
    here = json.loads(json.dumps(compare.configuration()))
    # Of the fits as they are now; those of an older recipe are compared with the same rivals.
    assert {k: RESULTS["config"][k] for k in here if k not in OURS} == {
        k: v for k, v in here.items() if k not in OURS
    }
    assert RESULTS["commit"]
    assert RESULTS["machine"]["cpu"]
    assert RESULTS["versions"]["scikit-learn"]


def test_regression_scores_by_hand():
    """Two networks, one datum: N(0, 1) with weight 0.25 and N(2, 4) with 0.75 at y = 1."""
    means, deviation, y = np.array([[0.0], [2.0]]), np.array([1.0, 2.0]), np.array([1.0])
    found = compare.regression_scores(mixture(means, deviation, np.array([0.25, 0.75])), y)
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
    found = compare.regression_scores(mixture(np.zeros((1, 4000)), np.ones(1), np.ones(1)), y)
    assert found["calibration"] < 3 * np.sqrt(0.25 / 4000)  # three standard errors of a coverage
    assert found["coverage_90"] == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 4000))


def test_differences_are_taken_split_by_split():
    """Splits of very different difficulty, and the same difference on all: no standard error. A
    split that only one of them has does not count."""
    rows = [
        {"dataset": "d", "method": method, "split": split, "cpu_seconds": 1.0,
         "scores": {"accuracy": 0.9, "calibration": 0.1, "nll": nll + more}}
        for method, more in (("ours", 0.0), ("mlp", 0.5))
        for split, nll in ((0, 1.0), (1, 5.0))
    ]  # fmt: skip
    rows.append(rows[0] | {"split": 2})
    ours, rival = markdown({"rows": rows}).splitlines()[2:]
    assert "| **3.000 ± 2.000** |  |" in ours
    assert "| 3.500 ± 2.000 | -0.500 ± 0.000 |" in rival
    assert "d (2 splits)" in ours


def test_the_first_split_of_iris_anew():
    """The whole comparison takes minutes; this is its first fit, against the committed one."""
    found = compare.run("iris", "ours", 0, 0.0)["scores"]
    committed = ROWS["iris", "ours", 0]["scores"]
    assert found["nll"] == pytest.approx(committed["nll"], rel=0.3)  # rounding differs by machine
    assert found["nll"] < 0.1
