"""The idx format of MNIST: a magic number, big-endian dimensions, then bytes.

The layout of a file:

    byte 0, 1    0
    byte 2       type of the elements; 0x08 is unsigned byte, the only one read here
    byte 3       number of dimensions d
    d x 4 bytes  the dimensions, big-endian
    the rest     the elements, last dimension fastest
"""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from .errors import CorruptDataError

_UNSIGNED_BYTE = 0x08


def header_size(dimensions: int) -> int:
    """Bytes before the first element."""
    return 4 + 4 * dimensions


def parse(raw: bytes, *, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read `raw` as an idx array that must have `shape`; a read-only view, nothing is copied.

    The header is compared with what is expected and with the bytes that are there, and is
    never used as a size to allocate: a hostile header costs nothing.

    >>> parse(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), shape=(2,))
    array([7, 9], dtype=uint8)
    """
    if raw[:2] == b"\x1f\x8b":
        raise CorruptDataError("it is gzip-compressed; give it a name that ends in .gz")
    if len(raw) < header_size(len(shape)):
        raise CorruptDataError(f"it is only {len(raw)} bytes long, shorter than its header")
    magic, wanted = raw[:4], bytes([0, 0, _UNSIGNED_BYTE, len(shape)])
    if magic != wanted:
        raise CorruptDataError(
            f"it starts with {magic.hex(' ')}, an idx file of {len(shape)} dimension(s) of bytes "
            f"starts with {wanted.hex(' ')}"
        )
    claimed = struct.unpack_from(f">{len(shape)}I", raw, 4)
    if claimed != shape:
        raise CorruptDataError(f"its header claims the shape {claimed}, expected {shape}")
    expected = header_size(len(shape)) + math.prod(shape)
    if len(raw) < expected:
        raise CorruptDataError(f"it is truncated: {len(raw)} of {expected} bytes")
    if len(raw) > expected:
        raise CorruptDataError(f"it is longer than the {expected} bytes expected")
    return np.frombuffer(raw, dtype=np.uint8, offset=header_size(len(shape))).reshape(shape)
