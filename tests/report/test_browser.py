"""The page in a real Chromium, from file://, on a phone and a desk, in light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chrome
from chrome import SIZES, requests, visit
from natural_langevin.cli.pages import write_posterior_report, write_report

# Contrast of every visible text with what lies behind it, as WCAG defines it. A canvas turns any
# CSS colour into red, green and blue.
CONTRAST = """
const pen = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const rgba = c => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = c; pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data]; };
const light = c => c.slice(0, 3).map(v => v / 255)
  .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
const behind = e => { for (; e; e = e.parentElement) {
  const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; }
  return [255, 255, 255, 255]; };
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
while (texts.nextNode()) {
  const e = texts.currentNode.parentElement, words = texts.currentNode.data.trim();
  if (!words || e.closest('.sr, title, details:not([open]) > :not(summary)')) continue;
  const style = getComputedStyle(e);
  const ink = light(rgba(e.closest('svg') ? style.fill : style.color)), ground = light(behind(e));
  found.push([(Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05), words]);
}
return found;
"""
NUMBERS = """
return [...document.querySelectorAll('[data-column]')].map(
  e => [e.dataset.method, e.dataset.estimate, e.dataset.column, e.dataset.value, e.innerText]);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chrome.started(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_in_a_browser(
    browser: Any, tmp_path: Path, results: dict[str, Any], size: str, scheme: str
) -> None:
    page = tmp_path / "report.html"
    write_report(results, page)
    visit(browser, page, size, scheme)
    run = browser.execute_script

    assert browser.get_log("browser") == []
    assert requests(browser) == [page.as_uri()]
    assert run("return performance.getEntriesByType('resource').map(e => e.name)") == []

    width = SIZES[size][0]
    assert run("return innerWidth") == width
    assert run("return document.documentElement.scrollWidth") <= width
    hidden = run("const e = document.querySelector('.wide'); return e.scrollWidth - e.clientWidth")
    assert hidden > 0 if size == "phone" else hidden <= 0

    assert run("return matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    contrasts = run(CONTRAST)
    assert len(contrasts) > 400
    worst, words = min(contrasts)
    assert worst >= 4.5, words

    images = run("return [...document.images].map(i => [i.complete, i.naturalWidth])")
    assert images == [[True, 28]] * len(results["uncertain"])
    assert_numbers(run(NUMBERS), results)


def assert_numbers(shown: list[list[str]], results: dict[str, Any]) -> None:
    rows = {(row["method"], row["estimate"]): row for row in results["rows"]}
    assert len(rows) == len(results["rows"])
    seen = 0
    for method, estimate, column, raw, text in shown:
        expected: Any = rows[method, estimate]
        for key in column.split("."):
            expected = expected[key]
        if isinstance(expected, dict):
            expected = expected["mean"]
        assert json.loads(raw) == expected
        if column.startswith(("train", "test")):
            assert text == f"{expected:.{2 if column.endswith('accuracy') else 4}f}"
            seen += 1
    assert seen == 6 * len(rows)


def test_dark_is_dark_and_light_is_light(
    browser: Any, tmp_path: Path, results: dict[str, Any]
) -> None:
    page = tmp_path / "report.html"
    write_report(results, page)
    grounds = {}
    for scheme in ("light", "dark"):
        visit(browser, page, scheme=scheme)
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        grounds[scheme] = max(int(v) for v in colour.strip("rgb()").split(","))
    assert grounds["light"] > 240
    assert grounds["dark"] < 40


def test_hostile_text_does_nothing(browser: Any, tmp_path: Path, results: dict[str, Any]) -> None:
    evil = "<img src='https://example.invalid/x' onerror='document.title = 1'>" * 2
    results["rows"][0]["label"] = results["deviations"][0] = results["config"]["name"] = evil
    results["curves"][0]["label"] = results["machine"]["cpu"] = "W" * 300
    page = tmp_path / "report.html"
    write_report(results, page)
    visit(browser, page, "phone")
    assert browser.title == "Natural Langevin dynamics on MNIST"
    assert requests(browser) == [page.as_uri()]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390


def test_the_keyboard_reaches_what_scrolls(
    browser: Any, tmp_path: Path, results: dict[str, Any]
) -> None:
    page = tmp_path / "report.html"
    write_report(results, page)
    visit(browser, page, "phone")
    names = browser.execute_script(
        "return [...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1"
        " && getComputedStyle(e).overflowX === 'auto' && e.tabIndex < 0).map(e => e.className)"
    )
    assert names == []


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), ("desk", "light")])
def test_the_page_of_a_posterior(
    browser: Any, tmp_path: Path, page: dict[str, Any], size: str, scheme: str
) -> None:
    page["about"]["Data"]["source"] = page["quality"]["data"] = "W" * 300
    file = tmp_path / "report.html"
    write_posterior_report(page, file)
    visit(browser, file, size, scheme)
    assert browser.get_log("browser") == []
    assert requests(browser) == [file.as_uri()]
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= SIZES[size][0]
    worst, words = min(browser.execute_script(CONTRAST))
    assert worst >= 4.5, words
