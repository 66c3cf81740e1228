"""Executes the notebooks of docs/.

    python tests/docs/notebooks.py     executes them and keeps their outputs, in place

Kept are results and pictures. What libraries write to the error stream speaks of the machine and
not of the subject, and is dropped, like the times of execution.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook after a run in ``folder``; CellExecutionError where a cell fails."""
    book = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    return NotebookClient(book, timeout=300, kernel_name="python3", resources=place).execute()


def tidy(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return book


if __name__ == "__main__":
    for notebook in NOTEBOOKS:
        nbformat.write(tidy(executed(notebook, Path.cwd())), notebook)
        print(notebook.relative_to(ROOT))
