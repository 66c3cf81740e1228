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
        [], help="Chain counts, repeatable [default: by network and device]."
    ),
    out: Path = typer.Option(Path("bench.json"), help="The results, with every repeat."),
    plot: Path | None = typer.Option(None, help="The picture [default: beside the results]."),
    quick: bool = typer.Option(
        False, "--quick", help="Under a minute: one chain, nothing newly compiled."
    ),
    repeats: int = typer.Option(0, help="Interleaved repeats [default: 10, quick: 3]."),
    sections: list[str] = typer.Option(
        [], help="steps, memory, growth, latency, samples; repeatable [default: all]."
    ),
    networks: list[str] = typer.Option(
        [],
        "--networks",
        "--network",
        help="mlp, 2-32-2, 13-50-1, 8-50-50-1, cnn, transformer; lstm, resnet18 and gpt where they "
        "are named; repeatable.",
    ),
    only: list[str] = typer.Option([], help="Contenders whose name holds this; repeatable."),
    compile: bool = typer.Option(True, help="Whether torch.compile may be used at all."),
    precision: str = typer.Option("", help="highest, or high (TF32; the default on CUDA)."),
    resume: bool = typer.Option(False, "--resume", help="Keep what the file holds already."),
    seed: int = typer.Option(0, help="Of data, networks and noise."),
    threads: int = typer.Option(0, help="CPU threads [default: all cores]."),
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
