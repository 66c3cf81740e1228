"""Charts, grids, claims and the paragraph, each on numbers small enough to check by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from natural_langevin.cli.pages.charts import Chart, curves, diagrams, histogram, sizes, thin, trace
from natural_langevin.cli.pages.heatmap import grids
from natural_langevin.cli.pages.summary import claims, figures, machine, paragraph
from natural_langevin.cli.pages.table import settings


def ticks(chart: Chart) -> list[str]:
    """The numbers on the axes, in the order in which they are drawn."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", chart.drawing)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("low", [1e-9, 0.051, 5e4])
@pytest.mark.parametrize("ratio", [1.001, 1.2, 3.0, 40.0, 1e12])
def test_an_axis_has_a_few_different_ticks(log: bool, low: float, ratio: float) -> None:
    values = [low, low * ratio] if log else [low, low * ratio, -low * ratio]
    chart = trace([0, 10, 20][: len(values)], [values])
    assert chart.log == log
    labels = ticks(chart)
    values = labels[labels.index("0") :]  # the x axis comes first, and starts at 0
    assert len(labels) == len(chart.drawing.split("</text>")) - 1
    assert 5 <= len(labels) <= 20
    assert "" not in values


@pytest.mark.parametrize("values", [[], [None], [math.nan, math.inf], [0.0], [2.0], [1e308, 1.0]])
@pytest.mark.parametrize("method", ["curve", "size"])
def test_a_chart_exists_for_anything(values: list[float | None], method: str) -> None:
    item = {"method": "m", "label": "M", "step": range(len(values)), "loss": values,
            "size": range(1, len(values) + 1), "nll": values}  # fmt: skip
    hue = {"m": "hue0"}
    chart = curves([item], hue) if method == "curve" else sizes([item], hue)
    assert 'class="line hue0"' in chart.drawing
    assert "nan" not in chart.drawing
    assert ticks(chart)


def test_a_line_passes_over_nulls_and_breaks_at_infinities() -> None:
    item = {"method": "m", "label": "M", "step": [0, 1, 2, 3, 4, 5]}
    loss = [1.0, None, 0.5, math.nan, math.inf, 0.25]
    chart = curves([{**item, "loss": loss}], {"m": "hue0"})
    (path,) = re.findall(r'class="line hue0"><path d="([^"]*)"', chart.drawing)
    assert path.count("M") == 2
    assert path.count("L") == 3  # a begin that is drawn twice is seen where it stands alone
    assert chart.legend == [("M", "hue0", "0.2500")]


def test_what_is_drawn_lies_where_its_numbers_are() -> None:
    """A line from corner to corner, in view-box pixels: margins of 2 and 4 percent each side."""
    item = {"method": "m", "label": "M", "step": [0, 50, 100], "loss": [0.01, 0.1, 1.0]}
    chart = curves([item], {"m": "hue0"})
    (path,) = re.findall(r'class="line hue0"><path d="([^"]*)"', chart.drawing)
    numbers = [float(v) for v in re.findall(r"[-\d.]+", path)]
    points = [numbers[:2], *(numbers[k : k + 2] for k in range(4, len(numbers), 2))]
    wide, high = 420 - 44 - 10, 280 - 10 - 40
    x = [44 + wide * (0.02 + share) / 1.04 for share in (0, 0.5, 1)]
    y = [280 - 40 - high * (0.04 + share) / 1.08 for share in (0, 0.5, 1)]
    for point, *expected in zip(points, x, y, strict=True):
        assert point == pytest.approx(expected, abs=1e-3)


def test_a_histogram_says_what_each_bar_is() -> None:
    chart = histogram("Total", "entropy $x", [10, 0, 5], 3.0, "hue5")
    assert re.findall(r"<title>([^<]*)</title>", chart.drawing) == [
        "0 to 1: 10 rows",
        "2 to 3: 5 rows",
    ]
    heights = [
        max(ys) - min(ys)
        for d in re.findall(r'</title><path d="([^"]*)"', chart.drawing)
        for ys in [[float(v) for v in re.findall(r"[-\d.]+", d)][1::2]]
    ]
    assert heights[0] == pytest.approx(2 * heights[1], rel=1e-4)
    assert "entropy" not in chart.drawing  # words are the template's


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
    places = [(i, j) for i, row in enumerate(euclidean["cells"]) for j, c in enumerate(row) if c[3]]
    assert places == [(1, 1)]
    assert [accuracy is None for accuracy, *_ in euclidean["cells"][3]] == [False, True, False]
    assert (dropout["columns"], euclidean["columns"]) == ("dropout rate", None)
    assert dropout["cells"][1][2][3]
    cells = [c for grid in grids(results["selection"]) for row in grid["cells"] for c in row]
    ranked = sorted((c for c in cells if c[0] is not None), key=lambda c: c[0])
    strengths = [strength for _, _, strength, _ in ranked]
    assert strengths == sorted(strengths)
    assert strengths[-1] > 2 * strengths[0]


def test_reliability_leaves_empty_bins_out() -> None:
    item = {"method": "m", "estimate": "point", "label": "M",
            "confidence": [None, 0.5, 1.0], "accuracy": [None, 0.25, 1.0],
            "count": [0, 10, 30]}  # fmt: skip
    (diagram,) = diagrams([item], {"m": "hue0"})
    assert diagram.cells == [("0.500", "0.250", "10"), ("1.000", "1.000", "30")]
    assert diagram.x_label == "confidence, 40 images"
    assert "0.0625" in diagram.description  # 10 of 40 images, 0.25 off
    dots = re.findall(
        r'class="dot hue0"><title>[^<]*</title><path d="M ([\d.]+) ([\d.]+)', diagram.drawing
    )
    (x, y), (right, top) = ((float(a), float(b)) for a, b in dots)
    assert (right, top) == pytest.approx((42 + 176, 8))
    assert (x, y) == pytest.approx((42 + 176 / 2, 8 + 0.75 * 176))


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
