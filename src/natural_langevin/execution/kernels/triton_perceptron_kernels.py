"""Triton kernels of a perceptron's forward and backward pass, for few chains and small minibatches.

A library's matrix products are made for large ones: of 100 samples and 400 units they fill a tenth
of a device, and biases, activations and their slopes are launches of their own. Here a program has
a small tile of (sample, unit) of one chain, and all of a layer is one launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from natural_langevin.execution.kernels.whole_steps.triton_network import activate, output_gradient


@triton.jit
def _linear(
    a, w, bias, n, o, B, I, O, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """a W^T + b of some samples and units."""
    z = tl.zeros([BLOCK_B, BLOCK_O], tl.float32)
    in_n, in_o = n < B, o < O
    for first in range(0, I, DEPTH):
        i = first + tl.arange(0, DEPTH)
        x_mask, w_mask = in_n[:, None] & (i < I)[None, :], (i < I)[:, None] & in_o[None, :]
        x = tl.load(a + n[:, None] * I + i[None, :], mask=x_mask, other=0.0)
        v = tl.load(w + o[None, :] * I + i[:, None], mask=w_mask, other=0.0)
        z += tl.dot(x, v, input_precision=PRECISION)
    if HAS_BIAS:
        z += tl.load(bias + o, mask=in_o, other=0.0)[None, :]
    return z


@triton.jit(do_not_specialize=["B"])
def forward_kernel(
    a, w, bias, out, slopes, B, I, O, a_chain, ACTIVATION: tl.constexpr, FIRST: tl.constexpr,
    SECOND: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """f(a W^T + b) and f' there, of a (chain, B, I) and weights (chain, O, I)."""
    chain, tiles_o = tl.program_id(1).to(tl.int64), tl.cdiv(O, BLOCK_O)
    n = (tl.program_id(0) // tiles_o) * BLOCK_B + tl.arange(0, BLOCK_B)
    o = (tl.program_id(0) % tiles_o) * BLOCK_O + tl.arange(0, BLOCK_O)
    z = _linear(
        a + chain * a_chain, w + chain * O * I, bias + chain * O, n, o, B, I, O, HAS_BIAS,
        PRECISION, BLOCK_B, BLOCK_O, DEPTH,
    )  # fmt: skip
    f, slope = activate(z, ACTIVATION, FIRST, SECOND)
    at, mask = n[:, None] * O + o[None, :], (n < B)[:, None] & (o < O)[None, :]
    tl.store(out + chain * B * O + at, f, mask=mask)
    tl.store(slopes + chain * B * O + at, slope, mask=mask)


@triton.jit(do_not_specialize=["B"])
def output_kernel(
    a, w, bias, labels, delta, losses, B, I, O, a_chain, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The last layer, whose units are all in one tile: gradients of classes' log-losses, and a
    tile's part of their mean."""
    chain, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    n, o = tile * BLOCK_B + tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_O)
    f = _linear(
        a + chain * a_chain, w + chain * O * I, bias + chain * O, n, o, B, I, O, HAS_BIAS,
        PRECISION, BLOCK_B, BLOCK_O, DEPTH,
    )  # fmt: skip
    y = tl.load(labels + chain * B + n, mask=n < B, other=0)
    loss, d = output_gradient(f, y, n < B, o < O, 0)
    at, mask = n[:, None] * O + o[None, :], (n < B)[:, None] & (o < O)[None, :]
    tl.store(delta + chain * B * O + at, d, mask=mask)
    tl.store(losses + chain * tl.num_programs(0) + tile, tl.sum(loss, axis=0) / B)


@triton.jit(do_not_specialize=["B"])
def backward_kernel(
    delta, w, slopes, out, B, I, O, PRECISION: tl.constexpr, BLOCK_B: tl.constexpr,
    BLOCK_I: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """(delta W) f', the output gradients of the layer below, of delta (chain, B, O)."""
    chain, tiles_i = tl.program_id(1).to(tl.int64), tl.cdiv(I, BLOCK_I)
    n = (tl.program_id(0) // tiles_i) * BLOCK_B + tl.arange(0, BLOCK_B)
    i = (tl.program_id(0) % tiles_i) * BLOCK_I + tl.arange(0, BLOCK_I)
    in_n, in_i = n < B, i < I
    delta += chain * B * O
    w += chain * O * I
    at, mask = n[:, None] * I + i[None, :], in_n[:, None] & in_i[None, :]
    slope = tl.load(slopes + chain * B * I + at, mask=mask, other=0.0)
    below = tl.zeros([BLOCK_B, BLOCK_I], tl.float32)
    for first in range(0, O, DEPTH):
        o = first + tl.arange(0, DEPTH)
        d_mask, w_mask = in_n[:, None] & (o < O)[None, :], (o < O)[:, None] & in_i[None, :]
        d = tl.load(delta + n[:, None] * O + o[None, :], mask=d_mask, other=0.0)
        v = tl.load(w + o[:, None] * I + i[None, :], mask=w_mask, other=0.0)
        below += tl.dot(d, v, input_precision=PRECISION)
    tl.store(out + chain * B * I + at, below * slope, mask=mask)
