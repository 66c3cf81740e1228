"""``natural-langevin reproduce``: the paper's table, on this machine."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import typer

from natural_langevin._internal.checked_json import write_json
from natural_langevin.cli import table as shown
from natural_langevin.cli.console import terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.distributed.rank_zero import is_rank_zero
from natural_langevin.experiments.beyond import run as beyond
from natural_langevin.experiments.beyond.problems import problem
from natural_langevin.experiments.beyond.protocol import TOY, Protocol
from natural_langevin.experiments.runner import Request, RunError, run, spent
from natural_langevin.experiments.table1.results import assemble
from natural_langevin.report import write_report


def reproduce(
    table: str = typer.Option("paper", help="paper, or beyond: the best at temperature 1."),
    data: str = typer.Option(
        "auto", help="auto, mnist, fashion-mnist or digits; beyond: or a table's NPZ."
    ),
    preset: str = typer.Option("quick", help="quick (minutes on a CPU) or paper (a GPU)."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:0, ..."),
    seeds: int | None = typer.Option(None, help="Chains per row [default: the preset's]."),
    out: Path | None = typer.Option(None, help="Folder of the run [default: one under runs/]."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with a run that is already in the folder."
    ),
    data_dir: str | None = typer.Option(None, help="Folder with the data set's files."),
    jobs: int = typer.Option(1, min=1, help="Stages run side by side (useful on a GPU)."),
    precision: str = typer.Option("highest", help="Matrix products: highest, or high (TF32)."),
) -> None:
    """Run the paper's experiment and print its table beside the paper's numbers.

    Leaves results.json and report.html in the folder. Killed at any moment, it goes on with
    --resume and ends with the same numbers.

    The paper's own size wants a GPU: --preset paper --device cuda. --table beyond has the rows of
    what goes past the paper at temperature 1, with Dropout and SGD ensembles beside them.

    Example (some minutes):

        natural-langevin reproduce --data digits --out runs/table
    """
    console = terminal()
    with one_line_errors(beyond.BeyondError):
        if table not in ("paper", "beyond"):
            raise RunError(f"--table must be paper or beyond, got {table!r}")
        if precision not in ("highest", "high"):
            raise RunError(f"--precision must be highest or high, got {precision!r}")
        chosen = choose_device(device)
        if table == "beyond":
            _beyond(data, preset, chosen, out, data_dir, precision, seeds)
            return
        request = Request(
            dataset=data,
            preset=preset,
            out=out,
            device=chosen,
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


def _beyond(
    name: str, preset: str, device: str, out: Path | None, data_dir: str | None, precision: str,
    seeds: int | None,
) -> None:  # fmt: skip
    """The table beyond the paper; a part that was finished before is not run again."""
    if preset not in ("quick", "paper"):
        raise RunError(f"unknown preset {preset!r}: use quick or paper")
    protocol = TOY if preset == "quick" else Protocol()
    if seeds is not None:
        protocol = replace(protocol, seeds=seeds)
    dataset, protocol = problem(name, protocol, data_dir=data_dir)
    folder = out or Path("runs") / f"{dataset.name}-{preset}-beyond"
    results = beyond.run(
        dataset, folder / "beyond.json", protocol=protocol, device=device, precision=precision,
        say=lambda line: typer.echo(line, err=True),
    )  # fmt: skip
    typer.echo(beyond.table(results))
    typer.echo(folder / "beyond.json")
