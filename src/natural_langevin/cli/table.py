"""The paper's table in the terminal, beside the paper's numbers."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (("train", "nll"), ("train", "accuracy"), ("test", "nll"), ("test", "accuracy"))
HEADINGS = {"nll": "NLL", "accuracy": "acc. %"}


def show(results: dict[str, Any], console: Console) -> None:
    """Mean ± standard deviation over seeds; the paper's figure, where it has one, in grey."""
    config = results["config"]
    title = (
        f"{config['dataset']}, preset {config['preset'] if 'preset' in config else config['name']}"
    )
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("method")
    for split, metric in COLUMNS:
        table.add_column(f"{split} {HEADINGS[metric]}", justify="right", no_wrap=True)
    for name in ("paper NLL", "paper acc.", "ECE", "x SGD"):
        table.add_column(name, justify="right", no_wrap=True)
    previous = None
    for row in results["rows"]:
        section = (row["group"], row["estimate"] if row["group"] == "paper" else "")
        if previous not in (None, section):
            table.add_section()
        previous = section
        table.add_row(*_cells(row))
    console.print(table)
    for row in results["rows"]:
        if row["note"]:
            console.print(f"  {row['label']}: {row['note']}", style="dim")
    for deviation in results["deviations"]:
        console.print(f"  differs from the paper: {deviation}", style="dim")


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["label"]]
    for split, metric in COLUMNS:
        value, digits = row[split][metric], 4 if metric == "nll" else 2
        spread = f" ± {value['std']:.{digits}f}" if len(value["values"]) > 1 else ""
        cells.append(f"{value['mean']:.{digits}f}{spread if split == 'test' else ''}")
    paper = row["paper"]
    cells += (
        [f"{paper['test']['nll']:.4f}", f"{paper['test']['accuracy']:.2f}"] if paper else ["", ""]
    )
    cells += [f"{row['test']['ece']['mean']:.4f}", f"{row['cost']:.2f}"]
    return cells
