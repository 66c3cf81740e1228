"""The page of a posterior says what its record says, and nothing where the record has nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from html_reader import Reader
from natural_langevin.cli.pages import ResultsError, render_posterior, write_posterior_report

EVIL = "<script>alert(1)</script>"


def sections(html: str) -> list[str]:
    return [a["id"] for tag, a, _ in Reader(html).elements if tag == "section"]


def texts(html: str, tag: str) -> list[str]:
    return ["".join(text).strip() for found, _, text in Reader(html).elements if found == tag]


def test_it_holds_the_numbers_of_the_record(page: dict[str, Any]) -> None:
    html = render_posterior(page)
    assert sections(html) == ["verdicts", "diagram", "histograms", "trace", "about"]
    assert texts(html, "dd")[:4] == ["87.5\N{NO-BREAK SPACE}%", "0.3125", "0.2188", "0.0625"]
    assert "right in 87.5\N{NO-BREAK SPACE}% of cases" in html
    assert "commonest class is right in 37.5\N{NO-BREAK SPACE}%" in html
    assert "The chains disagree." in html
    assert "confidence 0.550, accuracy 0.500, count 6" in texts(html, "title")
    assert "confidence, 23 rows" in html
    assert "0 to 0.3662: 10 rows" in html
    assert "chain 1" in html


def test_a_regression_shows_coverage_on_a_linear_scale(page: dict[str, Any]) -> None:
    quality = page["quality"]
    quality["task"] = "regression"
    quality["scores"] = {"rmse": 12.5, "nll": -0.25, "coverage": 0.92}
    quality["baseline"] = {"rmse": 70.0, "nll": 1.5}
    quality["coverage"] = {"level": [0.1, 0.5, 0.9], "observed": [0.2, 0.4, 0.95]}
    quality["trace"]["loss"][0][2] = -0.5
    del quality["reliability"]
    html = render_posterior(page)
    assert "is off by 12.5 (root mean square)" in html
    assert "probability, 23 rows" in html
    assert "confidence 0.500, accuracy 0.400" in html
    assert "Logarithmic scale" not in html
    assert "\N{MINUS SIGN}0.5000" in html  # the legend's last value


def test_what_the_record_lacks_is_left_out(page: dict[str, Any]) -> None:
    page["quality"] = {"rows": 0}
    html = render_posterior(page)
    assert sections(html) == ["about"]
    assert "No labelled rows" in html
    page["quality"] = {"rows": 0, "diagnosis": {"summary": "Not diagnosed: x.", "verdicts": []}}
    assert "verdict open" in render_posterior(page)
    page["quality"]["diagnosis"]["summary"] = "4 chains."
    assert "verdict yes" in render_posterior(page)


def test_scores_that_are_not_finite_are_said(page: dict[str, Any]) -> None:
    page["quality"]["scores"]["nll"] = None
    html = render_posterior(page)
    assert "not finite" in html
    assert len(texts(html, "dd")) == len(texts(render_posterior(page), "dd"))


def test_words_are_escaped_and_nothing_comes_from_outside(page: dict[str, Any]) -> None:
    page["title"] = page["quality"]["data"] = page["byline"] = page["command"] = EVIL
    page["quality"]["diagnosis"]["verdicts"] = [EVIL]
    page["quality"]["uncertainty"]["label"] = page["about"]["Data"]["source"] = EVIL
    html = render_posterior(page)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 7
    assert "default-src 'none'" in html
    assert "http://" not in html
    assert "https://" not in html


@pytest.mark.parametrize("damage", ["scores", "trace", "reliability", "uncertainty", "diagnosis"])
def test_a_damaged_record_is_one_clear_error(page: dict[str, Any], damage: str) -> None:
    page["quality"][damage] = {"nonsense": 1}
    with pytest.raises(ResultsError, match="damaged"):
        render_posterior(page)


def test_the_file_is_whole_or_as_it_was(page: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_posterior_report(page, path)
    before = path.read_text()
    page["quality"]["scores"] = 3
    with pytest.raises(ResultsError):
        write_posterior_report(page, path)
    assert path.read_text() == before
