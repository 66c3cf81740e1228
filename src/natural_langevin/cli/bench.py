"""``natural-langevin bench``: the cost of a step on this machine, beside SGD's."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import typer
from rich.table import Table

from natural_langevin._internal.atomic import write_output
from natural_langevin.cli.console import echo, terminal
from natural_langevin.cli.device import choose_device
from natural_langevin.cli.errors import one_line_errors


def bench(
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    network: str = typer.Option(
        "784-400-400-10",
        help="Widths of a perceptron, or cnn, transformer, lstm, resnet18, gpt.",
    ),
    chains: list[int] = typer.Option(
        [], help="Number of chains (repeatable) [default: 1 and 4, quick: 1]."
    ),
    out: Path = typer.Option(Path("bench.json"), help="File for the results."),
    plot: Path | None = typer.Option(None, help="File for the plot [default: beside the results]."),
    quick: bool = typer.Option(False, "--quick", help="Run for less than a minute: one chain."),
    repeats: int = typer.Option(0, help="Number of interleaved repeats [default: 10, quick: 3]."),
    only: list[str] = typer.Option(
        [], help="Run only contenders whose name contains this (repeatable)."
    ),
    seed: int = typer.Option(0, help="Seed of data, networks and noise."),
    threads: int = typer.Option(0, help="Number of CPU threads [default: torch's]."),
) -> None:
    """Time a step of every metric beside SGD, Adam, IVON and posteriors, on this machine.

    Everything is measured in one process, interleaved and repeated; results and a picture are left
    in files. Peers that are not installed are left out, and said.

    Example (under a minute):

        natural-langevin bench --quick --out bench.json
    """
    from natural_langevin.cli.experiments.bench import BenchError, Options, picture, run, table

    with one_line_errors(BenchError):
        options = Options(
            device=choose_device(device), network=network,
            chains=tuple(chains) or ((1,) if quick else (1, 4)),
            repeats=repeats or (3 if quick else 10), only=tuple(only), seed=seed, threads=threads,
        )  # fmt: skip
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass  # what cannot be written is said before anything is measured
        results = run(options, say=lambda line: echo(line, err=True))
        write_output(out, json.dumps(results, indent=1).encode())
    shown = Table(title=f"{network}, {options.device}", title_justify="left", pad_edge=False)
    for index, heading in enumerate(("", "chains", "µs / chain-step", "from, to", "÷ SGD")):
        shown.add_column(heading, justify="right" if index else "left")
    for cells in table(results["rows"]):
        shown.add_row(*cells)
    terminal().print(shown)
    echo(str(out))
    echo(picture(results, plot or out.with_suffix(".png")))
