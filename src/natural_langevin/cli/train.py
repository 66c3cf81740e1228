"""``natural-langevin train``: a table becomes a posterior in a folder."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Literal

import typer

from natural_langevin import DivergenceError
from natural_langevin.cli import sure, table, tell
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import UsageError, one_line_errors
from natural_langevin.data.tables import read_training
from natural_langevin.distributed.rank_zero import is_rank_zero
from natural_langevin.tabular.fit import fit, open_folder, prepare
from natural_langevin.tabular.settings import AUTO

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


def train(
    data: str = typer.Argument(
        metavar="DATA",
        help="A CSV file with a header, an NPZ file of x and y, digits or mnist.",
        show_default=False,
    ),
    target: str | None = typer.Option(None, metavar="COLUMN", help="The column to predict (CSV)."),
    out: Path | None = typer.Option(
        None, metavar="FOLDER", help="Where the run is kept [default: runs/ and the data's name]."
    ),
    task: str | None = typer.Option(
        None, metavar="KIND", help="classification or regression [default: found]."
    ),
    drop: list[str] = typer.Option([], metavar="COLUMN", help="Leave it out; repeatable."),
    categorical: list[str] = typer.Option(
        [], metavar="COLUMN", help="Its numbers are names; repeatable."
    ),
    skip_missing: bool = typer.Option(
        False, "--skip-missing", help="Leave out rows in which a cell is missing."
    ),
    decimal_comma: bool = typer.Option(False, "--decimal-comma", help="1,5 is one and a half."),
    hidden: str | None = typer.Option(
        None, metavar="SIZES", help="Hidden layers, such as 50 or 100,100 [default: 50]."
    ),
    steps: int | None = typer.Option(
        None, metavar="N", help="Updates, at least 8 [default: 2000 or more, by rows]."
    ),
    chains: int | None = typer.Option(
        None, metavar="N", help="Chains run side by side [default: 4]."
    ),
    batch_size: int | None = typer.Option(
        None, metavar="N", help="Rows per update [default: 100]."
    ),
    step_size: str | None = typer.Option(
        None,
        metavar="NUMBER",
        help="Or auto: found by a short pilot run [default: 0.003, deep: 0.001].",
    ),
    prior_variance: float | None = typer.Option(
        None, metavar="NUMBER", help="Variance of every weight [default: 0.5]."
    ),
    hold_out: float = typer.Option(
        0.2, metavar="SHARE", help="Share of the rows held out to score the result."
    ),
    seed: int = typer.Option(0, metavar="N", help="Of the split and of the sampler."),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with the unfinished run in the folder."
    ),
) -> None:
    """Learn from a table, and say how sure it is.

    Says what it found in the data, samples the posterior of a network, and answers "how sure is
    it?" on rows held out, in words and in a picture in the folder. Ctrl-C saves; the same command
    with --resume goes on, to the same result.

    Examples (two lines make a table, one learns from it; digits come with scikit-learn):

        python -c "import random as r; print('area,price'); \\
        [print(f'{a},{3 * a + r.gauss(0, 9)}') for a in range(99)]" > flats.csv
        natural-langevin train flats.csv --target price --steps 400

        natural-langevin train digits --out runs/digits --steps 200
    """
    console = table.console()
    out = Path("runs") / Path(data).stem if out is None else out
    with one_line_errors():
        loaded = read_training(
            data,
            target=target,
            drop=frozenset(drop),
            skip_missing=skip_missing,
            decimal_comma=decimal_comma,
        )
        prepared = prepare(
            loaded,
            source=os.path.basename(data),
            task=task,
            categorical=frozenset(categorical),
            hold_out=hold_out,
            seed=seed,
            steps=steps,
            chains=chains,
            batch_size=batch_size,
            prior_variance=prior_variance,
            hidden=_sizes(hidden),
            step_size=_step_size(step_size),
        )
        chosen = choose_device(device)
        open_folder(out, prepared.run, resume=resume)
        tell.found(prepared, console)
        try:
            quality = fit(prepared, out, device=chosen)
        except DivergenceError as error:
            raise UsageError(
                f"{str(error).rstrip('.')}; or let a pilot run find one (--step-size auto), in "
                "another --out"
            ) from None
        except KeyboardInterrupt:
            command = shlex.join(["natural-langevin", *sys.argv[1:]])
            again = command if resume else f"{command} --resume"
            typer.echo(f"\nStopped; what was done is in {out}. To go on:\n  {again}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if not is_rank_zero():
            return
        tell.step_size(quality, console)
        sure.answer(quality, console)
        sure.picture(quality, out, tell.title(prepared.run), console)
    tell.scores(quality, console)
    tell.next_commands(out, console)


def _sizes(hidden: str | None) -> tuple[int, ...] | None:
    if hidden is None:
        return None
    try:
        return tuple(int(part) for part in hidden.split(",")) if hidden.strip() else ()
    except ValueError:
        raise UsageError(f"--hidden must be sizes such as 50 or 100,100, got {hidden!r}") from None


def _step_size(words: str | None) -> float | Literal["auto"] | None:
    if words is None:
        return None
    if words == AUTO:
        return AUTO
    try:
        return float(words)
    except ValueError:
        raise UsageError(
            f"--step-size must be auto or a number such as 0.003, got {words!r}"
        ) from None
