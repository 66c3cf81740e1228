"""``natural-langevin evaluate``: the scores of a run on other labelled rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import typer
from rich.markup import escape
from torch import Tensor

from natural_langevin._internal.checked_json import write_json
from natural_langevin.cli import run_summary, uncertainty
from natural_langevin.cli.console import terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.outputs import refuse_inputs
from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Source, short
from natural_langevin.data.tables import open_source
from natural_langevin.tabular.fit import labelled
from natural_langevin.tabular.quality import quality
from natural_langevin.tabular.recipe import CHUNK
from natural_langevin.tabular.run import Run, load_learned, load_run


def evaluate(
    folder: Path = typer.Argument(metavar="RUN", help="Folder of a finished training run."),
    data: str = typer.Argument(
        metavar="DATA",
        help="CSV, Excel, Parquet or NPZ file with the target, - (standard input), or a dataset.",
    ),
    json: Path | None = typer.Option(
        None, metavar="FILE", help="Also write scores, curves and diagnosis to this JSON file."
    ),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
) -> None:
    """Score a run on labelled rows that it has not seen.

    Accuracy, negative log-likelihood, Brier score and calibration error, or root-mean-square error,
    negative log-likelihood and coverage; and whether the chains agree on these rows.

    Example:

        natural-langevin train digits --out runs/digits --steps 200 --resume
        natural-langevin evaluate runs/digits digits --json scores.json
    """
    console = terminal()
    with one_line_errors(
        remedy="Nothing was written: free space or change --json, and run it again"
    ):
        run = load_run(folder)
        if json is not None:
            refuse_inputs(json, "--json", folder, data)
        learned = load_learned(folder, choose_device(device))
        with open_source(data, target=run.target.name) as source:
            label, read, strange = source.label, list[int](), list[str]()
            batches = _batches(run, source, read, strange)
            found = quality(learned, run.target, batches, label=label, features=run.features)
        if not found["rows"]:
            first = f" that was learned (first: {strange[0]})" if strange else ""
            raise DataError(f"{label} has no rows with a target{first}: add at least one")
        if json is not None:
            write_json(json, found)
    skipped = sum(read) - found["rows"]
    if skipped:
        name = repr(run.target.name)
        why = f"{name} is missing there, or they are totals of other rows, or cannot be predicted"
        if strange:
            why = (
                f"in {len(strange):,} {name} is not a class of the training rows (first: "
                f"{strange[0]})"
            )
            if skipped > len(strange):
                why += "; in others it is missing, or they cannot be predicted"
        said = f"{skipped:,} of {sum(read):,} rows are not scored: {why}"
        console.print(escape(said), highlight=False)
    uncertainty.show(found, console)
    run_summary.scores(found, console)


def _batches(
    run: Run, source: Source, read: list[int], strange: list[str]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets; ``read`` gets the number of rows of every chunk, ``strange`` every row
    whose class was not learned."""
    run.features.check_columns(source.label, source.names)
    if run.target.name not in source.names:
        raise DataError(
            f"{source.label} has no column {run.target.name!r}: evaluating needs the target"
        )
    for chunk in source.chunks(CHUNK):
        read.append(len(chunk))
        for row in np.flatnonzero(run.target.known(chunk) & ~run.target.learned(chunk)):
            cell = short(str(chunk.frame[run.target.name].iloc[row]))
            strange.append(f"{cell}, {chunk.where(int(row))}")
        yield from labelled(run, chunk)
