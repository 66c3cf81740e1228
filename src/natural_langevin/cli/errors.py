"""Errors a user can act on: one line with the remedy on stderr, exit code 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from natural_langevin.data import CorruptDataError, DataUnavailableError
from natural_langevin.experiments.runner import RunError
from natural_langevin.experiments.stages import StageError
from natural_langevin.report import ResultsError

EXPECTED = (RunError, StageError, ResultsError, CorruptDataError, DataUnavailableError, OSError)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    try:
        yield
    except EXPECTED as error:
        text = " ".join(str(error).split())
        typer.echo(f"natural-langevin: {text}", err=True)
        raise typer.Exit(2) from None
