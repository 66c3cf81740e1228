"""The page says what the results say: the same numbers, escaped words, nothing from outside."""

from __future__ import annotations

import ast
import base64
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import natural_langevin.cli.pages
from html_reader import Reader
from natural_langevin.cli.pages import render, write_report

SOURCE = Path(natural_langevin.cli.pages.__file__).parent
COLUMNS = ("train.nll", "train.accuracy", "test.nll", "test.accuracy", "test.brier", "test.ece")


def value(row: dict[str, Any], column: str) -> Any:
    for key in column.split("."):
        row = row[key]
    return row["mean"]


def test_the_table_holds_the_numbers_of_the_results(results: dict[str, Any]) -> None:
    shown = Reader(render(results)).numbers()
    for row in results["rows"]:
        for column in COLUMNS:
            raw, text = shown[row["method"], row["estimate"], column]
            assert raw == value(row, column)
            assert text == f"{raw:.{2 if 'accuracy' in column else 4}f}"
        seconds, cost = (shown[row["method"], row["estimate"], c][0] for c in ("seconds", "cost"))
        assert seconds == (row["seconds"] and row["seconds"]["mean"])
        assert cost == row["cost"]


def test_the_paper_stands_beside_its_rows(results: dict[str, Any]) -> None:
    reader = Reader(render(results))
    found = 0
    for _, a, text in reader.elements:
        if not a.get("data-column", "").startswith("paper."):
            continue
        _, part, score = a["data-column"].split(".")
        row = next(
            r
            for r in results["rows"]
            if (r["method"], r["estimate"]) == (a["data-method"], a["data-estimate"])
        )
        assert json.loads(a["data-value"]) == row["paper"][part][score]
        difference = value(row, f"{part}.{score}") - row["paper"][part][score]
        assert json.loads(a["data-difference"]) == difference
        digits = 2 if score == "accuracy" else 4
        number = re.match(r"[+\N{MINUS SIGN}]?[\d.]+", text[0])
        assert number is not None
        assert float(number[0].replace("\N{MINUS SIGN}", "-")) == round(difference, digits)
        found += 1
    assert found == 40


def test_the_paper_comes_first_and_notes_are_shown(results: dict[str, Any]) -> None:
    results["rows"].reverse()
    page = render(results)
    assert page.index("Methods of the paper") < page.index(">Ensemble, QDOP<")
    assert page.index(">Ensemble, QDOP<") < page.index("Beyond the paper</span>")
    assert page.index("Beyond the paper</span>") < page.index(">Twelve pooled chains, QDOP<")
    assert "Twelve chains from different starting points, all draws averaged." in page
    assert all(text in page for text in results["deviations"])


def test_spread_is_shown_only_where_there_is_one(results: dict[str, Any]) -> None:
    assert "±\N{NO-BREAK SPACE}0.0" in render(results)
    for row in results["rows"]:
        for scores in (row["train"], row["test"]):
            for spread in scores.values():
                spread.update(std=0.0, values=spread["values"][:1])
    results["config"]["seeds"] = [0]
    page = render(results)
    assert "±\N{NO-BREAK SPACE}" not in page
    assert "With a single seed there is no spread" in page
    assert "agrees, one seed" in page


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_what_is_not_a_number_is_shown_as_such(results: dict[str, Any], bad: float | None) -> None:
    row = results["rows"][5]
    for part in ("train", "test"):
        for spread in row[part].values():
            spread.update(mean=bad, std=None, values=[bad])
    results["curves"][0]["loss"][5:] = [bad] * 596
    results["curves"][1]["loss"] = [bad] * 601
    results["selection"][1]["accuracy"] = [[bad] * 3] * 4
    results["selection"][1]["nll"] = [[bad] * 3] * 4
    results["ess"][0]["ess"] = bad
    results["uncertain"][0]["total"] = bad
    page = render(results)
    raw, text = Reader(page).numbers()["qdop", "ensemble", "test.nll"]
    assert raw is None if bad is None else (math.isnan(raw) or raw == bad)
    assert text == ("—" if bad is None else "NaN" if math.isnan(bad) else "∞")
    assert "No finite test NLL: Ensemble, QDOP." in page
    assert page.count('class="diverged"') >= 12
    drawn = re.findall(r' (?:d|x|y|x1|y1|cx|cy|width|height)="([^"]*)"', page)
    assert not any("nan" in d or "inf" in d for d in drawn)


def test_hostile_text_is_only_text(results: dict[str, Any]) -> None:
    evil = (
        "\"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}</style>\x1b[2J\u202e"
    )

    def poison(thing: Any) -> Any:
        if isinstance(thing, dict):
            return {k: poison(v) for k, v in thing.items()} | {evil: evil}
        if isinstance(thing, list):
            return [poison(v) for v in thing]
        return evil if isinstance(thing, str) else thing

    page = render(poison(results))
    reader = Reader(page)
    tags = [tag for tag, _, _ in reader.elements]
    assert "script" not in tags
    assert tags.count("img") == len(results["uncertain"])
    assert tags.count("style") == 1
    assert not any(name.startswith("on") for _, a, _ in reader.elements for name in a)
    assert "{{ 7 * 7 }}" in page
    assert "&lt;script&gt;" in page
    assert not set("\x1b\u202e") & set(page)


def test_nothing_comes_from_outside(results: dict[str, Any]) -> None:
    page = render(results)
    for tag, attributes, _ in Reader(page).elements:
        assert tag not in {"script", "iframe", "object", "embed"}
        for name in ("src", "href", "srcset", "action"):
            target = attributes.get(name, "#")
            assert target.startswith(("#", "data:")), (tag, target)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_every_label_and_anchor_has_its_target(results: dict[str, Any]) -> None:
    elements = Reader(render(results)).elements
    ids = [a["id"] for _, a, _ in elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, a, _ in elements:
        if a.get("href", "").startswith("#"):
            assert a["href"][1:] in ids
        if "aria-labelledby" in a:
            assert a["aria-labelledby"] in ids
    for tag, a, _ in elements:
        if tag == "img":
            assert a["alt"]
        if tag == "svg":
            assert a.get("aria-label") or a.get("aria-hidden") == "true"
        if tag == "th":
            assert a["scope"] in {"col", "row", "colgroup", "rowgroup"}


def test_the_digits_are_drawn_from_their_pixels(results: dict[str, Any]) -> None:
    sources = [a["src"] for tag, a, _ in Reader(render(results)).elements if tag == "img"]
    for source, item in zip(sources, results["uncertain"], strict=True):
        image = Image.open(
            io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,")))
        )
        assert (image.mode, image.size) == ("L", (28, 28))
        assert list(image.tobytes()) == item["pixels"]


def test_an_effective_size_above_the_draws_is_said_and_not_drawn(results: dict[str, Any]) -> None:
    results["ess"] = [{"method": "qdop", "label": "QDOP", "draws": 100, "ess": 130.0}]
    page = render(results)
    assert "130.0\N{NO-BREAK SPACE}%" in page
    assert "width: 100.0%" in page


@pytest.mark.parametrize(
    ("config", "command"),
    [
        ({"name": "paper", "dataset": "mnist"}, "reproduce --preset paper --data mnist"),
        ({"name": "quick", "dataset": "digits"}, "reproduce --preset quick --data digits"),
        ({"name": "a; b", "dataset": "x"}, "reproduce --preset &#39;a; b&#39; --data x"),
    ],
)
def test_how_to_run_it_again(results: dict[str, Any], config: Any, command: str) -> None:
    results["config"] = config
    assert f"<code>natural-langevin {command}</code>" in render(results)


def test_the_page_depends_on_the_results_alone(
    results: dict[str, Any], drawings: dict[str, Any]
) -> None:
    drawings.clear()
    first = render(results)
    assert len(drawings) == 7  # as many figures as there are, none of them kept from before
    drawings.clear()
    assert first == render(json.loads(json.dumps(results)))


def test_writing_is_all_or_nothing(tmp_path: Path, results: dict[str, Any]) -> None:
    path = tmp_path / "report.html"
    write_report(results, path)
    first = path.read_bytes()
    assert first.decode("utf-8") == render(results)
    with pytest.raises(ValueError, match="format"):
        write_report({**results, "format": 2}, path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_report_touches_no_model() -> None:
    allowed = {f"natural_langevin.{name}" for name in ("cli.pages", "_internal")}
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in {"torch", "numpy"}, file.name
                if name.startswith("natural_langevin"):
                    assert any(name == a or name.startswith(a + ".") for a in allowed), file.name
