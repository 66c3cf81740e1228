"""``natural-langevin reproduce``: the paper's table, on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from natural_langevin._internal.checked_json import write_json
from natural_langevin.cli import table as shown
from natural_langevin.cli.console import terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.experiments.runner import Request, RunError, run, spent
from natural_langevin.cli.experiments.table1.results import assemble
from natural_langevin.cli.pages import write_report
from natural_langevin.distributed.rank_zero import is_rank_zero


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
        if not is_rank_zero():
            return
        seconds = spent(folder, time.monotonic() - started)
        results = assemble(folder, seconds=seconds)
        write_json(folder / "results.json", results)
        write_report(results, folder / "report.html")
    shown.show(results, console)
    console.print(f"[bold]{folder / 'results.json'}[/] and [bold]{folder / 'report.html'}[/]")
