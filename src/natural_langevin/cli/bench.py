"""``natural-langevin bench``: what a step costs here, against SGD and other people's SGLD."""

from __future__ import annotations

from pathlib import Path

import typer

from natural_langevin.cli.errors import one_line_errors
from natural_langevin.experiments.speed import BenchError, Settings
from natural_langevin.experiments.speed.command import measure_and_show


def bench(
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    chains: list[int] = typer.Option(
        [], help="Number of chains (repeatable) [default: by network and device]."
    ),
    out: Path = typer.Option(Path("bench.json"), help="File for the results."),
    plot: Path | None = typer.Option(None, help="File for the plot [default: beside the results]."),
    quick: bool = typer.Option(
        False, "--quick", help="Run for less than a minute: one chain, no compilation."
    ),
    repeats: int = typer.Option(0, help="Number of interleaved repeats [default: 10, quick: 3]."),
    sections: list[str] = typer.Option(
        [], help="steps, memory, growth, latency or samples (repeatable) [default: all]."
    ),
    networks: list[str] = typer.Option(
        [],
        "--networks",
        "--network",
        help="mlp, 2-32-2, 13-50-1, 8-50-50-1, cnn, transformer; lstm, resnet18 and gpt where they "
        "are named; repeatable.",
    ),
    only: list[str] = typer.Option(
        [], help="Run only contenders whose name contains this (repeatable)."
    ),
    compile: bool = typer.Option(True, help="Allow torch.compile."),
    precision: str = typer.Option("", help="highest, or high (TF32; the default on CUDA)."),
    resume: bool = typer.Option(
        False, "--resume", help="Keep the results that the file already has."
    ),
    seed: int = typer.Option(0, help="Seed of data, networks and noise."),
    threads: int = typer.Option(0, help="Number of CPU threads [default: all cores]."),
) -> None:
    """Time a step of every sampler here beside SGD, Adam, IVON, posteriors and blackjax.

    Everything is measured in one process, interleaved and repeated; results and picture are left
    in files. Peers that are not installed are listed as such.

    On a GPU: --device cuda --sections steps.

    Example (under a minute):

        natural-langevin bench --quick --out bench.json
    """
    settings = Settings(
        device=device, chains=tuple(chains), repeats=repeats, quick=quick,
        sections=tuple(sections), networks=tuple(networks), only=tuple(only), compile=compile,
        resume=resume, precision=precision, seed=seed, threads=threads,
    )  # fmt: skip
    with one_line_errors(BenchError):
        measure_and_show(settings, out=out, picture=plot or out.with_suffix(".png"))
