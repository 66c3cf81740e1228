"""Excel and Parquet files, whole, by pandas. CSV is read in bounded memory: see ``csv_file``."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from natural_langevin._internal.extras import needing
from natural_langevin._internal.messages import first_line
from natural_langevin.data.csv_file import open_binary
from natural_langevin.data.errors import DataError
from natural_langevin.data.table import Table, compact, from_frame, need_pandas, short

#: The kind of a file, by how its name ends.
KINDS = {".xlsx": "Excel", ".xlsm": "Excel", ".parquet": "Parquet", ".pq": "Parquet"}


def kind_of(name: str) -> str | None:
    """ "Excel", "Parquet", or None.

    >>> kind_of("flats.XLSX"), kind_of("flats.csv")
    ('Excel', None)
    """
    return KINDS.get(Path(name).suffix.lower())


def check_installed(kind: str) -> None:
    """ImportError, with the extra to install, where the package for such files is missing."""
    package = "openpyxl" if kind == "Excel" else "pyarrow"
    with needing(f"{kind} files need {package}", "files"):
        importlib.import_module(package)


def read(path: str, *, target: str | None = None) -> tuple[Table, list[str]]:
    """The table in a file (of a workbook its first sheet, whose first row has the names), and what
    was done to read it. Of the ``target`` words such as "none" are cells."""
    pd, kind, label = need_pandas(), kind_of(path), Path(path).name
    assert kind is not None, f"{path} is neither Excel nor Parquet"
    check_installed(kind)
    notices: list[str] = []
    with open_binary(path, label) as stream, _readable(label, kind):
        content = io.BytesIO(stream.read())
        if kind == "Parquet":
            frame = pd.read_parquet(content, engine="pyarrow")
            nameless = frame.index.nlevels == 1 and frame.index.name is None
            frame = frame.reset_index(drop=nameless)
        else:
            with pd.ExcelFile(content, engine="openpyxl") as book:
                first, *others = book.sheet_names
                header = pd.read_excel(book, sheet_name=first, header=None, nrows=1)
                names = header.to_numpy().ravel().tolist()
                twice = [name for k, name in enumerate(names) if name in names[:k]]
                if twice:  # the second would be called "a.1"
                    raise DataError(
                        f"{label} has two columns {short(str(twice[0]))}: rename one of them"
                    )
                # As they stand, since pandas would make a 7 of the text 007.
                frame = pd.read_excel(
                    book, sheet_name=first, dtype=object, keep_default_na=False, na_values=[""]
                )
            if others:
                notices.append(
                    f"{label} has {len(others) + 1} sheets: {first!r}, the first, is read"
                )
    if not len(frame.columns) or not len(frame):
        raise DataError(f"{label} holds no rows: a header and rows below it are needed")
    table = from_frame(frame, words=() if target is None else (target,))
    # Places as a spreadsheet counts them, whose first row has the names.
    rows = pd.RangeIndex(2, len(frame) + 2) if kind == "Excel" else pd.RangeIndex(len(frame))
    return replace(table, label=label, frame=table.frame.set_axis(rows)), notices


def write(text: str, kind: str, out: BinaryIO) -> None:
    """A table that is there as the text of a CSV file; columns of numbers become numbers."""
    pd = need_pandas()
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    for name in frame.columns:
        cells = compact(frame[name])
        frame[name] = cells if cells.dtype == float else frame[name]
    if kind == "Parquet":
        frame.to_parquet(out, engine="pyarrow", index=False)
        return
    try:
        frame.to_excel(out, engine="openpyxl", index=False)
    except ValueError as error:  # more than 1,048,576 rows
        raise DataError(f"an Excel file cannot hold it ({error}): write CSV or Parquet") from None


@contextmanager
def _readable(label: str, kind: str) -> Iterator[None]:
    """Whatever a reader of such files says of a damaged one becomes a DataError."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(
            f"{label} cannot be read as {kind} ({first_line(error)}): save it again, or as CSV"
        ) from None
