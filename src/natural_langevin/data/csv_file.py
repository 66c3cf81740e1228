"""CSV with a header: read line by line, in bounded memory, and strictly.

Comma, semicolon or tab between cells (found from the header), double quotes, UTF-8 with or without
a byte-order mark, or Windows-1252. A file that is anything else is refused with the line on which
it shows.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from .columns import ColumnBuilder
from .encoding import Decoder
from .errors import DataError
from .table import MISSING, Table, TextChunk, parse_numbers, short

#: The most bytes of one row. Without it, a file without line ends would fill the memory.
LONGEST_ROW = 1 << 24
MOST_COLUMNS = 100_000
#: The most cells that are text at the same time.
CELLS_AT_ONCE = 500_000
#: A number with a decimal comma, and nothing that could be a separated thousand besides it.
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")


class CsvFile:
    """A CSV file, or an open binary stream such as standard input; read once, from the beginning.

    With ``decimal_comma`` a cell such as 1,5 is one and a half. ``skipped`` counts the rows that
    ``table`` has left out.

    >>> import io
    >>> file = CsvFile(io.BytesIO(b"age,town\\n31,Rome\\n"), label="people.csv")
    >>> file.names, [chunk.words("town") for chunk in file.chunks(100)]
    (('age', 'town'), [['Rome']])
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        label: str | None = None,
        decimal_comma: bool = False,
    ) -> None:
        self._close = contextlib.ExitStack()
        if isinstance(source, (str, os.PathLike)):
            self.label = label or os.fspath(source)
            try:
                self._bytes: BinaryIO = Path(source).open("rb")  # noqa: SIM115
                self._close.callback(self._bytes.close)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                reason = getattr(error, "strerror", None) or str(error)
                raise DataError(f"cannot read {self.label}: {reason}: check the name") from None
        else:
            self.label, self._bytes = label or "the input", source
        self._line = self._row_size = self.skipped = 0
        self._decimal_comma, self._decoder = decimal_comma, Decoder(self.label)
        try:
            self.delimiter, self.names = self._header()
        except BaseException:
            self._close.close()
            raise

    def __enter__(self) -> CsvFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close.close()

    def chunks(self, size: int) -> Iterator[TextChunk]:
        """The rows that have not been read yet, at most ``size`` at a time."""
        size = max(1, min(size, CELLS_AT_ONCE // len(self.names)))
        rows: list[list[str]] = []
        lines: list[int] = []
        for row in self._rows(self.delimiter):
            if len(row) != len(self.names):
                raise DataError(
                    f"{self.label}, line {self._line}: {len(row)} cells, where the header has "
                    f"{len(self.names)}: quote cells that hold a {self._separator()}"
                )
            rows.append([_with_point(cell) for cell in row] if self._decimal_comma else row)
            lines.append(self._line)
            if len(rows) == size:
                yield TextChunk(self.label, self.names, rows, lines)
                rows, lines = [], []
        if rows:
            yield TextChunk(self.label, self.names, rows, lines)

    def table(self, *, skip: frozenset[str] = frozenset(), skip_missing: bool = False) -> Table:
        """All rows in memory, without the columns of ``skip`` and, with ``skip_missing``, without
        rows that lack a cell."""
        builders = {name: ColumnBuilder(name) for name in self.names if name not in skip}
        lines: list[int] = []
        for chunk in self.chunks(10_000):
            if skip_missing:
                chunk = self._complete(chunk, tuple(builders))
            for builder in builders.values():
                builder.add(chunk)
            lines += chunk.lines
        if self.skipped and not lines:
            raise DataError(
                f"{self.label}: every one of its {self.skipped:,} rows lacks a cell: leave out the "
                "columns that are mostly empty (--drop)"
            )
        if not lines:
            raise DataError(f"{self.label} has a header and no rows: add at least one")
        columns = {name: builder.column() for name, builder in builders.items()}
        return Table(self.label, columns, np.array(lines, dtype=np.int64))

    def _complete(self, chunk: TextChunk, names: tuple[str, ...]) -> TextChunk:
        missing = [[cell.lower() in MISSING for cell in chunk.cells(name)] for name in names]
        kept = [k for k, lacks in enumerate(zip(*missing, strict=True)) if not any(lacks)]
        self.skipped += len(chunk) - len(kept)
        rows, lines = [chunk.rows[k] for k in kept], [chunk.lines[k] for k in kept]
        return TextChunk(chunk.label, chunk.names, rows, lines)

    def _header(self) -> tuple[str, tuple[str, ...]]:
        first = next(self._lines(), None)
        if first is None:
            raise DataError(f"{self.label} is empty: it needs a header and rows")
        delimiter = ","
        if "," not in first:
            delimiter = next((d for d in ";\t" if d in first), ",")
        names = next(self._rows(delimiter, first), [])
        names = [name.strip() for name in names]
        if len(names) > MOST_COLUMNS:
            raise DataError(
                f"{self.label} has {len(names)} columns, more than {MOST_COLUMNS}: select some"
            )
        if not names or "" in names:
            raise DataError(
                f"{self.label}: column {names.index('') + 1 if names else 1} has no name in the "
                "header: name it (a table written by pandas wants to_csv(index=False))"
            )
        if parse_numbers(names) is not None:
            raise DataError(
                f"{self.label} begins with numbers ({short(', '.join(names))}): add a header line "
                "that names the columns"
            )
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise DataError(f"{self.label} has two columns {name!r}: rename one of them")
            seen.add(name)
        return delimiter, tuple(names)

    def _rows(self, delimiter: str, first: str | None = None) -> Iterator[list[str]]:
        reader = csv.reader(self._lines(first), delimiter=delimiter, strict=True)
        try:
            for row in reader:
                self._row_size = 0
                if row:  # blank lines are nothing
                    yield row
        except csv.Error as error:
            raise DataError(
                f"{self.label}, line {self._line}: {error}: correct the quotes there"
            ) from None

    def _lines(self, first: str | None = None) -> Iterator[str]:
        """Lines with their ends, counted; a row's lines together have a bounded length."""
        if first is not None:
            yield first
        while True:
            line = self._bytes.readline(LONGEST_ROW + 1)
            if not line:
                return
            self._line += 1
            self._row_size += len(line)
            if self._row_size > LONGEST_ROW:
                raise DataError(
                    f"{self.label}, line {self._line}: a row of more than {LONGEST_ROW:,} "
                    "bytes: is this a CSV file, with all its quotes closed?"
                )
            yield self._decoder.decode(line, self._line)

    def _separator(self) -> str:
        return {",": "comma", ";": "semicolon", "\t": "tab"}[self.delimiter]


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell) else cell
