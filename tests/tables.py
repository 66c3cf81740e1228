"""For the tests of the commands: small tables, and the commands themselves in this process."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from natural_langevin.cli.app import app
from natural_langevin.cli.experiments.table1.protocol import PRESETS

#: The preset of reproduce that takes seconds.
TOY = replace(
    PRESETS["quick"],
    hidden=(8,),
    steps=20,
    select_steps=6,
    extra_select_steps=6,
    burn_in=4,
    thin=4,
    select_thin=2,
    batch_size=20,
    train_scored=100,
    mc_dropout=1,
    pooled=2,
    step_sizes=1,
    prior_variances=(0.1,),
)
#: One posterior and no comparison, on a small network.
SMALL = ("--hidden", "8", "--chains", "2", "--folds", "0", "--no-refit")


def run(*words, **options):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(w) for w in words], **options)


def one_line(result) -> str:
    """The error, which must be one line that speaks for itself, with exit code 2."""
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    assert lines[0].startswith("natural-langevin: ")
    return lines[0]


def write_table(path: Path, header, rows) -> Path:
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return path


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def flowers(path: Path, rows: int = 120, seed: int = 0) -> Path:
    """Three kinds told apart by two numbers and a colour; one column says nothing."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, size=rows)
    lines = [
        (
            f"{3 * k + rng.normal(scale=0.7):.4f}",
            f"{100 * rng.normal():.3f}",
            ("red", "blue")[int(k == 2) ^ int(rng.random() < 0.1)],
            "7",
            ("iris", "lily, white", "rose")[k],
        )
        for k in kinds
    ]
    return write_table(path, ("size", "weight", "colour", "garden", "kind"), lines)


def prices(path: Path, rows: int = 120, seed: int = 0) -> Path:
    """A line with noise of standard deviation 10, in units far from 1."""
    rng = np.random.default_rng(seed)
    area = rng.uniform(50, 150, size=rows)
    price = 1000 + 2 * area + rng.normal(scale=10, size=rows)
    lines = [(f"{a:.3f}", f"{p:.3f}") for a, p in zip(area, price, strict=True)]
    return write_table(path, ("area", "price"), lines)
