"""3x3 convolutions of few channels as Triton kernels, on CUDA, in reduced precision.

Libraries tile channels by 32 and more, and a first stage of 16 channels takes four to eight times
as long as reading and writing its pixels does. Here a program multiplies a tile of pixels, shifted
by each of the nine taps, with that tap's (inputs, outputs) matrix; the gradient with respect to
the images is the same with taps turned around, and that of the weights adds up, for one row of
taps, products of shifted pixels and gradients over several samples. Sums are in float32, and in
the same order in every run. Pixels have their channels last, stride 1 and a border of zeros.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from lab.models.fused_norm import (
    batched,
    channels_last,
    close,
    differentiated_again,
    total,
    tried,
    with_graph,
)

#: Channels from which on libraries are as fast, and pixels of a tile.
MOST, PIXELS = 32, 256
#: Programs among which the samples of a weight gradient are shared out.
PROGRAMS = 250


@triton.jit
def _convolve(
    x, matrices, y, height, width, inputs, outputs,
    TURNED: tl.constexpr, PIXELS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    pixels = height * width
    sample = tl.program_id(0).to(tl.int64) * pixels
    p = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    i, o = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    known = (i[:, None] < inputs) & (o[None, :] < outputs)
    result = tl.zeros([PIXELS, OUTPUTS], dtype=tl.float32)
    for tap in tl.static_range(9):
        row, column = p // width + (tap // 3 - 1), p % width + (tap % 3 - 1)
        there = (p < pixels) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        place = (sample + row * width + column)[:, None] * inputs + i[None, :]
        value = tl.load(x + place, mask=there[:, None] & (i[None, :] < inputs), other=0.0)
        of = 8 - tap if TURNED else tap
        matrix = matrices + (of * inputs + i[:, None]) * outputs + o[None, :]
        result = tl.dot(value, tl.load(matrix, mask=known, other=0.0), result)
    place = (sample + p)[:, None] * outputs + o[None, :]
    inside = (p < pixels)[:, None] & (o[None, :] < outputs)
    tl.store(y + place, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _correlate(
    x, dy, sums, samples, height, width, inputs, outputs, SHARE: tl.constexpr,
    TILES: tl.constexpr, PIXELS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    shift, pixels = tl.program_id(1) - 1, height * width
    i, o = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    left = tl.zeros([INPUTS, OUTPUTS], dtype=tl.float32)
    middle = tl.zeros([INPUTS, OUTPUTS], dtype=tl.float32)
    right = tl.zeros([INPUTS, OUTPUTS], dtype=tl.float32)
    for turn in range(SHARE):
        n = turn * tl.num_programs(0) + tl.program_id(0)
        sample = n.to(tl.int64) * pixels
        for tile in range(TILES):
            p = tile * PIXELS + tl.arange(0, PIXELS)
            own = p < tl.where(n < samples, pixels, 0)
            place = (sample + p)[:, None] * outputs + o[None, :]
            g = tl.load(dy + place, mask=own[:, None] & (o[None, :] < outputs), other=0.0)
            row, column = p // width + shift, p % width
            own = own & (row >= 0) & (row < height)
            place = x + (sample + row * width + column)[None, :] * inputs + i[:, None]
            known = own[None, :] & (i[:, None] < inputs)
            middle = tl.dot(tl.load(place, mask=known, other=0.0), g, middle)
            near = known & (column > 0)[None, :]
            left = tl.dot(tl.load(place - inputs, mask=near, other=0.0), g, left)
            near = known & (column < width - 1)[None, :]
            right = tl.dot(tl.load(place + inputs, mask=near, other=0.0), g, right)
    place = sums + (tl.program_id(0) * 9 + tl.program_id(1) * 3) * inputs * outputs
    place += i[:, None] * outputs + o[None, :]
    known = (i[:, None] < inputs) & (o[None, :] < outputs)
    tl.store(place, left, mask=known)
    tl.store(place + inputs * outputs, middle, mask=known)
    tl.store(place + 2 * inputs * outputs, right, mask=known)


class NarrowConv(torch.autograd.Function):
    """(x, weight) -> y; x (B, inputs, height, width), weight (outputs, inputs, 3, 3)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return _convolved(x, weight, turned=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if differentiated_again(dy, x, weight):
            return with_graph(F.conv2d(x, weight, padding=1), (x, weight), dy)
        dx = _Turned.apply(dy, weight) if ctx.needs_input_grad[0] else None
        return dx, _Correlated.apply(x, dy).to(weight.dtype)


class _Turned(torch.autograd.Function):
    """A function of its own for the reason ``fused_norm._Gradient`` is one."""

    @staticmethod
    def forward(dy: Tensor, weight: Tensor) -> Tensor:
        return _convolved(dy, weight, turned=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)


class _Correlated(torch.autograd.Function):
    """The weight's gradient, in float32."""

    @staticmethod
    def forward(x: Tensor, dy: Tensor) -> Tensor:
        x, dy = channels_last(x), channels_last(dy)
        (samples, inputs, height, width), outputs = x.shape, dy.shape[1]
        programs, tile = min(PROGRAMS, samples), _tile(height * width, PIXELS // 2)
        sums = torch.empty(programs, 9 * inputs * outputs, dtype=torch.float32, device=x.device)
        _correlate[programs, 3](
            x, dy, sums, samples, height, width, inputs, outputs,
            SHARE=triton.cdiv(samples, programs), TILES=triton.cdiv(height * width, tile),
            PIXELS=tile, INPUTS=_tile(inputs), OUTPUTS=_tile(outputs), num_warps=2,
        )  # fmt: skip
        return total(sums).reshape(3, 3, inputs, outputs).permute(3, 2, 0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)


def _convolved(x: Tensor, weight: Tensor, *, turned: bool) -> Tensor:
    x = channels_last(x)
    matrices = weight.permute(2, 3, *((0, 1) if turned else (1, 0))).contiguous()
    samples, inputs, height, width = x.shape
    outputs = matrices.shape[-1]
    y = torch.empty(
        samples, outputs, height, width, dtype=x.dtype, device=x.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    tile = _tile(height * width, PIXELS)
    _convolve[samples, triton.cdiv(height * width, tile)](
        x, matrices, y, height, width, inputs, outputs, TURNED=turned, PIXELS=tile,
        INPUTS=_tile(inputs), OUTPUTS=_tile(outputs), num_warps=4,
    )  # fmt: skip
    return y


def _tile(size: int, most: int = MOST) -> int:
    """A power of two; products of matrices want 16 at least."""
    return max(16, min(most, triton.next_power_of_2(size)))


def takes(x: Tensor, conv: nn.Conv2d) -> bool:
    """Whether the kernels take this input of this layer, as far as it is seen by autocast."""
    kind = x.device.type
    narrow = max(conv.in_channels, conv.out_channels) <= MOST
    return (
        narrow
        and (conv.kernel_size, conv.stride, conv.padding) == ((3, 3), (1, 1), (1, 1))
        and torch.is_autocast_enabled(kind)
        and not batched(x)
        and works(x.device, torch.get_autocast_dtype(kind))
    )


def narrow_conv(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution without its bias, in autocast's precision."""
    reduced = torch.get_autocast_dtype(x.device.type)
    return NarrowConv.apply(x.to(reduced), weight.to(reduced))


@functools.cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can be built here and give what plain operations give: tried once."""
    x = torch.linspace(-1, 2, 2 * 3 * 35, device=device).sin().to(dtype).reshape(2, 3, 5, 7)
    weight = torch.linspace(-1, 1, 18 * 27, device=device).cos().to(dtype).reshape(18, 3, 3, 3)
    dy = torch.linspace(-3, 1, 36 * 35, device=device).sin().to(dtype).reshape(2, 18, 5, 7)

    def agree() -> bool:
        # By ``apply``, which takes off what a gradient under way wraps tensors in.
        found = NarrowConv.apply(x, weight), _Turned.apply(dy, weight), _Correlated.apply(x, dy)
        a, w, g = (v.double() for v in (x, weight, dy))
        return close(found, (
            F.conv2d(a, w, padding=1), F.conv_transpose2d(g, w, padding=1),
            F.conv2d(a.movedim(1, 0), g.movedim(1, 0), padding=1).movedim(1, 0),
        ))  # fmt: skip

    return tried("narrow convolutions", device, agree)
