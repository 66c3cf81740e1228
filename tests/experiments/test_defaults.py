"""What is shown of the defaults: one file, in parts, that many processes may write to."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from natural_langevin import Posterior
from natural_langevin.experiments.defaults import against_nuts, longer, record, twenty

ROOT = Path(__file__).parents[2]


def test_rows_of_many_writers_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: record.keep(path, "longer", f"row {k}", {"nll": k}), range(12)))
    record.keep(path, "nuts", "other", [])
    assert record.rows(path, "longer") == {f"row {k}": {"nll": k} for k in range(12)}
    assert set(json.loads(path.read_text())) == {"longer", "nuts"}
    assert "commit" in json.loads(path.read_text())["longer"]


def test_committed_tables_are_those_of_the_file() -> None:
    page, path = (ROOT / "docs/defaults.md").read_text(), ROOT / record.FILE
    for part, table in (("twenty", twenty.table), ("nuts", against_nuts.table)):
        rows = record.rows(path, part)
        assert rows
        assert table(rows) in page
    assert len(record.rows(path, "twenty")) == 20


def test_longer_is_judged_by_the_errors() -> None:
    def row(nll: float) -> dict[str, float]:
        return {"steps": 100, "nll": nll, "nll_error": 0.01}

    rows = {f"a x {t}": row(v) for t, v in zip(longer.TIMES, (0.5, 0.52, 0.51), strict=True)}
    rows |= {f"b x {t}": row(v) for t, v in zip(longer.TIMES, (0.5, 0.5, 0.54), strict=True)}
    rows["c x 1"] = row(0.5)
    found = longer.table(rows)
    assert "Not worse within 2 errors on 1 of 2; worse: b." in found
    assert "| c | 100 | 0.5000 ± 0.0100 |  |  |" in found
    # Another seed of b: its mean is within the error that the two seeds show.
    rows |= {longer.key("b", 1, seed=1): row(0.54), longer.key("b", 3, seed=1): row(0.54)}
    assert longer.table(rows) == found  # which is not there yet at all lengths
    rows[longer.key("b", 10, seed=1)] = row(0.51)
    found = longer.table(rows)
    assert "Not worse within 2 errors on 2 of 2; worse: none." in found
    assert "| b | 100 | 0.5200 ± 0.0200 | 0.5200 ± 0.0200 | 0.5250 ± 0.0150 |" in found


def test_a_calibrated_forecast_has_an_error_too() -> None:
    """Of 100 numbers: the mean over the levels of E|k / 100 - level|, k binomial."""
    y = torch.zeros(100, 1)
    problem = twenty.Problem(y, y, y, y, lambda dropout, seed: torch.nn.Identity())
    scores = SimpleNamespace(coverage={0.5: 1.0, 0.9: 1.0})
    found = twenty._if_calibrated(cast(Posterior, None), problem, scores)
    expected = sum((2 * p * (1 - p) / (100 * torch.pi)) ** 0.5 for p in (0.5, 0.9)) / 2
    # A mean of 500 such errors, each with a deviation of about 3/4 of its mean.
    assert found == pytest.approx(float(expected), rel=4 * 0.75 / 500**0.5)
