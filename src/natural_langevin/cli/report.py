"""``natural-langevin report``: results.json -> report.html."""

from __future__ import annotations

from pathlib import Path

import typer

from natural_langevin.cli.errors import one_line_errors
from natural_langevin.report import load_results, write_report


def report(
    results: Path = typer.Argument(help="A results.json written by reproduce."),
    out: Path | None = typer.Option(None, help="The page [default: report.html beside it]."),
) -> None:
    """Draw the page of a finished run again.

    Example:

        natural-langevin report runs/digits/results.json --out page.html
    """
    with one_line_errors():
        page = out or results.with_name("report.html")
        write_report(load_results(results), page)
    typer.echo(str(page))
