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
        [], help="Chain counts, repeatable [default: 1 4 on a CPU, 1 12 64 256 on a GPU]."
    ),
    out: Path = typer.Option(Path("bench.json"), help="The results, with every repeat."),
    plot: Path | None = typer.Option(None, help="The picture [default: beside the results]."),
    quick: bool = typer.Option(
        False, "--quick", help="Under a minute: one chain, nothing newly compiled."
    ),
    repeats: int = typer.Option(0, help="Interleaved repeats [default: 10, quick: 3]."),
    sections: list[str] = typer.Option(
        [], help="steps, memory, growth, latency; repeatable [default: all, quick: steps]."
    ),
    networks: list[str] = typer.Option([], help="mlp, cnn, transformer; repeatable."),
    only: list[str] = typer.Option([], help="Contenders whose name holds this; repeatable."),
    compile: bool = typer.Option(True, help="Whether torch.compile may be used at all."),
    precision: str = typer.Option("", help="highest, or high (TF32; the default on CUDA)."),
    seed: int = typer.Option(0, help="Of data, networks and noise."),
    threads: int = typer.Option(0, help="CPU threads [default: all cores]."),
) -> None:
    """Time a step of every sampler here beside SGD, posteriors and blackjax, and print ratios.

    Everything is measured in one process, interleaved and repeated; results and picture are left
    in files. Peers that are not installed are listed as such.

    On a GPU: --device cuda --sections steps.

    Example (under a minute):

        natural-langevin bench --quick --out bench.json
    """
    settings = Settings(
        device=device,
        chains=tuple(chains),
        repeats=repeats,
        quick=quick,
        sections=tuple(sections),
        networks=tuple(networks),
        only=tuple(only),
        compile=compile,
        precision=precision,
        seed=seed,
        threads=threads,
    )
    with one_line_errors(BenchError):
        measure_and_show(settings, out=out, picture=plot or out.with_suffix(".png"))
