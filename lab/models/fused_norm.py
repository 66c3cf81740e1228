"""Filter response normalisation, and what surrounds it in a residual network, as one Triton kernel
forward and one backward, on CUDA.

From plain operations the normalisation takes eight passes over its input and twenty over its
gradient, the convolution's bias before it and the sum and SiLU after it another sixteen: more than
the convolutions. Here a program holds all pixels of a sample's ``CHANNELS`` channels in registers,
so that inputs, output and gradients pass through memory once:

    x = z + s,   r = (mean(x^2) + eps)^(-1/2),   u = w x r + b,   m = max(u, t) + o,   y = silu(m)
    do = dy silu'(m),   h = do where u >= t, else 0
    dz = w r h - w r^3 x mean(h x),   ds = sum dz,   dw = r sum h x,   db = sum h,
    dt = sum (do - h)

in float32, whatever the precision of z. The shift s (a convolution's bias), the other summand o (a
shortcut) and SiLU are left out where there are none. Parameters' gradients are written sample by
sample and added up afterwards, which is the same sum in every run.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

log = logging.getLogger("natural_langevin")

#: Channels of a program, and pixels times channels that still fit into its registers.
CHANNELS, MOST = 16, 16384


@triton.jit
def _add2(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add3(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _affine(
    z, shift, weight, bias, threshold, pixels, channels, eps,
    SHIFT: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Where this program's tile of (sample, pixel, channel) lies, which of it is there, and x,
    its sum, r, w, u, t of it. Sums over pixels wait for all warps: as few as possible."""
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    p = tl.arange(0, PIXELS)
    place = tl.program_id(0).to(tl.int64) * pixels * channels + p[:, None] * channels + c[None, :]
    inside = (p[:, None] < pixels) & (c[None, :] < channels)
    x = tl.load(z + place, mask=inside, other=0.0).to(tl.float32)
    known = c < channels
    if SHIFT:
        s = tl.load(shift + c, mask=known, other=0.0).to(tl.float32)
        x = tl.where(inside, x + s[None, :], 0.0)
    square, whole = tl.reduce((x * x, x), 0, _add2)
    r = 1.0 / tl.sqrt(square / pixels + eps)
    w = tl.load(weight + c, mask=known, other=0.0)
    b = tl.load(bias + c, mask=known, other=0.0)
    t = tl.load(threshold + c, mask=known, other=0.0)
    return c, place, inside, x, whole, r, w, x * (w * r)[None, :] + b[None, :], t[None, :]


@triton.jit
def _forward(
    z, shift, weight, bias, threshold, other, y, pixels, channels, eps,
    SHIFT: tl.constexpr, OTHER: tl.constexpr, SILU: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    _, place, inside, _, _, _, _, u, t = _affine(
        z, shift, weight, bias, threshold, pixels, channels, eps, SHIFT, PIXELS, CHANNELS
    )
    m = tl.where(u >= t, u, t)
    if OTHER:
        m += tl.load(other + place, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        m = m * tl.sigmoid(m)
    tl.store(y + place, m.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    z, shift, weight, bias, threshold, other, dy, dz, dother, sums, pixels, channels, eps,
    SHIFT: tl.constexpr, OTHER: tl.constexpr, SILU: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    c, place, inside, x, whole, r, w, u, t = _affine(
        z, shift, weight, bias, threshold, pixels, channels, eps, SHIFT, PIXELS, CHANNELS
    )
    g = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        m = tl.where(u >= t, u, t)
        if OTHER:
            m += tl.load(other + place, mask=inside, other=0.0).to(tl.float32)
        s = tl.sigmoid(m)
        g = g * s * (1.0 + m * (1.0 - s))
    if OTHER:
        tl.store(dother + place, g.to(dother.dtype.element_ty), mask=inside)
    h = tl.where(u >= t, g, 0.0)
    along, above, both = tl.reduce((h * x, h, g), 0, _add3)
    gain, pull = w * r, w * r * r * r * along / pixels
    result = gain[None, :] * h - pull[None, :] * x
    own = sums + tl.program_id(0).to(tl.int64) * 4 * channels + c
    known = c < channels
    tl.store(own, along * r, mask=known)
    tl.store(own + channels, above, mask=known)
    tl.store(own + 2 * channels, both - above, mask=known)
    tl.store(own + 3 * channels, gain * above - pull * whole, mask=known)
    tl.store(dz + place, result.to(dz.dtype.element_ty), mask=inside)


@triton.jit
def _total(
    x, y, rows, columns, BLOCKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    result = tl.zeros([COLUMNS], dtype=tl.float32)
    for block in range(BLOCKS):
        r = block * ROWS + tl.arange(0, ROWS)
        inside = (r[:, None] < rows) & (c[None, :] < columns)
        part = tl.load(x + r[:, None] * columns + c[None, :], mask=inside, other=0.0)
        result += tl.sum(part, axis=0)
    tl.store(y + c, result, mask=c < columns)


def total(x: Tensor) -> Tensor:
    """x.sum(0) of (rows, columns): few columns are slow in torch's own."""
    rows, columns = x.shape
    y = torch.empty(columns, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(rows))
    shape = {"BLOCKS": triton.cdiv(rows, block), "ROWS": block, "COLUMNS": 8}
    _total[(triton.cdiv(columns, 8),)](x, y, rows, columns, **shape, num_warps=4)
    return y


class Parts(NamedTuple):
    """What surrounds a normalisation: a shift before it, another summand and SiLU after it."""

    shift: bool = False
    other: bool = False
    silu: bool = False


def fused_norm(
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    threshold: Tensor,
    *,
    eps: float,
    shift: Tensor | None = None,
    other: Tensor | None = None,
    silu: bool = False,
) -> Tensor:
    """y of the formulas above; z and ``other`` (B, C, *pixels), parameters (C,)."""
    parts = Parts(shift is not None, other is not None, silu)
    # Something has to stand where there is nothing: it is neither read nor differentiated.
    shift, other = bias if shift is None else shift, z if other is None else other
    return FusedNorm.apply(z, shift, weight, bias, threshold, other, eps, parts)


class FusedNorm(torch.autograd.Function):
    """(z, shift, weight, bias, threshold, other, eps, parts) -> y."""

    @staticmethod
    def forward(
        z: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, threshold: Tensor, other: Tensor,
        eps: float, parts: Parts,
    ) -> Tensor:  # fmt: skip
        z, other = channels_last(z), channels_last(other)
        y = torch.empty_like(z)
        grid, options = _launch(z, parts)
        _forward[grid](
            z, shift, weight, bias, threshold, other, y, _pixels(z), z.shape[1], eps, **options
        )
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:6])
        ctx.eps, ctx.parts = inputs[6:]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        if differentiated_again(dy, *ctx.saved_tensors):
            inputs = tuple(v.view_as(v) for v in ctx.saved_tensors)  # that of nothing is another's
            y = _plain(*inputs, ctx.eps, ctx.parts)
            return *with_graph(y, inputs, dy), None, None
        return *_gradients(*ctx.saved_tensors, dy, ctx.eps, ctx.parts), None, None


def _plain(
    z: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, threshold: Tensor, other: Tensor,
    eps: float, parts: Parts,
) -> Tensor:  # fmt: skip
    """y by operations that have derivatives of every order."""
    shift, weight, bias, threshold = (v[:, None, None] for v in (shift, weight, bias, threshold))
    x = z.float() + shift if parts.shift else z.float()
    r = (x.square().mean((2, 3), keepdim=True) + eps).rsqrt()
    m = torch.maximum(weight * x * r + bias, threshold)
    m = m + other if parts.other else m
    return (m * m.sigmoid() if parts.silu else m).to(z.dtype)


def with_graph(y: Tensor, inputs: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of ``inputs``, with their own graph."""
    needed = [v for v in inputs if v.requires_grad]
    found = iter(torch.autograd.grad(y, needed, dy, create_graph=True, allow_unused=True))
    return tuple(next(found) if v.requires_grad else None for v in inputs)


def differentiated_again(dy: Tensor, *inputs: Tensor) -> bool:
    """Whether a gradient that comes here has its own graph made (``create_graph``); those of
    torch.func always have, and are not differentiated again."""
    functorch: Any = torch._C._functorch
    if not torch.is_grad_enabled() or not any(v.requires_grad for v in inputs):
        return False
    return not any(functorch.is_functorch_wrapped_tensor(v) for v in (dy, *inputs))


def _gradients(*inputs: Any) -> tuple[Tensor | None, ...]:
    """Of z, shift, weight, bias, threshold, other."""
    dz, dother, dw, db, dt, ds = _Gradient.apply(*inputs)
    shift, parts = inputs[1], inputs[-1]
    return dz, ds.to(shift.dtype) if parts.shift else None, dw, db, dt, (
        dother if parts.other else None
    )  # fmt: skip


class _Gradient(torch.autograd.Function):
    """A function of its own, because torch.func's gradients wrap what ``backward`` is given, and
    unwrap what ``forward`` is. It has no gradient itself."""

    @staticmethod
    def forward(
        z: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, threshold: Tensor, other: Tensor,
        dy: Tensor, eps: float, parts: Parts,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        z, other, dy = channels_last(z), channels_last(other), channels_last(dy)
        dz, channels = torch.empty_like(z), z.shape[1]
        dother = torch.empty_like(other) if parts.other else torch.empty_like(bias)
        sums = torch.empty(len(z), 4, channels, dtype=torch.float32, device=z.device)
        grid, options = _launch(z, parts)
        _backward[grid](
            z, shift, weight, bias, threshold, other, dy, dz, dother, sums, _pixels(z), channels,
            eps, **options,
        )  # fmt: skip
        return dz, dother, *total(sums.flatten(1)).reshape(4, channels).unbind(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take this input: on the device, without a chain axis of vmap."""
    pixels, channels = triton.next_power_of_2(_pixels(x)), min(CHANNELS, x.shape[1])
    small = pixels * triton.next_power_of_2(channels) <= MOST
    fits = x.ndim == 4 and small and weight.dtype == torch.float32 and not batched(x)
    return fits and works(x.device, x.dtype)


@functools.cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels can be built here and give what plain operations give: tried once."""
    z = torch.linspace(-1, 2, 16 * 16 * 2, device=device).to(dtype).reshape(2, 16, 4, 4)
    w, b, t, s = torch.linspace(-1, 1, 64, device=device).reshape(4, 16).unbind(0)
    kinds = (Parts(), Parts(True, True, True))
    return tried("filter response normalisation", device, lambda: all(
        _agrees(z, s, w, b, t, z.flip(0), parts) for parts in kinds
    ))  # fmt: skip


def tried(what: str, device: torch.device, agree: Callable[[], bool]) -> bool:
    """Whether kernels ``agree`` with plain operations; the log says why not."""
    try:
        right = agree()
    except Exception as error:  # no compiler, say
        log.warning("no kernels for %s (%s)", what, error)
        return False
    if not right:
        log.warning("the kernels of %s are wrong on %s: not used", what, device)
    return right


def _agrees(z: Tensor, s: Tensor, w: Tensor, b: Tensor, t: Tensor, o: Tensor, parts: Parts) -> bool:
    """Output and gradients for dy = 1, against the formulas above in float64, two per cent."""
    # By ``apply``, which takes off what a gradient under way wraps tensors in.
    y = FusedNorm.apply(z, s, w, b, t, o, 1e-6, parts)
    found = _Gradient.apply(z, s, w, b, t, o, torch.ones_like(z), 1e-6, parts)
    x, o = z.double(), o.double()
    w, b, t, s = (v.double()[:, None, None] for v in (w, b, t, s))
    x = x + s if parts.shift else x
    r = (x.square().mean((2, 3), keepdim=True) + 1e-6).rsqrt()
    u = w * x * r + b
    m = torch.maximum(u, t) + (o if parts.other else 0)
    sigmoid = m.sigmoid()
    do = sigmoid * (1 + m * (1 - sigmoid)) if parts.silu else torch.ones_like(m)
    h = (u >= t) * do
    along = (h * x).sum((2, 3), keepdim=True)
    dz = w * r * h - w * r**3 * x * along / 16
    expected = [dz, do if parts.other else None, (along * r).sum(0)[:, 0, 0], h.sum((0, 2, 3))]
    expected += [(do - h).sum((0, 2, 3)), dz.sum((0, 2, 3)) if parts.shift else None]
    return close((y, *found), (m * sigmoid if parts.silu else m, *expected))


def close(found: Sequence[Tensor], expected: Sequence[Tensor | None]) -> bool:
    """Within two per cent of the largest; None: not looked at."""
    return all(
        bool((one.double() - other).abs().max() <= 0.02 * other.abs().max())
        for one, other in zip(found, expected, strict=True)
        if other is not None
    )


def batched(x: Tensor) -> bool:
    """Whether vmap is under way over an axis of x."""
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def _pixels(x: Tensor) -> int:
    return math.prod(x.shape[2:])


def channels_last(x: Tensor) -> Tensor:
    """The same values with their channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last)


def _launch(x: Tensor, parts: Parts) -> tuple[tuple[int, int], dict[str, Any]]:
    """A program for every sample and every ``CHANNELS`` of its channels."""
    channels = triton.next_power_of_2(min(CHANNELS, x.shape[1]))
    pixels = triton.next_power_of_2(_pixels(x))
    warps = min(16, max(1, pixels * channels // 1024))
    grid = len(x), triton.cdiv(x.shape[1], channels)
    present = {name.upper(): there for name, there in parts._asdict().items()}
    return grid, present | {"PIXELS": pixels, "CHANNELS": channels, "num_warps": warps}
