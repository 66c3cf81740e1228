"""Sums over samples or pixels of per-sample gradients, in Triton kernels that write none of them.

Convolutions: a program forms some units and inputs of G_n for some samples, one after the other,
and adds them up where it has formed them; patches are not written either.

    G_n = sum_t delta_nt a_nt^T,      sum_n G_n^2,      sum_n G_n,      sum_n b_n G_n

Group norms: a program takes a group of one sample. From torch's operations the normalised x^ and
its product with delta are written and read again, eight times the memory of either in all, where
this reads two.

    G_n[gain_c] = sum_t x^_nct delta_nct,            G_n[shift_c] = sum_t delta_nct
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from natural_langevin._internal.gpu_kernels import dot_precision, transformations


class Tile(NamedTuple):
    """Units, inputs and positions of a program; programs of a launch, warps, pipeline stages."""

    units: int = 128
    inputs: int = 64
    positions: int = 32
    programs: int = 528
    warps: int = 8
    stages: int = 3


TILE, TILE_FULL = Tile(), Tile(64, 64, 16, warps=4)  # the second for full float32


# Steps between rows and columns of pixels are numbers: a stride of two is no kernel of its own.
@triton.jit(do_not_specialize=["samples", "share", "columns", "a_y", "a_x", "a_row", "a_column"])
def _kernel(
    a, delta, bias, sums, size, samples, share, T, I, O, taps, width, columns,
    a_n, a_g, a_c, a_y, a_x, a_row, a_column, d_n, d_g, d_t, d_o,
    TOTAL: tl.constexpr, ROW: tl.constexpr, UNITS: tl.constexpr, INPUTS: tl.constexpr,
    POSITIONS: tl.constexpr, ONCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles, part, group = tl.cdiv(I, INPUTS), tl.program_id(1), tl.program_id(2)
    o = tl.program_id(0) // tiles * UNITS + tl.arange(0, UNITS)
    i = tl.program_id(0) % tiles * INPUTS + tl.arange(0, INPUTS)
    feature = i // taps * a_c + i % taps // width * a_y + i % taps % width * a_x
    unit = group * O + o
    square = tl.zeros([UNITS, INPUTS], dtype=tl.float32)
    total = tl.zeros([UNITS, INPUTS], dtype=tl.float32)
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
        if TOTAL:
            total += G
        if ROW:
            row += tl.load(bias + unit, mask=o < O, other=0.0)[:, None] * G
            bias += tl.num_programs(2) * O
        a += a_n
        delta += d_n
    at = (part * tl.num_programs(2) * O + unit).to(tl.int64)[:, None] * I + i[None, :]
    inside = (o < O)[:, None] & (i < I)[None, :]
    tl.store(sums + at, square, mask=inside)
    if TOTAL:
        sums += size
        tl.store(sums + at, total, mask=inside)
    if ROW:
        tl.store(sums + size + at, row, mask=inside)


def square_sums(
    a: Tensor, delta: Tensor, bias: Tensor | None, *, total: bool = False
) -> tuple[Tensor, ...]:
    """sum_n G_n^2; with ``total`` sum_n G_n; with ``bias`` (n, group O) sum_n bias_n G_n: each
    (group O, I) in float32, added up in the same order in every run.

    a: a view (n, group, C, *kernel, *positions) of up to two spatial axes; delta: (n, group, T, O).
    Inside vmap there is one group.
    """
    if transformations():
        found: tuple[Tensor, ...] = _OfChains.apply(a, delta, bias, total)
        return found
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
    count = 1 + total + (bias is not None)
    sums = a.new_empty(count, parts, groups * O, I, dtype=torch.float32)
    if bias is not None:
        bias = bias.contiguous()
    _kernel[tiles, parts, groups](
        a, delta, bias, sums, sums.stride(0), samples, share, T, I, O, taps, kernel[1], columns,
        *steps, *delta.stride(), TOTAL=total, ROW=bias is not None, UNITS=units, INPUTS=inputs,
        POSITIONS=positions, ONCE=positions >= T, PRECISION=precision,
        num_warps=min(tile.warps, max(4, units * inputs // 1024)), num_stages=tile.stages,
    )  # fmt: skip
    return tuple(sums.sum(1))


class _OfChains(torch.autograd.Function):
    """``square_sums`` inside vmap: networks side by side are as good as groups."""

    @staticmethod
    def forward(a: Tensor, delta: Tensor, bias: Tensor | None, total: bool) -> tuple[Tensor, ...]:
        return square_sums(a, delta, bias, total=total)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Any) -> tuple[tuple[Tensor, ...], int]:
        *tensors, total = given
        count = info.batch_size

        def aside(t: Any, axis: int | None) -> Any:
            """The networks behind the samples."""
            if t is None:
                return None
            return (
                t[:, None].expand(-1, count, *t.shape[1:]) if axis is None else t.movedim(axis, 1)
            )

        a, delta, bias = (aside(t, axis) for t, axis in zip(tensors, axes, strict=False))
        rows = None if bias is None else bias.flatten(1)
        found = square_sums(a.flatten(1, 2), delta.flatten(1, 2), rows, total=total)
        return tuple(s.unflatten(0, (count, -1)) for s in found), 0


# Norms -------------------------------------------------------------------------------------------

#: Of a norm's tile: numbers, and positions among them at most.
NORM_TILE, NORM_POSITIONS = 4096, 1024


@triton.jit(do_not_specialize=["eps"])
def _norm_kernel(x, delta, gain, shift, eps, K, T, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * K  # of the group's channels, over all samples
    x += first * T
    delta += first * T
    k = tl.arange(0, CHANNELS)[:, None]
    t = tl.arange(0, POSITIONS)[None, :]
    total = tl.zeros([CHANNELS, POSITIONS], dtype=tl.float32)
    for c in range(0, K, CHANNELS):
        for p in range(0, T, POSITIONS):
            inside = (c + k < K) & (p + t < T)
            total += tl.load(x + (c + k) * T + p + t, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(total) / (K * T)
    total = tl.zeros([CHANNELS, POSITIONS], dtype=tl.float32)
    for c in range(0, K, CHANNELS):
        for p in range(0, T, POSITIONS):
            inside = (c + k < K) & (p + t < T)
            v = tl.load(x + (c + k) * T + p + t, mask=inside, other=0.0).to(tl.float32) - mean
            total += tl.where(inside, v * v, 0.0)
    scale = tl.rsqrt(tl.sum(total) / (K * T) + eps)
    for c in range(0, K, CHANNELS):
        products = tl.zeros([CHANNELS, POSITIONS], dtype=tl.float32)
        deltas = tl.zeros([CHANNELS, POSITIONS], dtype=tl.float32)
        for p in range(0, T, POSITIONS):
            inside = (c + k < K) & (p + t < T)
            v = tl.load(x + (c + k) * T + p + t, mask=inside, other=0.0).to(tl.float32)
            d = tl.load(delta + (c + k) * T + p + t, mask=inside, other=0.0).to(tl.float32)
            products += (v - mean) * d
            deltas += d
        at = first + c + tl.arange(0, CHANNELS)
        inside = c + tl.arange(0, CHANNELS) < K
        tl.store(gain + at, tl.sum(products, 1) * scale, mask=inside)
        tl.store(shift + at, tl.sum(deltas, 1), mask=inside)


def channel_sums(x: Tensor, delta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """gain and shift, (n, C) in float32, of x and delta: (n, C, ...)."""
    x, delta = x.contiguous(), delta.contiguous()
    samples, channels = x.shape[:2]
    K, T = channels // groups, x[0, 0].numel()
    positions = min(NORM_POSITIONS, triton.next_power_of_2(T))
    rows = min(NORM_TILE // positions, triton.next_power_of_2(K))
    gain, shift = x.new_empty(2, samples, channels, dtype=torch.float32)
    _norm_kernel[(samples * groups,)](
        x, delta, gain, shift, eps, K, T, CHANNELS=rows, POSITIONS=positions
    )
    return gain, shift
