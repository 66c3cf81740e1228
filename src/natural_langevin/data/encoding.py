"""Bytes of a text file become text, a line at a time: UTF-8 or, said aloud, Windows-1252.

UTF-8 is tried first, and bytes that are not UTF-8 are never guessed at twice: the first such line
makes the rest of the file Windows-1252, what older spreadsheets write. A file that has shown
letters in UTF-8 before is damaged instead.
"""

from __future__ import annotations

import codecs
import logging

from .errors import DataError

log = logging.getLogger(__name__)

WINDOWS = "cp1252"
SAVE = "save the file as CSV in UTF-8"


class Decoder:
    """``encoding`` says what the lines so far were read as.

    >>> Decoder("a.csv").decode(b"K\\xc3\\xb6ln", 1)
    'Köln'
    """

    def __init__(self, label: str) -> None:
        self.label, self.encoding = label, "utf-8"
        self._seen = False  # whether letters beyond ASCII were UTF-8

    def decode(self, line: bytes, number: int) -> str:
        """The text of line ``number``, counted from 1."""
        where = f"{self.label}, line {number}"
        if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{where}: this is UTF-16 (a spreadsheet's “Unicode text”): {SAVE}")
        if b"\0" in line:
            raise DataError(
                f"{where}: a NUL byte: this is no text file, or it is damaged; save it as CSV in "
                "UTF-8"
            )
        if self.encoding == WINDOWS:
            return self._windows(line, where)
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            byte = f"byte 0x{line[error.start]:02x}"
            if self._seen:
                raise DataError(
                    f"{where}: {byte} is not UTF-8, and the lines before are: {SAVE}"
                ) from None
            text = self._windows(line, where)
            self.encoding = WINDOWS
            log.warning(
                "%s: %s is not UTF-8, so the file is read as Windows-1252; where words look "
                "wrong, %s",
                where,
                byte,
                SAVE,
            )
            return text
        self._seen = self._seen or not line.isascii()
        return text

    def _windows(self, line: bytes, where: str) -> str:
        try:
            return line.decode(WINDOWS)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: byte 0x{line[error.start]:02x} is neither UTF-8 nor Windows-1252: {SAVE}"
            ) from None
