"""Squares of a convolution's per-sample gradients, in one Triton kernel.

    G_n = sum_t delta_nt a_nt^T,        sum_n G_n^2,        sum_n b_n G_n

A program forms some units and inputs of G_n for some samples, one after the other, and adds up
squares where it has formed them: neither patches nor any G_n are written to memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from natural_langevin._internal.gpu_kernels import dot_precision


class Tile(NamedTuple):
    """Units, inputs and positions of a program; programs of a launch, warps, pipeline stages."""

    units: int = 128
    inputs: int = 64
    positions: int = 32
    programs: int = 528
    warps: int = 8
    stages: int = 3


TILE, TILE_FULL = Tile(), Tile(64, 64, 16, warps=4)  # the second for full float32


@triton.jit(do_not_specialize=["samples", "share", "columns", "a_y", "a_x"])
def _kernel(
    a, delta, bias, squares, rows, samples, share, T, I, O, taps, width, columns,
    a_n, a_g, a_c, a_y, a_x, a_row, a_column, d_n, d_g, d_t, d_o,
    ROW: tl.constexpr, UNITS: tl.constexpr, INPUTS: tl.constexpr, POSITIONS: tl.constexpr,
    ONCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles, part, group = tl.cdiv(I, INPUTS), tl.program_id(1), tl.program_id(2)
    o = tl.program_id(0) // tiles * UNITS + tl.arange(0, UNITS)
    i = tl.program_id(0) % tiles * INPUTS + tl.arange(0, INPUTS)
    feature = i // taps * a_c + i % taps // width * a_y + i % taps % width * a_x
    unit = group * O + o
    square = tl.zeros([UNITS, INPUTS], dtype=tl.float32)
    row = tl.zeros([UNITS, INPUTS], dtype=tl.float32)
    first = (part * share).to(tl.int64)
    a += first * a_n + group * a_g
    delta += first * d_n + group * d_g
    if ROW:
        bias += first * (tl.num_programs(2) * O)
    for _ in range(tl.minimum(share, samples - part * share)):
        G = tl.zeros([UNITS, INPUTS], dtype=tl.float32)
        for block in range(1 if ONCE else tl.cdiv(T, POSITIONS)):
            t = block * POSITIONS + tl.arange(0, POSITIONS)
            place = t // columns * a_row + t % columns * a_column
            inside = (i < I)[:, None] & (t < T)[None, :]
            patch = tl.load(a + (feature[:, None] + place[None, :]), mask=inside, other=0.0)
            inside = (o < O)[:, None] & (t < T)[None, :]
            place = o[:, None] * d_o + t[None, :] * d_t
            d = tl.load(delta + place, mask=inside, other=0.0)
            G = tl.dot(d, tl.trans(patch), G, input_precision=PRECISION)
        square += G * G
        if ROW:
            row += tl.load(bias + unit, mask=o < O, other=0.0)[:, None] * G
            bias += tl.num_programs(2) * O
        a += a_n
        delta += d_n
    at = (part * tl.num_programs(2) * O + unit).to(tl.int64)[:, None] * I + i[None, :]
    inside = (o < O)[:, None] & (i < I)[None, :]
    tl.store(squares + at, square, mask=inside)
    if ROW:
        tl.store(rows + at, row, mask=inside)


def square_sums(a: Tensor, delta: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    """sum_n G_n^2 and, with ``bias`` (n, group O), sum_n bias_n G_n: (group O, I) in float32, added
    up in the same order in every run.

    a: a view (n, group, C, *kernel, *positions) of up to two spatial axes; delta: (n, group, T, O).
    """
    precision = dot_precision(a.dtype)
    tile = TILE if precision == "tf32" else TILE_FULL
    samples, groups, T, O = delta.shape
    axes = (a.ndim - 3) // 2
    one, none = (1,) * (2 - axes), (0,) * (2 - axes)
    kernel, columns = (*one, *a.shape[3 : 3 + axes]), (*one, *a.shape[3 + axes :])[1]
    steps = (*a.stride()[:3], *none, *a.stride()[3 : 3 + axes], *none, *a.stride()[3 + axes :])
    taps = kernel[0] * kernel[1]
    I = a.shape[2] * taps
    units, inputs, positions = (
        max(16, min(most, triton.next_power_of_2(size)))
        for most, size in zip(tile, (O, I, T), strict=False)
    )
    tiles = triton.cdiv(O, units) * triton.cdiv(I, inputs)
    share = triton.cdiv(samples, triton.cdiv(tile.programs, tiles * groups))
    parts = triton.cdiv(samples, share)
    sums = a.new_empty(1 if bias is None else 2, parts, groups * O, I, dtype=torch.float32)
    if bias is not None:
        bias = bias.contiguous()
    _kernel[tiles, parts, groups](
        a, delta, bias, sums[0], sums[-1], samples, share, T, I, O, taps, kernel[1], columns,
        *steps, *delta.stride(), ROW=bias is not None, UNITS=units, INPUTS=inputs,
        POSITIONS=positions, ONCE=positions >= T, PRECISION=precision,
        num_warps=min(tile.warps, max(4, units * inputs // 1024)), num_stages=tile.stages,
    )  # fmt: skip
    return tuple(sums.sum(1))
