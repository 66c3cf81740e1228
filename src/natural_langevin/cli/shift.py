"""``natural-langevin shift``: turned, blurred, noisy, pale and foreign images."""

from __future__ import annotations

from pathlib import Path

import typer

from natural_langevin import data as datasets
from natural_langevin.cli.console import echo
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import UsageError, one_line_errors
from natural_langevin.cli.figures import publish, show
from natural_langevin.experiments.shift import table
from natural_langevin.experiments.shift.methods import METHODS, Settings
from natural_langevin.experiments.shift.run import ShiftError, run

DATA = ("mnist", "fashion-mnist", "digits")


def shift(
    methods: list[str] = typer.Argument(
        None, metavar="[METHOD]...", help="posterior, ensemble, dropout, single [default: all]."
    ),
    data: str = typer.Option("mnist", metavar="NAME", help="mnist, fashion-mnist or digits."),
    data_dir: str = typer.Option("", metavar="FOLDER", help="Where the data sets lie."),
    foreign: list[str] = typer.Option(
        ["shuffled"], help="Other data: fashion-mnist, cifar10, shuffled; repeatable."
    ),
    out: Path = typer.Option(Path("shift.json"), metavar="FILE", help="Results; it goes on."),
    steps: int = typer.Option(Settings.steps, min=20, help="Updates of every chain."),
    chains: int = typer.Option(
        Settings.chains, min=1, help="Chains, and networks of the ensemble."
    ),
    hidden: list[int] = typer.Option([400, 400], min=1, help="Units of hidden layers, repeatable."),
    images: int = typer.Option(Settings.images, min=1, help="Test images that are looked at."),
    seed: int = typer.Option(Settings.seed, min=0, help="Of everything drawn."),
    page: Path | None = typer.Option(None, metavar="FILE", help="A page whose table to replace."),
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw a picture (SVG, PNG)."),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
) -> None:
    """What a posterior knows of shifted images, beside a deep ensemble and MC dropout.

    All take the same number of gradients. Rotation, blur, noise and contrast come in five
    strengths; AUROC says how well epistemic uncertainty tells foreign images.

    Example (under a minute):

        natural-langevin shift --data digits --steps 100 --hidden 16
    """
    settings = Settings(steps=steps, chains=chains, hidden=tuple(hidden), images=images, seed=seed)
    with one_line_errors(ShiftError):
        if data not in DATA:
            raise UsageError(f"there are no data {data!r}: choose from {', '.join(DATA)}")
        results = run(
            datasets.load(data, data_dir=data_dir or None),
            out,
            settings=settings,
            foreign=foreign,
            names=methods or tuple(METHODS),
            data_dir=data_dir or None,
            device=choose_device(device),
            say=lambda line: echo(line, err=True),
        )
        publish(table, results, page, plot)
    show(table.columns(results), table.rows(results))
