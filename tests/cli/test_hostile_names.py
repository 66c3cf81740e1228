"""Classes, columns and cells that are terminal codes, markup, templates or several lines: they are
shown, and nothing of them is obeyed, by the terminal, the report, a browser or the picture."""

import os
import re
import sys

import numpy as np
import pytest

import chrome
from html_reader import Reader
from tables import SMALL, read_table, run, write_table
from terminal import said_to_a_terminal

#: test_uncertainty.py and tests/report/test_page.py have the page and the picture without a run.
pytestmark = pytest.mark.thorough

CLASSES = (
    "\x1b[31mred\x1b]0;title\x07\x1b[2J\x9b1m",
    '"><script>alert(1)</script><img src=x onerror=alert(1)>',
    "[red]no[/red] {{ 7 * 7 }} ${x} {% raw %} $\\undefined{ \u202eevil",
)
COLUMNS = (
    "<b>a</b>",
    "[bold]{{b}}[/bold]\x1b[1m",
    "two\nlines\x1b[A",
    "$\\frac{",
    "target\x1b[8m",
)
CELLS = ("\x1b[5mu", "<svg onload=alert(1)>", "\u202ew")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    rows = []
    for k in rng.integers(0, 3, 90):
        numbers = [f"{rng.normal(3 * k):.3f}" for _ in range(3)]
        rows.append([*numbers, CELLS[rng.integers(3)], CLASSES[k]])
    table = write_table(folder / "table.csv", COLUMNS, rows)
    found = run("train", table, "--target", COLUMNS[-1], "--out", folder / "run", *SMALL)
    assert found.exit_code == 0, found.output
    return folder / "run", table, found.output


def check_shown(output: str) -> None:
    for control in "\x1b\x07\x9b\r\x00\u202e":
        assert control not in output, ascii(output)


def test_the_terminal_obeys_none_of_them(trained):
    folder, table, said = trained
    check_shown(said)
    assert "\\x1b[31mred" in said
    assert "{{ 7 * 7 }}" in said  # no template, and no markup of the console
    check_shown(run("evaluate", folder, table).output)


def test_a_real_terminal_obeys_none_of_them(trained):
    """One that has colours, which rich writes by codes of its own."""
    folder, table, _ = trained
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    words = [sys.executable, "-m", "natural_langevin", "evaluate", folder, table]
    output = said_to_a_terminal(words, environment)
    codes = set(re.findall(r"\x1b(?:\[[0-9;?]*[A-Za-z]|.)", output))
    assert codes, "no colours: no terminal"
    obeyed = {c for c in codes if not c.endswith("m")}
    assert obeyed <= {"\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A"}, obeyed  # rich's progress
    for control in ("\x07", "\x9b", "\x00", "\u202e", "\x1b[31mred", "\x1b[5mu", "\x1b[2J"):
        assert control not in output, ascii(output)


def test_predictions_hold_them_as_they_are(trained, tmp_path):
    folder, table, _ = trained
    found = run("predict", folder, table, "--out", tmp_path / "out.csv")
    assert found.exit_code == 0, found.output
    check_shown(found.output)
    rows = read_table(tmp_path / "out.csv")
    assert len(rows) == 90
    assert set(CLASSES) >= {row[next(k for k in row if "predict" in k)] for row in rows}


def test_the_page_obeys_none_of_them(trained, tmp_path):
    folder, _, _ = trained
    found = run("report", folder, "--out", tmp_path / "page.html")
    assert found.exit_code == 0, found.output
    text = (tmp_path / "page.html").read_text()
    elements = Reader(text).elements
    tags = {tag for tag, _, _ in elements}
    assert not tags & {"script", "iframe", "object", "embed", "b"}
    assert not any(name.startswith("on") for _, given, _ in elements for name in given)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert "default-src 'none'" in text


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chrome.started(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("size", chrome.SIZES)
def test_a_browser_obeys_none_of_them(trained, tmp_path, browser, size):
    folder, _, _ = trained
    page = tmp_path / "page.html"
    assert run("report", folder, "--out", page).exit_code == 0
    chrome.visit(browser, page, size)
    assert chrome.requests(browser) == [page.as_uri()]
    assert browser.get_log("browser") == []
    made = "return document.querySelectorAll('script, b, svg[onload], img[src=x], iframe').length"
    assert browser.execute_script(made) == 0
    seen = browser.execute_script("return document.body.textContent")
    assert "<b>a</b>" in seen
    assert "[bold]{{b}}[/bold]" in seen
    assert "49" not in browser.title
    assert (
        browser.execute_script("return document.documentElement.scrollWidth")
        <= (chrome.SIZES[size][0])
    )
