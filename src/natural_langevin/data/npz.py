"""NPZ archives from untrusted sources: a zip file of .npy members, each a header and raw bytes.

Nothing in the file decides how much memory is taken before it has been compared with the file's
own size, and nothing in it is executed: NumPy parses the headers, and only plain numbers and text
are accepted (object arrays are pickles, and are refused).
"""

from __future__ import annotations

import math
import os
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from natural_langevin.data.errors import DataError

#: By the version of the format; later ones are of arrays with named fields.
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
LONGEST_HEADER = 4096
#: Byte order, kind and size: bool, integers, floats up to 8 bytes, bytes and text.
PLAIN = re.compile(r"[<>|=](b1|[iu][1248]|f[248]|[SU][1-9]\d{0,3})")
#: Compressed members larger than this must not grow by more than that factor: real data does not.
BOMB_SIZE, BOMB_RATIO = 1 << 26, 200
#: What zipfile, zlib and numpy raise on a damaged file, and the file system on any.
REFUSED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    OSError, OverflowError, MemoryError, ValueError, TypeError,
)  # fmt: skip


def read_npz(path: str | os.PathLike[str], wanted: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays called ``wanted``, as np.savez or np.savez_compressed wrote them."""
    label = os.fspath(path)
    try:
        if not Path(path).is_file():  # a pipe would be waited for
            raise DataError(f"{label} is not a regular file: give the name of an NPZ file")
        size = Path(path).stat().st_size
        with zipfile.ZipFile(path) as archive:
            return {name: _member(archive, name, label, size) for name in wanted}
    except DataError:
        raise
    except REFUSED as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        # zipfile quotes the file's own bytes, of which there may be thousands.
        raise DataError(
            f"cannot read {label}: {reason[:120]}: write it again with np.savez"
        ) from None


def _member(archive: zipfile.ZipFile, name: str, label: str, size: int) -> NDArray[Any]:
    found = [info for info in archive.infolist() if info.filename == f"{name}.npy"]
    if len(found) != 1:
        there = ", ".join(sorted(i.filename.removesuffix(".npy") for i in archive.infolist())[:8])
        held = "twice" if found else f"not (it holds {there or 'nothing'})"
        raise DataError(
            f"{label} must hold the array {name!r} once, and does {held}: "
            "write it with np.savez(file, x=..., y=...)"
        )
    info = found[0]
    _check_growth(info, label, size)
    with archive.open(info) as member:
        dtype, shape, fortran = _header(member, f"{label}: {name}")
        needed, left = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
        if needed != left:
            raise DataError(
                f"{label}: {name} says it has shape {shape} of {dtype}, {needed:,} bytes, but "
                f"{left:,} are there: write it again with np.savez"
            )
        content = member.read()  # to the end, where the archive's checksum is compared
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _check_growth(info: zipfile.ZipInfo, label: str, size: int) -> None:
    """A member may not claim more than the file can hold: no bomb is ever unpacked."""
    plain = info.compress_type == zipfile.ZIP_STORED
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{label} uses a compression that NumPy never writes: write it with np.savez"
        )
    held = min(info.compress_size, size)
    limit = held if plain else max(BOMB_SIZE, BOMB_RATIO * held)
    if info.file_size > limit:
        raise DataError(
            f"{label}: {info.filename} claims {info.file_size:,} bytes in {held:,}: it is damaged "
            "or hostile; if it is yours, write it with np.savez (not compressed)"
        )


def _header(member: IO[bytes], what: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """dtype, shape, and whether in Fortran's order."""
    try:
        read = HEADERS[npy.read_magic(member)]
        with warnings.catch_warnings():  # of a strange escape, or of a header by Python 2
            warnings.simplefilter("ignore")
            shape, fortran, dtype = read(member, max_header_size=LONGEST_HEADER)
    except (*REFUSED, KeyError, SyntaxError, tokenize.TokenError) as error:
        raise DataError(
            f"{what} is not a .npy array ({str(error)[:120]}): write it again with np.savez"
        ) from None
    if not PLAIN.fullmatch(dtype.str):
        kind = "Python objects (a pickle, which can run code)" if dtype.hasobject else dtype.str
        raise DataError(
            f"{what} holds {kind[:80]}: only numbers and text are read; convert it with "
            "np.asarray(..., dtype=float)"
        )
    return dtype, shape, fortran
