"""What is seen of a run while it is under way: in a terminal, in a notebook, in neither."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import chrome
import small_run
from html_reader import Reader
from natural_langevin._internal import progress
from natural_langevin._internal.progress import Detail
from natural_langevin.posterior.plan import Plan
from terminal import said_to_a_terminal

RUN = {"steps": 1200, "progress": "sampling <b>", "sampler": {"step_size": 1e-3}}


class Recorded:
    """A display that keeps what it is shown."""

    every = 0.0

    def __init__(self) -> None:
        self.seen: list[tuple[int, Detail, float | None]] = []

    def show(self, done: int, detail: Detail, left: float | None) -> None:
        self.seen.append((done, detail, left))

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def test_every_chain_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Recorded()
    monkeypatch.setattr(progress, "_display", lambda *_: shown)
    posterior = small_run.sample(**RUN)
    assert [done for done, _, _ in shown.seen] == posterior.trace[:, 0].tolist()
    done, last, left = shown.seen[-1]
    assert (done, left) == (1200, 0.0)
    assert f"{posterior.draws} kept" in last.line
    assert len(last.rows) == 2
    for row, losses in zip(last.rows, posterior.trace[:, 1:].T, strict=True):
        assert row[1] == f"{losses[-1]:.4f}"
        assert len(row[2]) == 24 == len(losses)
        assert row[2][int(losses.argmax())] == "█"
        assert row[2][int(losses.argmin())] == "▁"
    assert re.search(r"sampling · of the loss: effective sample size \d+, R-hat \d", last.notes[0])
    assert re.search(r"steps/s, [\d,]+ MiB", last.notes[0])
    assert "burn-in" not in last.notes[0]


class Handle:
    def __init__(self, pages: list[str]) -> None:
        self._pages = pages

    def update(self, page: str) -> None:
        self._pages.append(page)


def test_a_notebook_has_one_display_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython as a kernel has it; the real one is asked below."""
    pages: list[str] = []
    display = types.SimpleNamespace(HTML=str, display=lambda page, display_id: Handle(pages))
    kernel = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: kernel, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    small_run.sample(**RUN)
    assert "sampling &lt;b&gt;: step 1200/1200" in pages[-1]
    assert '<progress value="1200" max="1200">' in pages[-1]
    assert [tag for tag, _, _ in Reader(pages[-1]).elements].count("tr") == 3


NOTEBOOK = """
import small_run
small_run.sample(1200, progress="sampling")
"""


@pytest.mark.thorough
def test_a_real_notebook_in_a_real_browser(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    kernel = {"metadata": {"path": str(Path(__file__).parents[1])}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=kernel).execute()
    shown = [o for o in book.cells[0].outputs if o.output_type == "display_data"]
    assert len(shown) == 1
    page = shown[0].data["text/html"]
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{page}")
    with chrome.started(tmp_path / "profile") as browser:
        chrome.visit(browser, tmp_path / "page.html")
        text = browser.execute_script("return document.body.innerText")
        rows = browser.execute_script("return document.querySelectorAll('tr').length")
        assert browser.get_log("browser") == []
    assert "sampling: step 1200/1200" in text
    assert rows == 3


@pytest.mark.thorough
def test_a_terminal_has_a_dashboard_and_a_pipe_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time, small_run\n"
        "small_run.sample(1200, progress='sampling', callback=lambda look: time.sleep(0.1))\n"
    )
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths), "TERM": "xterm-256color", "COLUMNS": "120",
    }  # fmt: skip
    command: list[Any] = [sys.executable, script]
    said = said_to_a_terminal(command, environment)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    assert re.search(r"1 +\d\.\d{4} +[▁▂▃▄▅▆▇█]{5,}", text)
    assert "steps/s" in text
    piped = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "▁" not in piped.stderr
    assert "\x1b" not in piped.stderr + piped.stdout


def test_a_plans_table_names_the_biases_prior_and_a_bias_of_first_order() -> None:
    plan = Plan(
        "paper", prior="FanIn(gain=2.0)", metric="", dynamics="Overdamped(correct_heat=False)",
        batch_size=1, steps=10, prior_scale=2.0,
    )  # fmt: skip
    said = " ".join(str(plan).split())
    assert "prior N(0, 2 * 2/fan_in)" in said
    assert "bias prior N(0, 4)" in said
    assert "bias is of first order in the step size" in said
    other = dataclasses.replace(plan, dynamics="Underdamped(friction=0.1, integrator='baoab')")
    assert "first order" not in str(other)
