"""The typer application and what its subcommands share."""

from __future__ import annotations

import logging

import typer
from rich.logging import RichHandler

from natural_langevin import __version__
from natural_langevin.cli import (
    bench,
    evaluate,
    predict,
    report,
    reproduce,
    sbc,
    train,
)
from natural_langevin.cli.console import SafeConsole

app = typer.Typer(
    name="natural-langevin",
    help="Bayesian posteriors for neural networks at the price of SGD.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"natural-langevin {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Print log messages."),
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    handler = RichHandler(console=SafeConsole(stderr=True), show_time=False, show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    if verbose:
        logging.getLogger("natural_langevin").setLevel(logging.INFO)


# A command that needs arguments and gets nothing at all shows its help, which has an example.
app.command(name="train", no_args_is_help=True)(train.train)
app.command(name="predict", no_args_is_help=True)(predict.predict)
app.command(name="evaluate", no_args_is_help=True)(evaluate.evaluate)
app.command(name="reproduce")(reproduce.reproduce)
app.command(name="report", no_args_is_help=True)(report.report)
app.command(name="bench")(bench.bench)
app.command(name="sbc")(sbc.sbc)
