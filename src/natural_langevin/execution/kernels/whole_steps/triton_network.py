"""Pieces of a perceptron's forward and backward pass, for one tile of a minibatch.

A tile is (sample, unit). Widths are padded to what a matrix product takes, or to 1 for the single
output of a regression, whose products are sums. Padded weights are 0, so that padded units reach
nobody, and samples past the end of a minibatch have output gradients of 0.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(z):
    """ln(1 + exp(z)), without overflow."""
    return tl.log(1.0 + tl.exp(-tl.abs(z))) + tl.maximum(z, 0.0)


@triton.jit
def tanh(z):
    """By the exponential of -2 |z|: Triton's own is not in its interpreter."""
    t = tl.exp(-2.0 * tl.abs(z))
    size = (1.0 - t) / (1.0 + t)
    return tl.where(z < 0, -size, size)


@triton.jit
def activate(z, KIND: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """f(z) and f'(z); kinds are places in ``native.layout.ACTIVATIONS``, numbers the activation's
    own (the slope of LeakyReLU; beta and threshold of Softplus; height and width of ELU; ends)."""
    f, slope = z, tl.full(z.shape, 1.0, tl.float32)
    if KIND == 1:
        f, slope = tl.where(z < 0, 0.0, z), tl.where(z > 0, 1.0, 0.0)  # NaN stays
    if KIND == 2:
        slope = tl.where(z > 0, 1.0, FIRST)
        f = z * slope
    if KIND == 3:
        f = tanh(z)
        slope = 1.0 - f * f
    if KIND == 4:
        f = tl.sigmoid(z)
        slope = f * (1.0 - f)
    if KIND == 5:
        below = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476))
        slope = below + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
        f = z * below
    if KIND == 6:
        t = tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))
        inner = 0.7978845608028654 * (1.0 + 0.134145 * z * z)
        slope = 0.5 * (1.0 + t + z * (1.0 - t * t) * inner)
        f = 0.5 * z * (1.0 + t)
    if KIND == 7:
        s = tl.sigmoid(z)
        slope = s * (1.0 + z * (1.0 - s))
        f = z * s
    if KIND == 8:
        slope = tl.where(z * FIRST > SECOND, 1.0, tl.sigmoid(z * FIRST))
        f = tl.where(z * FIRST > SECOND, z, softplus(z * FIRST) / FIRST)
    if KIND == 9:
        below = tl.exp(tl.minimum(z, 0.0) / SECOND)
        slope = tl.where(z > 0, 1.0, FIRST / SECOND * below)
        f = tl.where((z > 0) | (z != z), z, FIRST * (below - 1.0))  # NaN stays
    if KIND == 10:
        below = 1.7580993408473768 * tl.exp(tl.minimum(z, 0.0))
        slope = tl.where(z > 0, 1.0507009873554805, below)
        f = tl.where((z > 0) | (z != z), 1.0507009873554805 * z, below - 1.7580993408473768)
    if KIND == 11:
        t = tanh(softplus(z))
        slope = t + z * (1.0 - t * t) * tl.sigmoid(z)
        f = z * t
    if KIND == 12:
        slope = tl.where((z > FIRST) & (z < SECOND), 1.0, 0.0)
        f = tl.where(z < FIRST, FIRST, tl.where(z > SECOND, SECOND, z))
    return f, slope


@triton.jit
def linear(a, w, b, PRECISION: tl.constexpr):
    """a W^T + b, (sample, unit), of inputs (sample, input) and weights (unit, input)."""
    if w.shape[0] == 1:
        z = tl.sum(a * w, axis=1)[:, None]
    else:
        z = tl.dot(a, tl.trans(w), input_precision=PRECISION)
    return z + b[None, :]


@triton.jit
def send_back(d, w, PRECISION: tl.constexpr):
    """d W, (sample, input), of output gradients (sample, unit)."""
    return d * w if w.shape[0] == 1 else tl.dot(d, w, input_precision=PRECISION)


@triton.jit
def add_product(sums, d, a, PRECISION: tl.constexpr):
    """``sums`` + d^T a, (unit, input)."""
    if d.shape[1] == 1:
        sums += tl.sum(d * a, axis=0)[None, :]
    else:
        sums += tl.dot(tl.trans(d), a, input_precision=PRECISION)
    return sums


@triton.jit
def with_ones(a, I, FREE: tl.constexpr):
    """Inputs whose column number I, where a padded one is FREE, is 1: the bias's. Its weights are
    0, and what products with it give are the bias's own sums."""
    if FREE:
        a = tl.where(tl.arange(0, a.shape[1])[None, :] == I, 1.0, a)
    return a


@triton.jit
def add_sums(
    g, s, x, g_b, s_b, d, a, gamma, METRIC: tl.constexpr, HAS_BIAS: tl.constexpr,
    FREE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile's part of a layer's d^T a and, where the metric takes this batch in (gamma > 0), of
    (d^2)^T a^2 and (d^2)^T a; and sums over samples for biases that have no column."""
    g = add_product(g, d, a, PRECISION)
    if not FREE:
        g_b += tl.sum(d, axis=0)
    if METRIC > 1:  # noqa: SIM102 - the compiler knows this, a step what follows
        if gamma > 0:
            squares = d * d
            s = add_product(s, squares, a * a, PRECISION)
            if METRIC == 3 and HAS_BIAS:
                x = add_product(x, squares, a, PRECISION)
            if not FREE:
                s_b += tl.sum(squares, axis=0)
    return g, s, x, g_b, s_b


@triton.jit
def of_bias(product, sums, I, FREE: tl.constexpr):
    """The biases' part of a product (unit, input), or ``sums``."""
    if FREE:
        column = tl.arange(0, product.shape[1])[None, :] == I
        sums = tl.sum(tl.where(column, product, 0.0), axis=1)
    return sums


@triton.jit
def output_gradient(f, y, in_n, in_o, LIKELIHOOD: tl.constexpr):
    """Losses (sample,) and dl/df (sample, output), by a likelihood's place in
    ``native.layout.LIKELIHOODS``. A Gaussian's are those of variance 1, without its constant and a
    factor of 1/2 of the losses: its variance, which may be learned from this batch, divides sums
    over the batch afterwards."""
    inside = in_n[:, None] & in_o[None, :]
    if LIKELIHOOD == 0:
        highest = tl.max(tl.where(in_o[None, :], f, float("-inf")), axis=1)
        shifted = f - highest[:, None]
        power = tl.where(in_o[None, :], tl.exp(shifted), 0.0)
        total = tl.sum(power, axis=1)
        mine = tl.arange(0, f.shape[1])[None, :] == y[:, None]
        loss = tl.log(total) - tl.sum(tl.where(mine, shifted, 0.0), axis=1)
        d = power / total[:, None] - tl.where(mine, 1.0, 0.0)
    if LIKELIHOOD == 1:
        loss = tl.sum(tl.where(inside, softplus(f) - y * f, 0.0), axis=1)
        d = tl.sigmoid(f) - y
    if LIKELIHOOD == 2:
        d = f - y
        loss = tl.sum(tl.where(inside, d * d, 0.0), axis=1)
    return tl.where(in_n, loss, 0.0), tl.where(inside, d, 0.0)
