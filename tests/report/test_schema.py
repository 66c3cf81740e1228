"""What is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from natural_langevin.cli.pages import ResultsError, load_results, render

OPTIONAL = ("deviations", "selection", "curves", "reliability", "ensemble_size", "ess", "uncertain")


def save(folder: Path, content: Any) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_complete_file_comes_back_unchanged(tmp_path: Path, results: dict[str, Any]) -> None:
    assert load_results(save(tmp_path, results)) == results


@pytest.mark.parametrize("found", [2, 0, None, "1", True])
def test_another_format_is_refused_with_the_remedy(
    tmp_path: Path, results: dict[str, Any], found: object
) -> None:
    results["format"] = found
    with pytest.raises(ResultsError, match=r"reads format 1: write it again with") as caught:
        load_results(save(tmp_path, results))
    assert json.dumps(found) in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("rows", "test", []),
        ("rows", "cost", "dear"),
        ("curves", "step", [1, 2]),
        ("selection", "prior_variances", [1, 2, 3, 4]),
        ("selection", "accuracy", [["98"]]),
        ("reliability", "confidence", [0.5]),
        ("uncertain", "width", 27),
        ("uncertain", "height", 10**12),
        ("uncertain", "pixels", [256] * 784),
        ("uncertain", "probabilities", ["0.1"]),
    ],
)
def test_what_cannot_be_shown_is_one_error(
    results: dict[str, Any], section: str, key: str, value: object
) -> None:
    results[section][0][key] = value
    with pytest.raises(ResultsError, match=r"cannot be shown \(.*\): write it again"):
        render(results)


@pytest.mark.parametrize(
    "path",
    [("machine",), ("rows", 2, "label"), ("rows", 3, "test", "nll", "mean"), ("curves", 0, "loss")],
)
def test_what_is_missing_is_named(results: dict[str, Any], path: tuple[Any, ...]) -> None:
    *above, key = path
    part: Any = results
    for step in above:
        part = part[step]
    del part[key]
    with pytest.raises(ResultsError, match=f"cannot be shown .*'{key}'"):
        render(results)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b""])
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=r"results\.json is not JSON"):
        load_results(path)


@pytest.mark.parametrize("content", [[], "text", None, 3])
def test_what_is_not_an_object_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(ResultsError, match="not an object"):
        load_results(save(tmp_path, content))


@pytest.mark.parametrize("section", OPTIONAL)
def test_an_optional_section_may_be_absent(results: dict[str, Any], section: str) -> None:
    del results[section]
    page = render(results)
    assert f'id="{section}"' not in page
    assert f'href="#{section}"' not in page
    others = [other for other in OPTIONAL if other != section]
    assert all(f'id="{other}"' in page and f'href="#{other}"' in page for other in others)


@pytest.mark.parametrize("nothing", [None, []])
def test_an_optional_section_may_be_empty(results: dict[str, Any], nothing: object) -> None:
    page = render({**results, **dict.fromkeys(OPTIONAL, nothing)})
    assert 'id="rows"' in page
    assert not any(f'{section}"' in page for section in OPTIONAL)


def test_the_least_that_is_accepted(results: dict[str, Any]) -> None:
    spread = {"mean": 0.1}
    row = {
        "method": "new",
        "estimate": "point",
        "label": "New",
        "test": {"nll": spread, "accuracy": spread},
    }
    required = ("format", "version", "created", "machine", "versions", "config")
    page = render({**{key: results[key] for key in required}, "rows": [row]})
    assert "New" in page
    assert "The paper has no numbers for this setting." in page
    assert 'id="claims"' not in page


def test_no_rows_at_all(results: dict[str, Any]) -> None:
    results["rows"] = []
    page = render(results)
    assert 'id="rows"' not in page
    assert 'id="curves"' in page
