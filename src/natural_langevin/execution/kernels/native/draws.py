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
    found.key_normals.argtypes = [ctypes.c_int64] * 4 + [ctypes.c_void_p] * 2
    found.key_normals.restype = None
    return found.key_normals


def native_normal(key: Tensor, count: int, start: int) -> Tensor | None:
    """Draws ``start`` to ``start + count`` of every key (..., 2): float32, (..., count); None where
    there is no library."""
    draw = _draw()
    if draw is None:
        return None
    room, out = torch.empty(count + _SURPLUS), torch.empty(*key.shape[:-1], count)
    for words, row in zip(key.reshape(-1, 2).tolist(), out.view(-1, count), strict=True):
        draw(*words, start, count, room.data_ptr(), row.data_ptr())
    return out
