"""Filter response normalisation as one Triton kernel forward and one backward, on CUDA.

From plain operations it takes eight passes over its input and twenty over its gradient, more than
the convolutions around it. Here a program holds all pixels of a sample's ``CHANNELS`` channels in
registers, so that input, output and both gradients pass through memory once:

    r = (mean(x^2) + eps)^(-1/2),   u = w x r + b,   y = max(u, t),   h = dy where u >= t, else 0
    dx = w r h - w r^3 x mean(h x),   dw = r sum h x,   db = sum h,   dt = sum (dy - h)

in float32, whatever the precision of x. Parameters' gradients are written sample by sample and
added up afterwards, which is the same sum in every run.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

log = logging.getLogger("natural_langevin")

#: Channels of a program, and pixels times channels that still fit into its registers.
CHANNELS, MOST = 16, 16384


@triton.jit
def _load(x, pixels, channels, PIXELS: tl.constexpr, CHANNELS: tl.constexpr):
    """Where this program's tile of (sample, pixel, channel) lies, and which of it is there."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    p = tl.arange(0, PIXELS)
    place = tl.program_id(0).to(tl.int64) * pixels * channels + p[:, None] * channels + c[None, :]
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    return c, place, inside, tl.load(x + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _forward(
    x, weight, bias, threshold, y, pixels, channels, eps,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    c, place, inside, value = _load(x, pixels, channels, PIXELS, CHANNELS)
    r = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / pixels + eps)
    known = c < channels
    w = tl.load(weight + c, mask=known, other=0.0)
    b = tl.load(bias + c, mask=known, other=0.0)
    t = tl.load(threshold + c, mask=known, other=0.0)
    u = value * (w * r)[None, :] + b[None, :]
    result = tl.where(u >= t[None, :], u, t[None, :])
    tl.store(y + place, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    x, weight, bias, threshold, dy, dx, sums, pixels, channels, eps,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    c, place, inside, value = _load(x, pixels, channels, PIXELS, CHANNELS)
    r = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / pixels + eps)
    known = c < channels
    w = tl.load(weight + c, mask=known, other=0.0)
    b = tl.load(bias + c, mask=known, other=0.0)
    t = tl.load(threshold + c, mask=known, other=0.0)
    g = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
    h = tl.where(value * (w * r)[None, :] + b[None, :] >= t[None, :], g, 0.0)
    along = tl.sum(h * value, axis=0)
    shift = tl.sum(h, axis=0)
    own = sums + tl.program_id(0).to(tl.int64) * 3 * channels + c
    tl.store(own, along * r, mask=known)
    tl.store(own + channels, shift, mask=known)
    tl.store(own + 2 * channels, tl.sum(g, axis=0) - shift, mask=known)
    result = (w * r)[None, :] * h - (w * r * r * r * along / pixels)[None, :] * value
    tl.store(dx + place, result.to(dx.dtype.element_ty), mask=inside)


class FusedNorm(torch.autograd.Function):
    """(x, weight, bias, threshold, eps) -> y; x (B, C, *pixels), its channels last in memory."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, threshold: Tensor, eps: float) -> Tensor:
        x, y = _channels_last(x), torch.empty_like(_channels_last(x))
        grid, shape = _launch(x)
        _forward[grid](x, weight, bias, threshold, y, _pixels(x), x.shape[1], eps, **shape)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.eps = inputs[4]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return *_Gradient.apply(*ctx.saved_tensors, dy, ctx.eps), None


class _Gradient(torch.autograd.Function):
    """A function of its own, because torch.func's gradients wrap what ``backward`` is given, and
    unwrap what ``forward`` is. It has no gradient itself."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, threshold: Tensor, dy: Tensor, eps: float
    ) -> tuple[Tensor, ...]:
        x, dy = _channels_last(x), _channels_last(dy)
        dx, channels = torch.empty_like(x), x.shape[1]
        sums = torch.empty(len(x), 3, channels, dtype=torch.float32, device=x.device)
        grid, shape = _launch(x)
        _backward[grid](
            x, weight, bias, threshold, dy, dx, sums, _pixels(x), channels, eps, **shape
        )
        total = sums.sum(0)
        return dx, total[0], total[1], total[2]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take this input: on the device, without a chain axis of vmap."""
    pixels, channels = triton.next_power_of_2(_pixels(x)), min(CHANNELS, x.shape[1])
    small = pixels * triton.next_power_of_2(channels) <= MOST
    fits = x.ndim == 4 and small and weight.dtype == torch.float32 and not _batched(x)
    return fits and works(x.device, x.dtype)


@functools.cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can be built here and give what the formulas above give: tried once."""
    x = torch.linspace(-1, 2, 16 * 16 * 2, device=device).to(dtype).reshape(2, 16, 4, 4)
    w, b, t = torch.linspace(-1, 1, 48, device=device).reshape(3, 16).unbind(0)
    try:
        # By ``apply``, which takes off what a gradient under way wraps tensors in.
        y = FusedNorm.apply(x, w, b, t, 1e-6)
        dx, dw, db, dt = _Gradient.apply(x, w, b, t, torch.ones_like(x), 1e-6)
    except Exception as error:  # no compiler, say
        log.warning("no kernels for filter response normalisation (%s)", error)
        return False
    full = x.double()
    w, b, t = (v.double()[:, None, None] for v in (w, b, t))
    r = (full.square().mean((2, 3), keepdim=True) + 1e-6).rsqrt()
    u = w * full * r + b
    h = (u >= t).double()
    along = (h * full).sum((2, 3), keepdim=True)
    expected = (
        torch.maximum(u, t), w * r * h - w * r**3 * full * along / 16, (along * r).sum(0)[:, 0, 0],
        h.sum((0, 2, 3)), (1 - h).sum((0, 2, 3)),
    )  # fmt: skip
    close = all(
        bool((one.double() - other).abs().max() <= 0.02 * other.abs().max())
        for one, other in zip((y, dx, dw, db, dt), expected, strict=True)
    )
    if not close:
        log.warning(
            "the kernels of filter response normalisation are wrong on %s: not used", device
        )
    return close


def _batched(x: Tensor) -> bool:
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def _pixels(x: Tensor) -> int:
    return math.prod(x.shape[2:])


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _launch(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """A program for every sample and every ``CHANNELS`` of its channels."""
    channels = triton.next_power_of_2(min(CHANNELS, x.shape[1]))
    pixels = triton.next_power_of_2(_pixels(x))
    warps = min(16, max(1, pixels * channels // 1024))
    grid = len(x), triton.cdiv(x.shape[1], channels)
    return grid, {"PIXELS": pixels, "CHANNELS": channels, "num_warps": warps}
