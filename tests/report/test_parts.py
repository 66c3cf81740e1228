"""Axes, lines, grids, claims and the paragraph, each on numbers small enough to check by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from natural_langevin.report.axes import Axis, around
from natural_langevin.report.charts import curves, thin
from natural_langevin.report.claims import claims
from natural_langevin.report.heatmap import grids
from natural_langevin.report.reliability import diagrams
from natural_langevin.report.summary import figures, machine, paragraph
from natural_langevin.report.table import settings


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("low", [1e-9, 3e-4, 0.051, 0.9, 17.0, 5e4])
@pytest.mark.parametrize("ratio", [1.001, 1.2, 3.0, 40.0, 1e5, 1e12])
def test_an_axis_has_a_few_ticks_inside_it(log: bool, low: float, ratio: float) -> None:
    axis = around([low, low * ratio], log=log)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(-1e-6 <= at <= 1 + 1e-6 for at, _ in ticks)
    assert [at for at, _ in ticks] == sorted({at for at, _ in ticks})
    assert 0 < axis.at(low) < axis.at(low * ratio) < 1


@pytest.mark.parametrize("values", [[], [None], [math.nan, math.inf], [0.0], [2.0], [1e308, 1.0]])
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_exists_for_anything(values: list[float | None], log: bool) -> None:
    axis = around(values, log=log)
    assert axis.low < axis.high
    assert axis.ticks()


def test_an_axis_shows_what_has_a_position() -> None:
    axis = Axis(0.1, 10, log=True)
    assert [axis.shows(v) for v in (1.0, 0.0, -1.0, None, math.nan, math.inf, 1e200)] == [
        True, False, False, False, False, False, False,
    ]  # fmt: skip
    assert Axis(-1, 1).shows(0.0)


def test_a_line_passes_over_nulls_and_breaks_at_infinities() -> None:
    item = {"method": "m", "label": "M", "step": [0, 1, 2, 3, 4, 5]}
    loss = [1.0, None, 0.5, math.nan, math.inf, 0.25]
    (chart,) = curves([{**item, "loss": loss, "test_nll": None}], {"m": "hue0"})
    assert chart.lines[0].path.count("M") == 2
    assert chart.lines[0].path.count("L") == 1
    assert chart.lines[0].last == "0.2500"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 10, 50])
def test_thinning_keeps_the_sum_of_whole_blocks(block: int) -> None:
    values = [float(i * i % 17) for i in range(40)]
    xs, ys = thin([float(i) for i in range(40)], values, block)
    assert len(xs) == len(ys) == math.ceil(40 / block)
    whole = len(ys) - (40 % block > 0)
    kept = values[40 % block :]
    assert sum(ys[len(ys) - whole :]) * block == pytest.approx(sum(kept) if whole else 0)


def test_a_grid_marks_the_chosen_and_the_diverged(results: dict[str, Any]) -> None:
    dropout, euclidean, *_ = grids(results["selection"])
    assert [(i, j) for i, (_, row) in enumerate(euclidean.rows) for j, c in enumerate(row)
            if c.chosen] == [(1, 1)]  # fmt: skip
    assert [c.diverged for c in euclidean.rows[3][1]] == [False, True, False]
    assert (dropout.over, euclidean.over) == ("dropout rate", "")
    assert dropout.rows[1][1][2].chosen
    cells = [c for grid in grids(results["selection"]) for _, row in grid.rows for c in row]
    ranked = sorted((c for c in cells if not c.diverged), key=lambda c: float(c.value))
    strengths = [c.strength for c in ranked]
    assert strengths == sorted(strengths)
    assert strengths[-1] > 2 * strengths[0]


def test_reliability_leaves_empty_bins_out() -> None:
    item = {"method": "m", "estimate": "point", "label": "M",
            "confidence": [None, 0.5, 1.0], "accuracy": [None, 0.25, 1.0],
            "count": [0, 10, 30]}  # fmt: skip
    (diagram,) = diagrams([item], {"m": "hue0"})
    assert [b.cells for b in diagram.bins] == [("0.500", "0.250", "10"), ("1.000", "1.000", "30")]
    assert diagram.total == "40"
    assert "0.0625" in diagram.description  # 10 of 40 images, 0.25 off
    middle = (diagram.left + diagram.right) / 2
    assert diagram.bins[0].x == pytest.approx(middle)
    assert diagram.bins[1].y == pytest.approx(diagram.top)


def set_nll(
    rows: list[dict[str, Any]], method: str, estimate: str, mean: float, std: float
) -> None:
    row = next(r for r in rows if (r["method"], r["estimate"]) == (method, estimate))
    row["test"]["nll"] = {"mean": mean, "std": std, "values": [mean - std, mean, mean + std]}


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    return [claim.verdict for claim in claims(rows)]


def test_claims_follow_the_numbers(results: dict[str, Any]) -> None:
    rows = results["rows"]
    assert verdicts(rows) == ["borne out"] * 3
    set_nll(rows, "dropout", "point", 0.0530, 0.01)
    assert verdicts(rows) == ["borne out", "borne out", "too close to call"]
    set_nll(rows, "dop", "mean", 0.05, 0.001)
    assert verdicts(rows)[1] == "not borne out"
    set_nll(rows, "qdop", "ensemble", 0.09, 0.001)
    assert verdicts(rows) == ["not borne out", "not borne out", "borne out"]


def test_two_standard_errors_are_the_border(results: dict[str, Any]) -> None:
    rows = results["rows"]
    set_nll(rows, "dop", "ensemble", 0.06, 0.003)  # standard error of the difference: 0.002449
    for nll, verdict in ((0.0552, "too close to call"), (0.0550, "borne out")):
        set_nll(rows, "qdop", "ensemble", nll, 0.003)
        assert verdicts(rows)[0] == verdict


def test_no_claims_without_the_numbers_of_the_paper(results: dict[str, Any]) -> None:
    for row in results["rows"]:
        row["paper"] = None
    assert claims(results["rows"]) == []


def test_the_paragraph_counts_honestly(results: dict[str, Any]) -> None:
    paper = [row for row in results["rows"] if row["paper"]]
    level = lower = higher = 0
    for row in paper:
        difference = row["test"]["nll"]["mean"] - row["paper"]["test"]["nll"]
        inside = abs(difference) <= 2 * row["test"]["nll"]["std"]
        level, lower, higher = (
            level + inside,
            lower + (difference < 0 and not inside),
            higher + (difference > 0 and not inside),
        )
    said = paragraph(results)
    assert f"lower in {lower}, higher in {higher}," in said
    assert f"in {level}." in said
    best = min(paper, key=lambda row: row["test"]["nll"]["mean"])
    assert f"“{best['label']}” has the lowest test NLL: {best['test']['nll']['mean']:.4f}" in said
    assert "departs from that of the paper in 2 points" in said


def test_the_large_figures_are_those_of_the_proposal(results: dict[str, Any]) -> None:
    nll = next(r for r in results["rows"] if r["label"] == "Ensemble, QDOP")["test"]["nll"]
    assert figures(results)[0] == (f"{nll['mean']:.4f}", "test NLL, Ensemble, QDOP")
    results["rows"], results["total_seconds"] = [], None
    assert figures(results) == []


def test_the_machine_is_the_device_that_did_the_work() -> None:
    about = {"cpu": "Chip", "cores": 2, "device": "cpu"}
    assert machine({"machine": about}) == "Chip, 2 cores"
    assert machine({"machine": {**about, "device": "NVIDIA H200"}}) == "NVIDIA H200"
    assert machine({"machine": {}}) == "CPU"


def test_settings_use_the_letters_of_the_paper() -> None:
    chosen = {"draws": 595, "prior_variance": [0.12, 0.012], "step_size": 1e-3, "other": None}
    assert settings({"settings": chosen}).replace("\N{NO-BREAK SPACE}", " ") == (
        "η 0.001 · σ² (0.12, 0.012) · draws 595"
    )
