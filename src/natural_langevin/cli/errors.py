"""Errors a user can act on: one line with the remedy on stderr, exit code 2."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import typer

from natural_langevin import DivergenceError
from natural_langevin._internal.messages import bounded
from natural_langevin.cli.console import echo
from natural_langevin.cli.experiments.runner import RunError
from natural_langevin.cli.experiments.table1.stages import StageError
from natural_langevin.cli.pages import ResultsError
from natural_langevin.data import CorruptDataError, DataError, DataUnavailableError
from natural_langevin.distributed import GroupError
from natural_langevin.posterior.storage import StorageError
from natural_langevin.run.checkpoint import CheckpointError
from natural_langevin.tabular.run import RunFolderError


class UsageError(ValueError):
    """An invalid option."""


EXPECTED = (
    UsageError, RunError, StageError, ResultsError, RunFolderError, DataError, CorruptDataError,
    DataUnavailableError, CheckpointError, StorageError, DivergenceError, GroupError,
)  # fmt: skip


def check_positive(option: str, value: float) -> None:
    """Refuses 0, negative numbers, infinity and what is no number."""
    if not 0 < value < math.inf:
        raise UsageError(f"{option} must be positive and finite, got {value:g}")


@contextlib.contextmanager
def one_line_errors(
    *more: type[Exception],
    remedy: str = "Finished work is kept: free space or change the folder, and use --resume",
) -> Iterator[None]:
    """``more``: a subcommand's own errors. ``remedy`` is what helps against a full disk or a folder
    that may not be written."""
    expected: tuple[type[Exception], ...] = (*EXPECTED, *more)
    try:
        yield
    except expected as error:
        _stop(str(error))
    except ImportError as error:  # an optional package: the message names the extra to install
        _stop(str(error))
    except BrokenPipeError:  # the reader of a pipe has seen enough
        with contextlib.suppress(OSError):  # or Python complains once more when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        _stop(f"{_reason(error)}. {remedy if full else remedy.replace('free space or ', '')}")


def _reason(error: OSError) -> str:
    """What the system says, of the folder when it is about a file that is only being staged."""
    if error.strerror is None or not error.filename:
        return str(error)
    path = Path(os.fsdecode(error.filename))
    if isinstance(error, IsADirectoryError):
        return f"{path} is a folder: give the name of a file"
    # Not ``Path.is_file``, which raises where a name is too long to be asked about.
    above = [p for p in (path, *path.parents) if os.path.isfile(p)]
    if isinstance(error, NotADirectoryError | FileExistsError) and above:
        return f"{above[-1]} is a file, where a folder should be"
    if isinstance(error, FileNotFoundError) and path.suffix == ".part":
        return f"there is no folder {path.parent}: make it first"
    return f"{error.strerror}: {path.parent if path.suffix == '.part' else path}"


def _stop(message: str) -> NoReturn:
    echo(bounded(f"natural-langevin: {' '.join(message.split())}"), err=True)
    raise typer.Exit(2) from None
