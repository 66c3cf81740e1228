"""Errors a user can act on: one line with the remedy on stderr, exit code 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer

from natural_langevin.data import CorruptDataError, DataUnavailableError
from natural_langevin.experiments.runner import RunError
from natural_langevin.experiments.stages import StageError
from natural_langevin.report import ResultsError

EXPECTED = (RunError, StageError, ResultsError, CorruptDataError, DataUnavailableError)


@contextlib.contextmanager
def one_line_errors(*more: type[Exception]) -> Iterator[None]:
    """``more``: a subcommand's own errors."""
    expected: tuple[type[Exception], ...] = (*EXPECTED, *more)
    try:
        yield
    except expected as error:
        _stop(str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        _stop(f"{error}. Finished work is kept: make room or change the folder, and use --resume")


def _stop(message: str) -> NoReturn:
    typer.echo(f"natural-langevin: {' '.join(message.split())}", err=True)
    raise typer.Exit(2) from None
