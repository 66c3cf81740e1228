"""``natural-langevin train``: a table becomes a posterior in a folder."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from natural_langevin.cli import table, tell
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import UsageError, one_line_errors
from natural_langevin.data.tables import read_training
from natural_langevin.distributed.once import is_first
from natural_langevin.tabular.fit import fit, open_folder, prepare

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


def train(
    data: str = typer.Argument(
        help="A CSV file with a header, an NPZ file of x and y, digits or mnist."
    ),
    target: str | None = typer.Option(None, help="The column to predict (CSV)."),
    out: Path = typer.Option(
        ..., help="Folder of the run; new, or with --resume an unfinished one."
    ),
    task: str | None = typer.Option(None, help="classification or regression [default: found]."),
    drop: list[str] = typer.Option([], help="A column to leave out; may be repeated."),
    categorical: list[str] = typer.Option(
        [], help="A column of numbers that are names; repeatable."
    ),
    hidden: str | None = typer.Option(
        None, help="Hidden layers, such as 50 or 100,100 [default: 50]."
    ),
    steps: int | None = typer.Option(None, min=8, help="Updates [default: 2000 or more, by rows]."),
    chains: int | None = typer.Option(None, min=1, help="Chains run side by side [default: 4]."),
    batch_size: int | None = typer.Option(None, min=1, help="Rows per update [default: 100]."),
    step_size: float | None = typer.Option(None, help="Step size [default: 0.003, deep: 0.001]."),
    prior_variance: float | None = typer.Option(
        None, help="Variance of every weight [default: 0.5]."
    ),
    hold_out: float = typer.Option(0.2, help="Fraction of rows held out to score the result."),
    seed: int = typer.Option(0, min=0, max=2**63 - 1, help="Of the split and of the sampler."),
    device: str = typer.Option("auto", help="auto, cpu, cuda, cuda:0, ..."),
    resume: bool = typer.Option(False, help="Go on with the unfinished run in the folder."),
) -> None:
    """Learn from a table, with uncertainty.

    Says what it found in the data, samples the posterior of a network, scores it on rows held out
    and says whether the chains can be trusted. Ctrl-C saves; the same command with --resume goes
    on, to the same result.

    Examples:

        natural-langevin train digits --out runs/digits-net --steps 200

        natural-langevin train people.csv --target income --out runs/income
    """
    console = table.console()
    with one_line_errors():
        loaded = read_training(data, target=target, drop=frozenset(drop))
        prepared = prepare(
            loaded,
            source=os.path.basename(data),
            task=task,
            categorical=frozenset(categorical),
            hold_out=hold_out,
            seed=seed,
            **_settings(hidden, steps, chains, batch_size, step_size, prior_variance),
        )
        chosen = choose_device(device)
        open_folder(out, prepared.run, resume=resume)
        tell.found(prepared, console)
        try:
            quality = fit(prepared, out, device=chosen)
        except KeyboardInterrupt:
            command = shlex.join(["natural-langevin", *sys.argv[1:]])
            again = command if resume else f"{command} --resume"
            typer.echo(f"\nStopped; what was done is in {out}. To go on:\n  {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if not is_first():
        return
    tell.scores(quality, console)
    tell.next_commands(out, console)


def _settings(hidden: str | None, *numbers: Any) -> dict[str, Any]:
    names = ("steps", "chains", "batch_size", "step_size", "prior_variance")
    sizes = None
    if hidden is not None:
        try:
            sizes = tuple(int(part) for part in hidden.split(",")) if hidden.strip() else ()
        except ValueError:
            raise UsageError(
                f"--hidden must be sizes such as 50 or 100,100, got {hidden!r}"
            ) from None
    return {"hidden": sizes} | dict(zip(names, numbers, strict=True))
