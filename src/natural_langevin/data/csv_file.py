"""CSV with a header, read in bounded memory; errors name the line.

Comma, semicolon, tab or bar between cells (found from the header), double quotes, UTF-8 with or
without a byte-order mark, or Windows-1252.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
import logging
import os
import re
import select
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from natural_langevin._internal import capacity
from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, compact, joined, need_pandas, short

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("natural_langevin")

#: Seconds in which somebody must begin to write to a named pipe.
PATIENCE = 60.0
#: The most bytes of one row. Without it, a file without line ends would fill the memory.
LONGEST_ROW = 1 << 24
MOST_COLUMNS = 100_000
#: The most cells that are text at the same time.
CELLS_AT_ONCE = 500_000
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
#: A row behind the last one, which no file holds: where another ends with it, a quote is open.
END = "\0"
#: With its number, the name of a column that has none.
UNNAMED = "unnamed"
WINDOWS, SAVE = "cp1252", "save the file as CSV in UTF-8"


class Lines:
    """A binary stream as text, a line at a time: decoded, counted and of bounded length.

    UTF-8 is tried first, and bytes that are not UTF-8 are never guessed at twice: the first such
    line makes the rest of the file Windows-1252, what older spreadsheets write. A file that has
    shown letters in UTF-8 before is damaged instead. ``taken``: bytes of the row so far, for
    whoever reads rows to set to 0; where a row begins, a line of spaces alone is an empty one.
    """

    def __init__(self, stream: BinaryIO, label: str) -> None:
        self._stream, self.label = stream, label
        self.number, self.encoding, self.taken = 0, "utf-8", 0
        self.notices: tuple[str, ...] = ()  # what was done to read it
        self._seen = False  # whether letters beyond ASCII were UTF-8

    def readline(self) -> str:
        """The next line with its end, "" after the last."""
        line = self._stream.readline(LONGEST_ROW + 1)
        if not line:
            return ""
        self.number += 1
        if self.number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{self.here}: this is UTF-16 (a spreadsheet's “Unicode text”): {SAVE}")
        begins, self.taken = not self.taken, self.taken + len(line)
        if self.taken > LONGEST_ROW:
            raise DataError(
                f"{self.here}: a row of more than {LONGEST_ROW:,} bytes: is this a CSV file, "
                "with all its quotes closed?"
            )
        text = self._decode(line)
        return "\n" if begins and not text.strip() else text

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")

    @property
    def here(self) -> str:
        """The place of the line that was read last, in words."""
        return f"{self.label}, line {self.number}"

    def _decode(self, line: bytes) -> str:
        if b"\0" in line:
            raise DataError(
                f"{self.here}: a NUL byte: this is not a text file, or it is damaged; {SAVE}"
            )
        if self.encoding == "utf-8":
            try:
                text = line.decode("utf-8-sig" if self.number == 1 else "utf-8")
                self._seen = self._seen or not line.isascii()
                return text
            except UnicodeDecodeError as error:
                byte = f"byte 0x{line[error.start]:02x}"
                if self._seen:
                    raise DataError(
                        f"{self.here}: {byte} is not UTF-8, and the lines before are: {SAVE}"
                    ) from None
                self.encoding = WINDOWS
                self.notices += (
                    f"{self.here}: {byte} is not UTF-8, so the file is read as Windows-1252; "
                    f"where words look wrong, {SAVE}",
                )
                log.warning("%s", self.notices[-1])
        try:
            return line.decode(WINDOWS)
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x}"
            raise DataError(
                f"{self.here}: {byte} is neither UTF-8 nor Windows-1252: {SAVE}"
            ) from None


class CsvFile:
    """A CSV file, or an open binary stream such as standard input; read once, from the beginning.

    ``target``: a column whose words may be classes, also "none" or "NA"; ``among_numbers``: what
    stood for a missing cell in the columns of numbers that were read so far, in lower case.

    >>> import io
    >>> file = CsvFile(io.BytesIO(b"age,town\\n31,Rome\\n"), label="people.csv")
    >>> file.names, file.table().where(0)
    (('age', 'town'), 'people.csv, line 2')
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        label: str | None = None,
        target: str | None = None,
    ) -> None:
        self._target, self.among_numbers = target, set[str]()
        self._close = contextlib.ExitStack()
        if isinstance(source, (str, os.PathLike)):
            self.label = label or os.fspath(source)
            stream = open_binary(source, self.label)
            self._close.callback(stream.close)
        else:
            self.label, stream = label or "the input", source
        self._lines = Lines(stream, self.label)
        try:
            self.names = self._header()
        except BaseException:
            self._close.close()
            raise

    def __enter__(self) -> CsvFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    @property
    def notices(self) -> tuple[str, ...]:
        """What was done to read the lines so far, in words."""
        return self._lines.notices

    def chunks(self, size: int) -> Iterator[Table]:
        """The rows that have not been read yet, at most ``size`` at a time; cells are text or, in
        columns of plain numbers, float64."""
        rows, size = self._read(), max(1, min(size, CELLS_AT_ONCE // len(self.names)))
        while len(words := self._words(itertools.islice(rows, size))):
            columns = {}
            for name in self.names:
                # Where semicolons separate cells, commas are often decimal.
                points, classes = self.delimiter == ";", name == self._target
                columns[name] = compact(words[name], points=points, classes=classes)
                empty = columns[name].isna()
                # A column of nothing else says nothing about numbers.
                if columns[name].dtype == np.float64 and not empty.all():
                    empty = words[name][empty]
                    self.among_numbers.update(empty.str.strip().str.lower().unique())
            yield Table(self.label, need_pandas().DataFrame(columns))

    def _words(self, rows: Iterable[tuple[int, list[str]]]) -> pd.DataFrame:
        """The cells of some rows as they stand there."""
        # One list for all cells: so many lists of a row each would be tracked one by one.
        places, cells = list[int](), list[str]()
        for place, row in rows:
            places.append(place)
            cells += row
        columns = {name: cells[k :: len(self.names)] for k, name in enumerate(self.names)}
        return need_pandas().DataFrame(columns, index=places, dtype=str)

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        """The rows with the lines in which they begin, without those that are empty."""
        while True:
            place = self._lines.number + 1
            row = self._row(place)
            if row == [END]:
                return
            if len(row) not in (0, len(self.names)):
                remedy = f"quote cells that hold a {SEPARATORS[self.delimiter]}"
                if len(row) < len(self.names):
                    remedy = "add what is missing (an empty cell needs its separator too)"
                raise DataError(
                    f"{self.label}, line {place}: {len(row)} cells, where the header has "
                    f"{len(self.names)}: {remedy}"
                )
            if row:
                yield place, row

    def _row(self, place: int) -> list[str]:
        """The cells of the next row, which begins in this line."""
        self._lines.taken = 0
        try:
            row = next(self._rows, [END])
        except csv.Error:  # the only one: cells may be as long as rows
            raise DataError(
                f"{self._lines.here}: a carriage return that ends no line: {SAVE}"
            ) from None
        if row != [END] and row and row[-1].endswith(END):
            raise DataError(
                f"{self.label}, line {place}: a quote is not closed: correct the quotes"
            )
        return row

    def table(self, *, skip: frozenset[str] = frozenset()) -> Table:
        """All rows in memory, without the columns of ``skip``."""
        pd = need_pandas()
        parts, taken = [], 0
        for chunk in self.chunks(50_000):
            parts.append(chunk.frame)
            taken += int(chunk.frame.memory_usage(deep=True).sum())
            if taken > capacity.in_memory() // 4:  # joining and encoding take as much again, twice
                raise DataError(
                    f"{self.label} takes {taken / 2**30:.3g} GiB after "
                    f"{sum(map(len, parts)):,} rows, too much for this machine's memory: train on "
                    "a part of its rows (is it endless?), or leave columns out (--drop)"
                )
        if not parts:
            raise DataError(f"{self.label} has a header and no rows: add at least one")
        kept = [name for name in self.names if name not in skip]
        columns = {name: joined([part[name] for part in parts]) for name in kept}
        index = np.concatenate([part.index for part in parts])
        return Table(self.label, pd.DataFrame(columns, index=index))

    @staticmethod
    def _above(line: str) -> bool:
        """Whether a line in front of the header says how the file was made: Excel's sep=; or a
        remark behind #, which has no separator."""
        remark = line.startswith("#") and not any(sign in line for sign in SEPARATORS)
        return remark or line.strip().strip('"').lower() in {f"sep={sign}" for sign in SEPARATORS}

    def _named(self, names: list[str]) -> list[str]:
        """With names for columns that have none, such as the index that pandas writes in front."""
        nameless = [k for k, name in enumerate(names, 1) if not name]
        if nameless:
            shown = ", ".join(map(str, nameless[:8])) + (", ..." if len(nameless) > 8 else "")
            several = len(nameless) > 1
            self._lines.notices += (
                f"{self.label}, line 1: column{'s' if several else ''} {shown} "
                f"{'have' if several else 'has'} no name: called {UNNAMED} {nameless[0]}"
                f"{', ...' if several else ''}",
            )
        return [name or f"{UNNAMED} {k}" for k, name in enumerate(names, 1)]

    def _header(self) -> tuple[str, ...]:
        lines = self._lines
        first = lines.readline()
        if not first:
            raise DataError(f"{self.label} is empty: it needs a header and rows")
        if first.startswith(("[", "{")) and '"' in first:
            raise DataError(f"{self.label}, line 1: this looks like JSON: {SAVE}")
        while self._above(first):
            self._lines.notices += (f"{self._lines.here}: {short(first.strip())} skipped",)
            first = lines.readline()
        if "\r" in first.rstrip("\r\n"):
            raise DataError(f"{self.label}, line 1: lines end with a carriage return only: {SAVE}")
        outside = re.sub(r'"[^"]*("|$)', "", first)
        self.delimiter = max(SEPARATORS, key=outside.count)
        csv.field_size_limit(max(LONGEST_ROW, csv.field_size_limit()))
        self._rows = csv.reader(
            itertools.chain([first], lines, [END]),
            delimiter=self.delimiter,
            skipinitialspace=True,
        )
        names = [name.strip() for name in self._row(lines.number)]
        if len(names) > MOST_COLUMNS:
            raise DataError(
                f"{self.label} has {len(names)} columns, more than {MOST_COLUMNS}: select some"
            )
        if not any(names):
            raise DataError(f"{self.label}, line 1: no column has a name: add a header line")
        names = self._named(names)
        if all(_is_number(name) for name in names):
            raise DataError(
                f"{self.label} begins with numbers ({short(', '.join(names))}): add a header line "
                "that names the columns"
            )
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            shown = " and ".join(
                f"two columns {short(name)} (the {_places(names, name)})" for name in twice[:3]
            ) + " and others" * (len(twice) > 3)
            raise DataError(f"{self.label}, line 1: {shown}: rename one of them")
        return tuple(names)


def _places(names: list[str], name: str) -> str:
    """
    >>> _places(["a", "b", "a"], "a")
    '1st and 3rd'
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    found = [k for k, other in enumerate(names, 1) if other == name][:2]
    return " and ".join(
        f"{k}{'th' if 10 < k % 100 < 14 else ends.get(k % 10, 'th')}" for k in found
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def open_binary(path: str | os.PathLike[str], label: str) -> BinaryIO:
    """The file to read from; DataError, with the reason, where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            _await_writer(descriptor, label)
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, IsADirectoryError):
            raise DataError(f"{label} is a folder: give the file itself") from None
        raise DataError(f"cannot read {label}: {reason}: check the name") from None


def _await_writer(descriptor: int, label: str) -> None:
    """Waits for a writer of a pipe; ``open`` would block silently without one."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(21, "Is a directory")
    if stat.S_ISFIFO(kind):
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        if not ready.poll(1000 * PATIENCE):
            raise DataError(
                f"{label} is a pipe, and nothing was written to it within {PATIENCE:g} seconds: "
                "start what writes to it first"
            )
    if hasattr(os, "set_blocking"):
        os.set_blocking(descriptor, True)
