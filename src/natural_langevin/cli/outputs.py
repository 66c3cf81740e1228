"""Outputs of a command: never over its inputs, and no control codes to a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from natural_langevin._internal.atomic import output
from natural_langevin._internal.messages import visible
from natural_langevin.cli.errors import UsageError
from natural_langevin.data import frame_files

#: What a run's folder is read from.
READ = (".json", ".safetensors")


def refuse_inputs(out: Path, option: str, *inputs: str | Path | None) -> None:
    """UsageError where ``out`` is one of these files, under any name, or one that a run needs."""
    there = _identity(out)
    for given in inputs:
        if there is None or given is None:
            continue
        path = Path(given)
        within = path.rglob("*") if path.is_dir() else (path,)
        read = (p for p in within if p == path or p.suffix in READ)
        if any(_identity(p) == there for p in read):
            raise UsageError(
                f"{option} {out} is an input ({given}) and would be overwritten: give another name"
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a plain file; None of anything else, which loses nothing."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if path.is_file() else None


@contextlib.contextmanager
def text_output(out: str) -> Iterator[TextIO]:
    """UTF-8 whatever the terminal speaks: it is a file that somebody reads. "-" is stdout. What is
    written under a name of Excel or Parquet becomes such a file, in memory."""
    if out == "-":
        sys.stdout.flush()
        if sys.stdout.isatty():
            yield cast(TextIO, _Visible(sys.stdout))
            sys.stdout.flush()
            return
        text = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
        try:
            yield text
            text.flush()
        finally:
            text.detach()
        return
    if not out or out.endswith(os.sep):
        raise UsageError(f"--out must be the name of a file, got {out!r}")
    kind = frame_files.kind_of(out)
    if kind is not None:
        frame_files.check_installed(kind)
        with output(Path(out)) as handle:
            rows = io.StringIO(newline="")
            yield rows
            frame_files.write(rows.getvalue(), kind, handle)
        return
    with output(Path(out)) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8", newline="")
        yield text
        text.flush()
        text.detach()  # the file is closed by its owner, after it is on the disk


class _Visible(io.TextIOBase):
    """A terminal that gets control characters written out."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        """How much of ``text`` was taken: all."""
        self._terminal.write(visible(text))
        return len(text)
