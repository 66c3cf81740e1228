"""``natural-langevin reproduce``: the paper's table, on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from natural_langevin._internal.checked_json import write_json
from natural_langevin.cli.console import terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.experiments.runner import Request, RunError, run, spent
from natural_langevin.cli.experiments.table1.results import assemble
from natural_langevin.cli.pages import write_report

COLUMNS = (("train", "nll"), ("train", "accuracy"), ("test", "nll"), ("test", "accuracy"))
DIGITS = {"nll": 4, "accuracy": 2}
#: Narrower terminals get the means alone, without spreads, calibration and cost.
WIDE = 128


def show_table(results: dict[str, Any], console: Console) -> None:
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


def reproduce(
    data: str = typer.Option("auto", help="Dataset: auto, mnist, fashion-mnist or digits."),
    preset: str = typer.Option("quick", help="quick (minutes on a CPU) or paper (a GPU)."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:0, ..."),
    seeds: int | None = typer.Option(None, help="Number of seeds per row [default: the preset's]."),
    out: Path | None = typer.Option(None, help="Folder of the run [default: below runs/]."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in the folder."),
    data_dir: str | None = typer.Option(None, help="Folder with the dataset's files."),
    jobs: int = typer.Option(
        1, min=1, help="Number of stages run at the same time (useful on a GPU)."
    ),
    precision: str = typer.Option(
        "highest", help="Precision of matrix products: highest, or high (TF32)."
    ),
) -> None:
    """Run the paper's experiment and print its table beside the paper's numbers.

    Leaves results.json and report.html in the folder. Killed at any moment, it goes on with
    --resume and ends with the same numbers.

    The paper's own size wants a GPU: --preset paper --device cuda.

    Example (some minutes):

        natural-langevin reproduce --data digits --out runs/table
    """
    console = terminal()
    with one_line_errors():
        if precision not in ("highest", "high"):
            raise RunError(f"--precision must be highest or high, got {precision!r}")
        request = Request(
            dataset=data,
            preset=preset,
            out=out,
            device=choose_device(device),
            seeds=seeds,
            resume=resume,
            data_dir=data_dir,
            jobs=jobs,
            precision=precision,
        )
        started = time.monotonic()
        folder = run(request)
        seconds = spent(folder, time.monotonic() - started)
        results = assemble(folder, seconds=seconds)
        write_json(folder / "results.json", results)
        write_report(results, folder / "report.html")
    show_table(results, console)
    console.print(f"[bold]{folder / 'results.json'}[/] and [bold]{folder / 'report.html'}[/]")
