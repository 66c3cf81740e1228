"""The normals of ``random.normal`` from the native library: the same addresses, a tenth of the
time of plain operations, and rounding of its own."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from natural_langevin.execution.kernels.native.build import library

#: Numbers that the library writes beyond those asked for, at most.
_SURPLUS = 512


@cache
def _draw() -> Any:
    """The library's function, or None where there is no library."""
    found = library(torch.float32)
    if found is None:
        return None
    found.draw_normals.argtypes = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 2
    found.draw_normals.restype = None
    return found.draw_normals


def native_normal(origin: int, step: int, count: int, *, start: int = 0) -> Tensor | None:
    """Draws ``start`` to ``start + count`` of the stream of (origin, step): float32, (count,);
    None where there is no library."""
    draw = _draw()
    if draw is None:
        return None
    room, out = torch.empty(count + _SURPLUS), torch.empty(count)
    draw(origin, step, start, count, room.data_ptr(), out.data_ptr())
    return out
