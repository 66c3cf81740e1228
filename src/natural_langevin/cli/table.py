"""The paper's table in the terminal, beside the paper's numbers."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (("train", "nll"), ("train", "accuracy"), ("test", "nll"), ("test", "accuracy"))
DIGITS = {"nll": 4, "accuracy": 2}
#: Narrower terminals get the means alone, without spreads, calibration and cost.
WIDE = 128


def show(results: dict[str, Any], console: Console) -> None:
    """Mean ± standard deviation over seeds, and the paper's figures where it has them."""
    config = results["config"]
    wide = console.width >= WIDE
    table = Table(
        title=f"{config['dataset']}, preset {config['name']}, {len(config['seeds'])} seeds",
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("method", min_width=24)
    headings = ["train NLL", "acc. %", "test NLL", "acc. %", "paper NLL", "acc. %"]
    for name in headings + (["ECE", "cost / SGD"] if wide else []):
        table.add_column(name if wide else name.replace(" ", "\n"), justify="right", no_wrap=wide)
    previous = None
    for row in results["rows"]:
        section = (row["group"], row["estimate"] if row["group"] == "paper" else "")
        if previous not in (None, section):
            table.add_section()
        previous = section
        table.add_row(*_cells(row, wide=wide))
    console.print(table)
    _notes(results, console)


def _cells(row: dict[str, Any], *, wide: bool) -> list[str]:
    cells = [row["label"]]
    for split, metric in COLUMNS:
        value, digits = row[split][metric], DIGITS[metric]
        spread = f" ± {value['std']:.{digits}f}" if wide and split == "test" else ""
        cells.append(f"{value['mean']:.{digits}f}{spread}")
    test = row["paper"]["test"] if row["paper"] else None
    cells += [f"{test['nll']:.4f}", f"{test['accuracy']:.2f}"] if test else ["", ""]
    if wide:
        cells += [f"{row['test']['ece']['mean']:.4f}", f"{row['cost']:.2f}"]
    return cells


def _notes(results: dict[str, Any], console: Console) -> None:
    notes: dict[str, list[str]] = {}
    for row in results["rows"]:
        if row["note"]:
            notes.setdefault(row["note"], []).append(row["label"])
    for note, labels in notes.items():
        console.print(f"{'; '.join(labels)}: {note}", style="dim")
    for deviation in results["deviations"]:
        console.print(f"differs from the paper: {deviation}", style="dim")
