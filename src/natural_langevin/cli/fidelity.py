"""``natural-langevin fidelity``: how far samplers are from Hamiltonian Monte Carlo on CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import typer

from natural_langevin.cli.console import echo
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import UsageError, check_positive, one_line_errors
from natural_langevin.cli.figures import publish, show
from natural_langevin.data import DataError
from natural_langevin.experiments.fidelity import shifted, table
from natural_langevin.experiments.fidelity.chain import Settings
from natural_langevin.experiments.fidelity.contenders import CONTENDERS
from natural_langevin.experiments.fidelity.problem import cifar, synthetic
from natural_langevin.experiments.fidelity.run import FidelityError, run
from natural_langevin.experiments.shift import table as shift_table


def fidelity(
    contenders: list[str] = typer.Argument(
        None,
        metavar="[SAMPLER]...",
        help="sgld, sghmc, rmsprop, qdop, ensemble, dropout [default: all].",
    ),
    data: str = typer.Option(
        "", metavar="FOLDER", help="Of CIFAR-10's binary files; or the word synthetic."
    ),
    out: Path = typer.Option(Path("fidelity.json"), metavar="FILE", help="Results; it goes on."),
    seconds: float = typer.Option(Settings.seconds, help="Time of every sampler."),
    pilot: float = typer.Option(
        Settings.pilot, min=0, help="Time of every step size that is tried."
    ),
    chains: int = typer.Option(
        Settings.chains, min=1, help="Of every sampler, each with its share."
    ),
    batch_size: int = typer.Option(Settings.batch_size, min=1, help="Images of a minibatch."),
    looks: int = typer.Option(Settings.looks, min=1, help="Times that predictions are made."),
    depth: int = typer.Option(Settings.depth, help="Of the network: 20 is HMC's."),
    width: int = typer.Option(Settings.width, min=1, help="Of the network: 16 is HMC's."),
    seed: int = typer.Option(
        Settings.seed, min=0, help="Of starting points, minibatches and noise."
    ),
    shift: int = typer.Option(
        Settings.shift, min=0, help="Test images to look at shifted as well."
    ),
    foreign: list[str] = typer.Option(
        [], metavar="NAME", help="With --shift: mnist or fashion-mnist; may be repeated."
    ),
    page: Path | None = typer.Option(None, metavar="FILE", help="A page whose table to replace."),
    shift_page: Path | None = typer.Option(
        None, metavar="FILE", help="A page whose table of shifts to replace; with --shift."
    ),
    shift_plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw a picture of shifts (SVG, PNG); with --shift."
    ),
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw a picture (SVG, PNG)."),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
) -> None:
    """ResNet-20 on CIFAR-10 at T = 1, held against HMC's published predictions at equal time.

    Agreement is the share of test images with HMC's most probable class; total variation the
    distance of the probabilities. A deep ensemble and MC dropout of equal cost stand beside. Step
    sizes are chosen on held-out training images.

    Example (a toy size, on a CPU):

        natural-langevin fidelity rmsprop --data synthetic --depth 8 --width 2 \\
        --seconds 1 --pilot 0 --looks 3 --batch-size 50 --out fidelity.json
    """
    with one_line_errors(FidelityError, DataError):
        check_positive("--seconds", seconds)
        if pilot:
            check_positive("--pilot", pilot)
        if depth < 8 or depth % 6 != 2:
            raise UsageError(f"--depth must be 6 n + 2 (8, 14, 20, ...), got {depth}")
        settings = Settings(
            seconds=seconds, pilot=pilot, chains=chains, batch_size=batch_size, looks=looks,
            depth=depth, width=width, seed=seed, shift=shift,
            device=choose_device(device) or "cpu",
        )  # fmt: skip
        results = run(
            synthetic() if data == "synthetic" else cifar(data or None, foreign=foreign),
            out,
            settings=settings,
            names=contenders or tuple(CONTENDERS),
            say=lambda line: echo(line, err=True),
        )
        publish(table, results, page, plot)
        publish(shifted, results, shift_page, shift_plot)
    show(table.COLUMNS, table.rows(results))
    if shift:
        found = shifted.as_results(results)
        show(shift_table.columns(found), shift_table.rows(found))
