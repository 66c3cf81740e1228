"""Notebooks run from top to bottom, and the outputs they are published with are theirs."""

from pathlib import Path

import nbformat
import pytest
from notebooks import NOTEBOOKS, ROOT


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # torch, drawn
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in one namespace, here: a kernel would only import everything once more."""
    import matplotlib.pyplot as plt  # not while tests are collected, by every worker

    monkeypatch.chdir(tmp_path)
    figures = []
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: (figures.append(plt.gcf()), plt.close("all")))
    namespace: dict[str, object] = {"__name__": "__main__"}
    cells = nbformat.read(path, as_version=4).cells
    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{name(path)}, cell {number}", "exec"), namespace)
    assert len(figures) == sum("plt.show()" in cell.source for cell in cells) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_published_outputs_are_complete_and_say_nothing_of_the_machine(path: Path) -> None:
    """Every cell that shows something was run; python tests/docs/notebooks.py does it again."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum("image/png" in o.get("data", {}) for cell in code for o in cell.outputs) >= 3
    assert "site-packages" not in path.read_text()
