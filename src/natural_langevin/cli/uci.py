"""``natural-langevin uci``: the field's regression benchmark, with one untuned setting for all."""

from __future__ import annotations

from pathlib import Path

import typer

from natural_langevin.cli.console import echo
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.figures import publish, show
from natural_langevin.experiments.parts import PartsError
from natural_langevin.experiments.uci import table
from natural_langevin.experiments.uci.data import TABLES
from natural_langevin.experiments.uci.run import UciError, merge, run
from natural_langevin.tabular.recipe import settings_from


def uci(
    tables: list[str] = typer.Argument(
        None, metavar="[TABLE]...", help="boston, concrete, ..., yacht [default: all nine]."
    ),
    out: Path = typer.Option(Path("uci.json"), metavar="FILE", help="The results; it goes on."),
    splits: int | None = typer.Option(
        None, min=1, metavar="N", help="The first so many of every table [default: all, 20 or 5]."
    ),
    split: list[int] = typer.Option(
        [], metavar="K", help="This one alone, counted from 0; repeatable."
    ),
    merged: Path | None = typer.Option(
        None, "--merge", metavar="FOLDER", help="Run nothing: join its files into --out."
    ),
    steps: int | None = typer.Option(None, min=8, metavar="N", help="Updates of every run."),
    page: Path | None = typer.Option(None, metavar="FILE", help="A page whose table to replace."),
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw a picture (SVG, PNG)."),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
) -> None:
    """Nine regression tables on their published splits, beside published log-likelihoods.

    Nothing is tuned: every fit is the recipe of train with its defaults. Interrupted, the same
    command goes on with the next split. Several processes share the work where each has some
    splits and a file of its own, which --merge joins.

    Example:

        natural-langevin uci yacht --split 0 --steps 60 --out parts/yacht-0.json
        natural-langevin uci --merge parts --out uci.json
    """
    with one_line_errors(UciError, PartsError):
        results = (
            merge(merged, out)
            if merged is not None
            else run(
                tables or list(TABLES),
                out,
                splits=splits,
                only=split,
                settings=settings_from({"steps": steps}),
                device=choose_device(device),
                progress=True,
                say=lambda line: echo(line, err=True),
            )
        )
        publish(table, results, page, plot)
    show(list(TABLES), table.rows(results), "test log-likelihood")
