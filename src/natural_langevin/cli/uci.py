"""``natural-langevin uci``: the field's regression benchmark, with one untuned setting for all."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from natural_langevin.cli.console import echo, terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.experiments.uci import table as figures
from natural_langevin.experiments.uci.data import TABLES
from natural_langevin.experiments.uci.run import UciError, run
from natural_langevin.tabular.recipe import settings_from


def uci(
    tables: list[str] = typer.Argument(
        None, metavar="[TABLE]...", help="boston, concrete, ..., yacht [default: all nine]."
    ),
    out: Path = typer.Option(Path("uci.json"), metavar="FILE", help="The results; it goes on."),
    splits: int | None = typer.Option(
        None, metavar="N", help="The first so many of every table [default: all, 20 or 5]."
    ),
    steps: int | None = typer.Option(None, metavar="N", help="Updates of every run."),
    page: Path | None = typer.Option(None, metavar="FILE", help="A page whose table to replace."),
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw a picture (SVG, PNG)."),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
) -> None:
    """Nine regression tables on their published splits, beside published log-likelihoods.

    Nothing is tuned: every fit is the recipe of train with its defaults. Interrupted, the same
    command goes on with the next split.

    Example:

        natural-langevin uci yacht --splits 1 --steps 60 --out yacht.json
    """
    console = terminal()
    with one_line_errors(UciError):
        results = run(
            tables or list(TABLES),
            out,
            splits=splits,
            settings=settings_from({"steps": steps}),
            device=choose_device(device),
            progress=True,
            say=lambda line: echo(line, err=True),
        )
        if page is not None:
            text = page.read_text(encoding="utf-8")
            page.write_text(figures.with_table(text, results), encoding="utf-8")
        if plot is not None:
            figures.plot(results, plot)
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("test log-likelihood")
    for name in TABLES:
        shown.add_column(name, justify="right", no_wrap=True)
    for label, values in figures.PUBLISHED.items():
        shown.add_row(label, *(f"{value:.2f}" for value in values))
    for label, score, digits in ((figures.OURS, "log_likelihood", 2), ("  RMSE", "rmse", 3)):
        own = figures.cells(results, score, digits)
        shown.add_row(escape(label), *(own.get(name, "") for name in TABLES))
    console.print(shown)
