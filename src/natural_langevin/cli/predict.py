"""``natural-langevin predict``: a table in, a table out, with uncertainty."""

from __future__ import annotations

from pathlib import Path

import typer

from natural_langevin.cli.console import echo
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors
from natural_langevin.cli.outputs import refuse_inputs, text_output
from natural_langevin.data.tables import open_source
from natural_langevin.tabular.predictions import ends, write_predictions
from natural_langevin.tabular.run import load_learned, load_run


def predict(
    folder: Path = typer.Argument(metavar="RUN", help="Folder of a finished training run."),
    data: str = typer.Argument(
        metavar="DATA",
        help="CSV, Excel, Parquet or NPZ file, - for CSV on standard input, or a dataset.",
    ),
    out: str = typer.Option(
        "-", metavar="FILE", help="CSV, .xlsx or .parquet file to write; - is standard output."
    ),
    keep: list[str] = typer.Option(
        [], metavar="COLUMN", help="Copy this column to the output (repeatable)."
    ),
    interval: float = typer.Option(
        0.9, metavar="SHARE", help="Probability of the prediction interval (regression)."
    ),
    keep_formulas: bool = typer.Option(
        False,
        "--keep-formulas",
        help="Do not put an apostrophe in front of text that begins with = + - @.",
    ),
    device: str = typer.Option("auto", metavar="NAME", help="auto, cpu, cuda, cuda:0, ..."),
) -> None:
    """Predict every row of a table, in the order of its rows.

    Columns are found by name, in any order. Classes: the most probable class, a probability for
    each, and total, aleatoric (noise) and epistemic (lack of data) uncertainty in nats. Numbers:
    mean, standard deviation, interval, and the deviations of noise and of lack of data. A last
    column, note, says which cells of a row were missing, new or unreadable. The file appears whole
    or not at all; CSV may be larger than memory. A spreadsheet takes text that begins with = + - @
    for a formula: it gets an apostrophe in front (numbers stay as they are).

    Examples:

        natural-langevin train digits --out runs/digits --steps 200 --resume
        natural-langevin predict runs/digits digits --out predictions.csv
        natural-langevin predict runs/digits digits --keep y | head -3
    """
    with one_line_errors(
        remedy="Nothing was written: free space or change --out, and run it again"
    ):
        run = load_run(folder)
        ends(interval)  # refused also where it would not be used
        refuse_inputs(Path(out), "--out", folder, data)
        learned = load_learned(folder, choose_device(device))
        with open_source(data) as source, text_output(out) as text:
            count, noted, unpredicted = write_predictions(
                learned, run, source, text, keep=keep, interval=interval,
                formulas=keep_formulas,
            )  # fmt: skip
    said = f"{count:,} rows{'' if out == '-' else f' in {out}'}"
    if noted:
        said += f"; {noted:,} have a note on missing, new or unreadable values"
    if unpredicted:
        said += f", {unpredicted:,} of them could not be predicted"
    echo(said, err=True)
