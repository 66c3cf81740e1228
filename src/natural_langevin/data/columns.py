"""Columns of text become numbers or categories while a file is read, without keeping the text."""

from __future__ import annotations

import shlex

import numpy as np
from numpy.typing import NDArray

from .errors import DataError
from .table import (
    MISSING,
    MOST_LEVELS,
    Column,
    TextChunk,
    has_comma,
    is_infinite,
    not_a_number,
    parse_numbers,
    short,
)


class ColumnBuilder:
    """A column that grows chunk by chunk, as numbers and as categories while it can be either."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: list[NDArray[np.float64]] | None = []
        self._codes: list[NDArray[np.int32]] | None = []
        self._levels: dict[str, int] = {}
        self._numbers = 0
        self._odd: str | None = None

    def add(self, chunk: TextChunk) -> None:
        cells = chunk.cells(self._name)
        values = parse_numbers(cells)
        if values is None:
            self._look_at(cells, chunk)
            self._values = None
        else:
            self._numbers += len(cells)
            if self._values is not None:
                self._values.append(values)
        if self._codes is not None:
            levels = self._levels
            codes = [levels.setdefault(cell, len(levels)) for cell in cells]
            self._codes.append(np.array(codes, dtype=np.int32))
            if len(levels) > MOST_LEVELS:
                self._codes, self._levels = None, {}
        if self._values is None and self._codes is None:
            raise self._neither()

    def _look_at(self, cells: list[str], chunk: TextChunk) -> None:
        """Refuses what is missing or infinite; notes the first word."""
        for row, cell in enumerate(cells):
            if parse_numbers([cell]) is not None:
                self._numbers += 1
                continue
            if cell.lower() in MISSING or is_infinite(cell) or has_comma(cell):
                raise not_a_number(chunk.where(row), self._name, cell, missing=self._remedy())
            if self._odd is None:
                self._odd = f"{short(cell)} ({chunk.where(row)})"

    def _remedy(self) -> str:
        drop = f"--drop {shlex.quote(self._name)}"
        return (
            "fill it in, leave out all rows that lack a cell (--skip-missing), or leave out the "
            f"column ({drop})"
        )

    def _neither(self) -> DataError:
        if self._numbers:
            return DataError(
                f"column {self._name!r} holds numbers, but also {self._odd}: correct that cell, or "
                "leave the column out (--drop)"
            )
        return DataError(
            f"column {self._name!r} holds more than {MOST_LEVELS} different words, such as "
            f"{self._odd}: it is no category; leave it out (--drop {shlex.quote(self._name)})"
        )

    def column(self) -> Column:
        values = None if self._values is None else np.concatenate(self._values)
        codes = None if self._codes is None else np.concatenate(self._codes)
        odd = self._odd if self._numbers and values is None else None
        return Column(values, codes, tuple(self._levels), odd)
