"""``natural-langevin train``: a table becomes a posterior in a folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer

from natural_langevin import DivergenceError
from natural_langevin.cli import run_summary, uncertainty
from natural_langevin.cli.console import echo, terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import UsageError, one_line_errors
from natural_langevin.data.tables import read_training
from natural_langevin.distributed.join import is_rank_zero
from natural_langevin.tabular.fit import Prepared, fit, open_default_folder, open_folder, prepare
from natural_langevin.tabular.recipe import settings_from
from natural_langevin.tabular.settings import AUTO, SettingError, Settings

INTERRUPTED = 130  # what a shell expects of a program stopped by Ctrl-C


def train(
    data: str = typer.Argument(
        metavar="DATA",
        help="CSV, Excel or Parquet file with a header, NPZ file of x and y, digits or mnist.",
        show_default=False,
    ),
    target: str | None = typer.Option(None, metavar="COLUMN", help="Column to predict."),
    out: Path | None = typer.Option(
        None, metavar="FOLDER", help="Folder of the run [default: runs/ and the data's name]."
    ),
    task: str | None = typer.Option(
        None,
        metavar="KIND",
        help="classification, regression, count or ordinal [default: detect].",
    ),
    drop: list[str] = typer.Option([], metavar="COLUMN", help="Ignore this column (repeatable)."),
    categorical: list[str] = typer.Option(
        [], metavar="COLUMN", help="Treat this numeric column as categorical (repeatable)."
    ),
    skip_missing: bool = typer.Option(
        False, "--skip-missing", help="Drop rows with missing cells."
    ),
    decimal_comma: bool = typer.Option(
        False, "--decimal-comma", help="Use ',' as the decimal mark [default: detect]."
    ),
    hidden: str | None = typer.Option(
        None, metavar="SIZES", help="Hidden layers, such as 50 or 100,100 [default: by rows]."
    ),
    steps: int | None = typer.Option(
        None, metavar="N", help=f"Number of steps, at least 8 [default: {Settings.steps}]."
    ),
    seconds: float | None = typer.Option(
        None,
        metavar="N",
        help="Time limit for training, in seconds [default: as long as it needs].",
    ),
    chains: int | None = typer.Option(
        None, metavar="N", help=f"Number of chains [default: {Settings.chains}]."
    ),
    batch_size: int | None = typer.Option(
        None, metavar="N", help=f"Rows of a minibatch [default: {Settings.batch_size}]."
    ),
    step_size: str | None = typer.Option(
        None, metavar="NUMBER", help="Step size, or auto: chosen on held-out rows [default: auto]."
    ),
    prior_variance: float | None = typer.Option(
        None,
        metavar="NUMBER",
        help="Prior variance of the weights [default: chosen on held-out rows].",
    ),
    folds: int | None = typer.Option(
        None, metavar="N", help="Folds of the cross-validation; 0: none [default: 4]."
    ),
    hold_out: float = typer.Option(
        0.2,
        metavar="SHARE",
        help="Share of the rows held out for testing, at most 20,000 rows.",
    ),
    seed: int = typer.Option(0, metavar="N", help="Seed of the split and of the sampler."),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
    resume: bool = typer.Option(
        False, "--resume", help="Continue the unfinished run in the folder."
    ),
    refit: bool = typer.Option(
        Settings.refit, help="Fit again to all rows, held-out ones included, after scoring."
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace the run in the folder that --out names."
    ),
) -> None:
    """Learn from a table, and say how sure it is.

    Lists what it found in the data and what it does about it, compares priors and kinds of noise
    on folds, samples the posteriors that predict best, and answers "how sure is it?" on rows held
    out, in words and in a picture in the folder. Ctrl-C saves; the same command with --resume goes
    on, to the same result.

    Examples (two lines make a table, one learns from it; digits come with scikit-learn):

        python -c "import random as r; print('area,price'); \\
        [print(f'{a},{3 * a + r.gauss(0, 9)}') for a in range(99)]" > flats.csv
        natural-langevin train flats.csv --target price --steps 400

        natural-langevin train digits --out runs/digits --steps 200
    """
    console = terminal()
    with one_line_errors():
        if overwrite and (resume or out is None):
            raise UsageError("--overwrite needs --out, and cannot be combined with --resume")
        loaded = read_training(data, target=target, drop=frozenset(drop))
        prepared = prepare(
            loaded,
            source=os.path.basename(data),
            task=task,
            categorical=frozenset(categorical),
            skip_missing=skip_missing,
            decimal_comma=decimal_comma,
            hold_out=hold_out,
            settings=_settings(
                steps=steps,
                seconds=seconds,
                chains=chains,
                batch_size=batch_size,
                prior_variance=prior_variance,
                folds=folds,
                hidden=_sizes(hidden),
                step_size=_step_size(step_size),
                seed=seed,
                refit=refit,
            ),
        )
        chosen = choose_device(device, columns=len(prepared.train.names))
        if out is None:
            out = open_default_folder(Path("runs") / Path(data).stem, prepared.run, resume=resume)
        else:
            open_folder(out, prepared.run, resume=resume, overwrite=overwrite)
        run_summary.data(prepared, console)
        quality = _fitted(prepared, out, chosen, resume=resume)
        if not is_rank_zero():
            return
        run_summary.choice(quality, console)
        run_summary.importance(quality, console)
        uncertainty.show(quality, console)
        uncertainty.picture(quality, out, run_summary.title(prepared.run), console)
    run_summary.scores(quality, console)
    run_summary.next_commands(out, console)


def _fitted(prepared: Prepared, out: Path, device: str, *, resume: bool) -> dict[str, Any]:
    """Runs the fit; an interruption or error is reported with the command to resume, or the option
    to change."""
    try:
        with _without_advice():
            return fit(prepared, out, device=device)
    except DivergenceError as error:
        raise UsageError(
            f"{str(error).rstrip('.')}; or let held-out rows choose one (--step-size auto), in "
            "another --out"
        ) from None
    except KeyboardInterrupt:
        command = shlex.join(["natural-langevin", *sys.argv[1:]])
        again = command if resume else f"{command} --resume"
        echo(f"\nStopped; the work done so far is in {out}. To continue:\n  {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """The sampler's own advice after Ctrl-C is for Python; ours names the command."""
    logger = logging.getLogger("natural_langevin")

    def wanted(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("interrupted at step")

    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def _settings(**options: Any) -> Settings:
    if options["steps"] is not None and options["steps"] < 8:
        raise UsageError(f"--steps must be at least 8, got {options['steps']}")
    try:
        return settings_from(options)
    except SettingError as error:
        raise UsageError(f"--{error.name.replace('_', '-')} {error.problem}") from None


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
            f"--step-size must be auto or a number such as 0.1, got {words!r}"
        ) from None
