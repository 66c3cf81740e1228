"""What is shown of the defaults: one file, in parts, that many processes may write to."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.defaults import (
    ablation,
    against_nuts,
    calibration,
    development,
    longer,
    problems,
    record,
    rivals,
    twenty,
)
from lab.pages import markdown
from natural_langevin import likelihoods
from natural_langevin.likelihoods.predictive import Mixture
from natural_langevin.metrics import expected_calibration_error
from natural_langevin.metrics.summary import LEVELS, RegressionScores
from natural_langevin.recipe.settings import Settings

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
    page, path = (ROOT / "lab/notes/defaults.md").read_text(), ROOT / record.FILE
    rows, known = record.rows(path, "twenty"), record.rows(path, "rivals")
    assert twenty.table(rows, known) in page
    assert against_nuts.table(record.rows(path, "nuts")) in page
    assert len([name for name in rows if " split " not in name]) == 20
    assert rows.keys() <= known.keys()


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
    found = calibration.if_calibrated([{"rows": 100, "inside": {"0.5": 100, "0.9": 100}}])
    expected = sum((2 * p * (1 - p) / (100 * torch.pi)) ** 0.5 for p in (0.5, 0.9)) / 2
    # A mean of 2,000 such errors, each with a deviation of about 3/4 of its mean.
    assert found == pytest.approx(float(expected), rel=4 * 0.75 / calibration.DRAWN**0.5)


def test_the_error_of_labels_drawn_from_their_probabilities_is_the_expected_one() -> None:
    """Drawn from every row's own confidence; the counts know that of a bin's mean alone."""
    draws = torch.Generator().manual_seed(0)
    p = (2 * torch.randn(60, 4, generator=draws, dtype=torch.float64)).softmax(-1)
    labels = torch.multinomial(p, 500, replacement=True, generator=draws)
    errors = torch.tensor([expected_calibration_error(p, y) for y in labels.mT])
    found = calibration.if_calibrated([calibration.of_classes(p, labels[:, 0])])
    assert abs(found - errors.mean()) < 4 * errors.std() * (1 / 500 + 1 / calibration.DRAWN) ** 0.5


def test_counts_of_several_test_sets_have_the_error_of_all_their_rows() -> None:
    draws = torch.Generator().manual_seed(0)
    p = torch.randn(90, 3, generator=draws).softmax(-1)
    y = torch.randint(3, (90,), generator=draws)
    parts = [calibration.of_classes(p[rows], y[rows]) for rows in (slice(0, 20), slice(20, 90))]
    assert calibration.error(parts) == pytest.approx(expected_calibration_error(p, y))
    assert calibration.error(json.loads(json.dumps(parts))) == calibration.error(parts)
    below = torch.rand(90, generator=draws)
    parts = [calibration.of_numbers(below[rows]) for rows in (slice(0, 20), slice(20, 90))]
    levels = torch.tensor(LEVELS)
    inside = ((below - 0.5).abs() <= levels[:, None] / 2).float().mean(1)
    assert calibration.error(parts) == pytest.approx(float((inside - levels).abs().mean()))


def test_coverage_of_a_rival_is_that_of_its_mixtures_central_intervals() -> None:
    draws = torch.Generator().manual_seed(0)
    outputs, y = (torch.randn(*shape, 1, generator=draws) for shape in ((5, 200), (200,)))
    widths = [rivals.Width() for _ in outputs]
    for k, width in enumerate(widths):
        width.log.data.fill_(0.2 * k - 1)
    variance = torch.stack([2 * width.log.detach() for width in widths]).double().exp()
    law = Mixture(likelihoods.Gaussian("rmse"), outputs, {"variance": variance})
    scores = RegressionScores.of(law, y, outside=None)
    found = rivals.counts(outputs, y, widths)
    assert found == calibration.of_coverage(scores.coverage, 200)


def test_the_table_counts_the_first_split_and_all_of_them() -> None:
    def ours(nll: float, inside: int) -> dict[str, Any]:
        counts = {"rows": 100, "inside": {"0.5": inside}}
        error = calibration.error([counts])
        return {
            "rows": 9, "ours": nll, "calibration": counts, "calibration_error": error,
            "calibration_error_if_calibrated": 0.04, "plain": None, "cpu_seconds": 2.0,
        }  # fmt: skip

    def theirs(*nll: float) -> dict[str, Any]:
        counts = {"rows": 100, "inside": {"0.5": 60}}
        each = [{"nll": v, "calibration": counts} for v in nll]
        return dict(zip(rivals.NAMES, each, strict=True))

    # Behind and too wide by the first split; ahead, and calibrated together with the second.
    rows = {"a": ours(0.5, 58), "a split 1": ours(0.1, 44), "a split 2": ours(-9.0, 90)}
    known = {"a": theirs(0.4, 0.6, 0.9), "a split 1": theirs(0.8, 0.4, 0.9)}
    found = twenty.table(rows, known)
    assert "| a | 9 | 2 | 0.300 ± 0.200 | 0.500 | five networks | -0.200 ± 0.100 | 0.010 |" in found
    assert "| 0.500 | 0.400 | 0.080 | 0.040 | 2.0 |" in found
    assert "as good as the best rival on 1 of 1 (1 of the 1 new to the recipe), pooled" in found
    assert "below .05 on 1 of 1 (the best rival's on 0 of 1); errors of the splits by" in found
    assert "themselves, in the mean, on 0 of 1." in found
    assert "at least as good on 0 of 1 (0 of the 1 new to the recipe), calibration" in found
    assert "below .05 on 0 of 1. From" in found


def test_split_0_is_the_one_that_was_always_shown_and_others_are_others() -> None:
    pytest.importorskip("sklearn")
    for name, digest in {"iris": 51, "uci yacht": -3.07456, "circles": 93}.items():
        first, again, other = (dict(problems.problems(k))[name]() for k in (0, 0, 1))
        assert torch.equal(first.x, again.x)
        assert first.x.shape == other.x.shape
        assert not torch.equal(first.y, other.y)
        assert float(first.y_test.double().sum()) == pytest.approx(digest, abs=1e-3)


def test_every_rule_can_be_left_out() -> None:
    usual = (Settings(), {})
    assert ablation.without(ablation.WITH) == usual
    found = [ablation.without(rule) for rule in ablation.RULES]
    assert all(one != usual for one in found)
    assert len({repr(one) for one in found}) == len(found)


def test_what_a_rule_pays_by() -> None:
    """Pairs of the same problem and seed: an NLL worse by .1 without the rule, time by chance."""

    def row(nll: float, cpu: float) -> dict[str, float]:
        return {"nll": nll, "calibration_error": 0.05, "cpu_seconds": cpu}

    rule, rows = next(iter(ablation.RULES)), {}
    for seed, (off, cpu) in enumerate([(0.09, 1.1), (0.11, 0.9), (0.1, 1.0)]):
        rows[f"{ablation.WITH}|wave|{seed}"] = row(float(seed), 1.0)
        rows[f"{rule}|wave|{seed}"] = row(seed + off, cpu)
    rows[f"{rule}|few|0"] = row(9.0, 9.0)  # without a pair
    found = ablation.differences(rows, rule)
    assert found["nll"] == pytest.approx((0.1, 0.01 / 3**0.5))
    assert (found["pays"], found["pairs"], found["same"]) == ("nll", 3, 0)
    slower = {"nll": (0.0, 0.01), "calibration_error": (0.0, 0.01), "log_cpu": (0.5, 0.1)}
    assert ablation.pays(slower) == "log_cpu"
    assert ablation.pays(slower | {"nll": (-0.05, 0.01)}) == "", "faster and worse is no gain"
    assert ablation.pays(slower | {"log_cpu": (0.1, 0.1)}) == ""
    rows |= {f"{ablation.WITH}|few|0": row(1.0, 1.0), f"{rule}|few|0": {"failed": "lost"}}
    assert ablation.differences(rows, rule)["pays"] == "nll 1 errors"
    columns, lines = ablation.table(rows)
    assert [len(line) for line in lines] == [1 + len(columns)]


@pytest.mark.parametrize("name", development.PROBLEMS)
def test_development_problems_are_tables_of_a_seed(name: str) -> None:
    one, again, other = (development.PROBLEMS[name](seed) for seed in (0, 0, 1))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.y, again.y)
    assert not torch.equal(one.x, other.x)
    assert len(one.x_test) == len(one.y_test) == development.TEST
    outputs = one.make(0.0, 0)(one.x[:5])
    assert outputs.shape[0] == 5
    assert bool(one.y.isfinite().all())
    if not one.y.is_floating_point():
        assert outputs.shape[1] == int(one.y.max()) + 1


def test_the_committed_table_of_rules_is_that_of_the_file() -> None:
    rows = json.loads((ROOT / "results/ablation.json").read_text())["rows"]
    table = markdown(*ablation.table(rows))
    assert len(table.splitlines()) == 2 + len(ablation.RULES)
    assert table in (ROOT / "lab/notes/ablation.md").read_text()
