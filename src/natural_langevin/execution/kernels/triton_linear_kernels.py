"""Triton kernels of a linear layer's update: its weights, from a batch or from a given gradient,
and its biases. ``triton_linear`` launches them.

A program owns a tile of weights, BLOCK_O units by BLOCK_I inputs. It forms the three products over
the batch in registers and applies metric, drift, noise and running mean to them at once: gradient
and statistics never reach memory, and what remains is the traffic of the state, each buffer read
and written once. The weights' pull on their unit's bias (the row A_0i) is summed per tile; a second
kernel adds these sums up and moves the biases.

The noise is that of ``random.normal``, recomputed here from its address. Flags that change nothing
but a few instructions are numbers, not constants: every variant takes half a second to build.

KIND is the metric (``layer.KIND_NUMBER``): 0 the identity, 1 RMSProp, 2 diagonal, 3 quasi-diagonal.
SCHEME is the momentum's (``dynamics.base.KernelUpdate``): 0 there is none, 1 Euler's, 2 BAOAB.
"""

from __future__ import annotations

import triton
import triton.language as tl

from natural_langevin._internal.triton_random import normal_at, normal_rows


@triton.jit
def mix(old, new, rate):
    """(1 - rate) old + rate new; a rate of 1 forgets ``old`` to the last bit."""
    return (1 - rate) * old + rate * new


@triton.jit
def follow(change, noise, r, kept, SCHEME: tl.constexpr):
    """How far theta goes by a ``change`` of which ``noise`` is noise, and the momentum after it."""
    if SCHEME == 1:
        r = kept * r + change
        change = r
    if SCHEME == 2:  # the kick acts before the momentum is forgotten; theta moves before and after
        kicked = r + (change - noise)
        r = kept * kicked + noise
        change = 0.5 * (kicked + r)
    return change, r


@triton.jit
def _store_row_sums(
    row_sums, pulls, noisy_pulls, chain, tile_i, tiles_i, o, O, SCHEME: tl.constexpr
):
    """A tile's part of what weights add to their biases."""
    at, whole = (chain * tiles_i + tile_i) * O + o, tl.num_programs(1).to(tl.int64) * tiles_i * O
    tl.store(row_sums + at, tl.sum(pulls, axis=1), mask=o < O)
    if SCHEME == 2:
        tl.store(row_sums + whole + at, tl.sum(noisy_pulls, axis=1), mask=o < O)


@triton.jit
def _rates(numbers, chain):
    """A chain's eta, noise scale, gamma, mu, 1 / N, whether it goes on, and kept momentum."""
    at = numbers + chain * 7
    return (
        tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4),
        tl.load(at + 5), tl.load(at + 6),
    )  # fmt: skip


@triton.jit
def _bias_terms(
    gradient, square, bias, bias_second, prior, damping, rates, o, O, chain, fresh,
    ADAPTS: tl.constexpr,
):  # fmt: skip
    """Of the biases of units: v, and (J_00 + epsilon)^{-1/2} as this step applies it."""
    in_o = o < O
    b = tl.load(bias + chain * O + o, mask=in_o, other=0.0)
    precision = tl.load(prior + chain * 4 + 2) * rates[4]
    v = gradient + precision * (b - tl.load(prior + chain * 4 + 3))
    corner = tl.load(bias_second + chain * O + o, mask=in_o, other=1.0)
    if ADAPTS:
        corner = tl.where(fresh != 0, mix(corner, square, rates[2]), corner)
    return v, tl.rsqrt(corner + tl.load(damping + chain * 2 + 1))


@triton.jit
def _unit_terms(
    deltas, deltas2, share, first, unit_sums, unit_squares, bias, bias_second, prior, damping,
    rates, o, O, chain, fresh, KIND: tl.constexpr, ADAPTS: tl.constexpr,
):  # fmt: skip
    """What weights need of their units' biases, from delta and delta~^2 (unit, sample), added up
    over blocks of the batch; the units' ``first`` program keeps both sums for the bias kernel."""
    gradient, square = tl.sum(deltas, axis=1) * share, tl.sum(deltas2, axis=1) * share
    if first:
        tl.store(unit_sums + chain * O + o, gradient, mask=o < O)
        tl.store(unit_squares + chain * O + o, square, mask=o < O)
    v, corner = tl.zeros_like(gradient), tl.zeros_like(gradient)
    if KIND == 3:
        v, corner = _bias_terms(
            gradient, square, bias, bias_second, prior, damping, rates, o, O, chain, fresh, ADAPTS
        )
    return v, corner


@triton.jit
def _squared_fisher(d, fisher, at, mask, SAME: tl.constexpr):
    if not SAME:
        d = tl.load(fisher + at, mask=mask, other=0.0)
    return d * d


@triton.jit(do_not_specialize=["B", "tiles_i", "fresh"])
def linear_kernel(
    a, delta, fisher, theta, mean, second, cross, bias, bias_second, momentum, each, prior, damping,
    numbers, keys, unit_sums, unit_squares, row_sums, B, I, O, a_chain, tiles_i, start, fresh,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MEAN: tl.constexpr,
    SCHEME: tl.constexpr, EACH: tl.constexpr, ADAPTS: tl.constexpr, SAME: tl.constexpr,
    PRECISION: tl.constexpr, PAIRED: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Weights from a batch: a (chain, B, I), delta and fisher (chain, B, O). A program has a tile
    of one chain's weights."""
    chain = tl.program_id(1).to(tl.int64)
    tile_o, tile_i = tl.program_id(0) // tiles_i, tl.program_id(0) % tiles_i
    o, i = tile_o * BLOCK_O + tl.arange(0, BLOCK_O), tile_i * BLOCK_I + tl.arange(0, BLOCK_I)
    in_o, in_i = o < O, i < I
    a += chain * a_chain
    delta += chain * B * O
    fisher += chain * B * O
    share, rates = 1.0 / B, _rates(numbers, chain)
    # Asked for before the products: memory answers while they are formed.
    known = _read_weights(
        theta, mean, second, cross, momentum, each, o, i, in_i, I, O, chain, KIND, HAS_BIAS,
        HAS_MEAN, SCHEME, EACH,
    )  # fmt: skip
    # The products over the batch, and the sums of delta and delta~^2 for the units' biases: over
    # samples at the end, since a sum in the loop would have warps wait for each other.
    gradient = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    squares = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    crosses = tl.zeros([BLOCK_O, BLOCK_I], tl.float32)
    deltas = tl.zeros([BLOCK_O, BLOCK_B], tl.float32)
    deltas2 = tl.zeros([BLOCK_O, BLOCK_B], tl.float32)
    for first in range(0, B, BLOCK_B):
        n = first + tl.arange(0, BLOCK_B)
        in_n = n < B
        x_mask, d_mask = in_n[:, None] & in_i[None, :], in_n[None, :] & in_o[:, None]
        at = n[None, :] * O + o[:, None]
        x = tl.load(a + n[:, None] * I + i[None, :], mask=x_mask, other=0.0)
        d = tl.load(delta + at, mask=d_mask, other=0.0)
        gradient += tl.dot(d, x, input_precision=PRECISION)
        deltas += d
        if KIND >= 2 and ADAPTS:
            f2 = _squared_fisher(d, fisher, at, d_mask, SAME)
            deltas2 += f2
            squares += tl.dot(f2, x * x, input_precision=PRECISION)
            if KIND == 3 and HAS_BIAS:
                crosses += tl.dot(f2, x, input_precision=PRECISION)
    bias_v, corner = tl.zeros([BLOCK_O], tl.float32), tl.zeros([BLOCK_O], tl.float32)
    if HAS_BIAS:
        bias_v, corner = _unit_terms(
            deltas, deltas2, share, tile_i == 0, unit_sums, unit_squares, bias, bias_second,
            prior, damping, rates, o, O, chain, fresh, KIND, ADAPTS,
        )  # fmt: skip
    pulls, noisy_pulls = _move_weights(
        gradient * share, squares * share, crosses * share, bias_v, corner, known, theta, mean,
        second, cross, momentum, prior, damping, rates, keys, o, i, in_i, I, O, chain, start,
        fresh, KIND, HAS_BIAS, HAS_MEAN, SCHEME, EACH, ADAPTS, PAIRED, BLOCK_O, BLOCK_I,
    )  # fmt: skip
    if KIND == 3 and HAS_BIAS:
        _store_row_sums(row_sums, pulls, noisy_pulls, chain, tile_i, tiles_i, o, O, SCHEME)


@triton.jit(do_not_specialize=["tiles_i", "fresh"])
def given_kernel(
    gradient, squares, crosses, bias_gradient, bias_square, theta, mean, second, cross, bias,
    bias_second, momentum, each, prior, damping, numbers, keys, row_sums, I, O, tiles_i, start,
    fresh, KIND: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MEAN: tl.constexpr, SCHEME: tl.constexpr,
    EACH: tl.constexpr, ADAPTS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Weights whose gradient and statistics somebody else has formed: convolutions, norms, ..."""
    chain = tl.program_id(1).to(tl.int64)
    tile_o, tile_i = tl.program_id(0) // tiles_i, tl.program_id(0) % tiles_i
    o, i = tile_o * BLOCK_O + tl.arange(0, BLOCK_O), tile_i * BLOCK_I + tl.arange(0, BLOCK_I)
    in_o, rates = o < O, _rates(numbers, chain)
    mask = in_o[:, None] & (i < I)[None, :]
    at = chain * O * I + o[:, None] * I + i[None, :]
    g = tl.load(gradient + at, mask=mask, other=0.0)
    g2, gx = g, g
    bias_v, corner = tl.zeros([BLOCK_O], tl.float32), tl.zeros([BLOCK_O], tl.float32)
    if KIND >= 2 and ADAPTS:
        g2 = tl.load(squares + at, mask=mask, other=0.0)
    if KIND == 3 and HAS_BIAS:
        g_b, g2_b = tl.load(bias_gradient + chain * O + o, mask=in_o, other=0.0), corner
        if ADAPTS:
            gx = tl.load(crosses + at, mask=mask, other=0.0)
            g2_b = tl.load(bias_square + chain * O + o, mask=in_o, other=0.0)
        bias_v, corner = _bias_terms(
            g_b, g2_b, bias, bias_second, prior, damping, rates, o, O, chain, fresh, ADAPTS
        )
    known = _read_weights(
        theta, mean, second, cross, momentum, each, o, i, i < I, I, O, chain, KIND, HAS_BIAS,
        HAS_MEAN, SCHEME, EACH,
    )  # fmt: skip
    pulls, noisy_pulls = _move_weights(
        g, g2, gx, bias_v, corner, known, theta, mean, second, cross, momentum, prior, damping,
        rates, keys, o, i, i < I, I, O, chain, start, fresh, KIND, HAS_BIAS, HAS_MEAN, SCHEME, EACH,
        ADAPTS, False, BLOCK_O, BLOCK_I,
    )  # fmt: skip
    if KIND == 3 and HAS_BIAS:
        _store_row_sums(row_sums, pulls, noisy_pulls, chain, tile_i, tiles_i, o, O, SCHEME)


@triton.jit
def _read_weights(
    theta, mean, second, cross, momentum, each, o, i, in_i, I, O, chain, KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MEAN: tl.constexpr, SCHEME: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """A tile's weights, J's diagonal and row, momentum, mean and priors' precisions. All are read
    before anything is written: a read behind a write, which might be of the same memory, waits."""
    mask, first = (o < O)[:, None] & in_i[None, :], chain * O * I
    at = o[:, None] * I + i[None, :]
    w = tl.load(theta + first + at, mask=mask, other=0.0)
    j, c, r, average, own = w, w, w, w, w  # what there is not is never looked at
    if KIND > 0:
        j = tl.load(second + first + at, mask=mask, other=1.0)
    if KIND == 3 and HAS_BIAS:
        c = tl.load(cross + first + at, mask=mask, other=0.0)
    if SCHEME > 0:
        r = tl.load(momentum + first + at, mask=mask, other=0.0)
    if HAS_MEAN:
        average = tl.load(mean + first + at, mask=mask, other=0.0)
    if EACH:
        own = tl.load(each + first + at, mask=mask, other=0.0)
    return w, j, c, r, average, own


@triton.jit
def _move_weights(
    gradient, squares, crosses, bias_v, corner, known, theta, mean, second, cross, momentum, prior,
    damping, rates, keys, o, i, in_i, I, O, chain, start, fresh, KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_MEAN: tl.constexpr, SCHEME: tl.constexpr, EACH: tl.constexpr,
    ADAPTS: tl.constexpr, PAIRED: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Metric, drift, noise and mean of a tile of weights, from its batch's gradient (BLOCK_O,
    BLOCK_I), statistics and what ``_read_weights`` found; what the weights add to their biases,
    and of it the noise."""
    w, j, c, r, average, own = known
    eta, scale, gamma, mu, per_datum, keep, kept = rates
    live_o = o < tl.where(keep > 0, O, 0)  # stopped chains stand still
    key0 = tl.load(keys + chain * 2).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys + chain * 2 + 1).to(tl.uint32, bitcast=True)
    mask, live = (o < O)[:, None] & in_i[None, :], live_o[:, None] & in_i[None, :]
    at = o[:, None] * I + i[None, :]
    precision, centre = tl.load(prior + chain * 4), tl.load(prior + chain * 4 + 1)
    epsilon = tl.load(damping + chain * 2)
    if PAIRED:
        z = normal_rows(o * I + tl.min(i, axis=0) + start, key0, key1, BLOCK_O, BLOCK_I)
    else:
        z = normal_at(at + start, key0, key1)
    first = chain * O * I
    v = gradient + (own if EACH else precision) * per_datum * (w - centre)
    pulls, noisy_pulls = tl.zeros_like(w), tl.zeros_like(w)
    noise = scale * z
    if KIND == 0:
        change = noise - eta * v
    else:  # ``j`` and ``c`` become what this step applies
        if ADAPTS:
            new_j = mix(j, gradient * gradient if KIND == 1 else squares, gamma)
            tl.store(second + first + at, new_j, mask=live)
            j = tl.where(fresh != 0, new_j, j)
        if KIND == 3 and HAS_BIAS:
            if ADAPTS:
                new_c = mix(c, crosses, gamma)
                tl.store(cross + first + at, new_c, mask=live)
                c = tl.where(fresh != 0, new_c, c)
            scaled = corner[:, None] * c
            diagonal = tl.rsqrt(tl.maximum(j - scaled * scaled, 0.0) + epsilon)
            row = -corner[:, None] * diagonal * scaled
            pulled = row * bias_v[:, None] + diagonal * v  # A^T v
            push = noise - eta * pulled
            pulls, noisy_pulls = tl.where(mask, row * push, 0.0), tl.where(mask, row * noise, 0.0)
            change, noise = diagonal * push, diagonal * noise
        else:
            root = tl.rsqrt(j + epsilon)  # C for RMSProp, C^{1/2} for the diagonal Fisher metric
            if KIND == 1:
                noise = scale * tl.sqrt(root) * z
                change = noise - eta * root * v
            else:
                change, noise = root * (noise - eta * root * v), root * noise
    change, r = follow(change, noise, r, kept, SCHEME)
    if SCHEME > 0:
        tl.store(momentum + first + at, r, mask=live)
    moved = w + change
    tl.store(theta + first + at, moved, mask=live)
    if HAS_MEAN:
        tl.store(mean + first + at, mix(average, moved, mu), mask=live)
    return pulls, noisy_pulls


@triton.jit(do_not_specialize=["O", "tiles_i", "start", "fresh"])
def bias_kernel(
    bias, mean, second, momentum, prior, damping, numbers, keys, sums, squares, row_sums, O,
    tiles_i, start, fresh, KIND: tl.constexpr, HAS_MEAN: tl.constexpr,
    SCHEME: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Biases, with the pull of their weights (``row_sums``). One kernel for steps with and without
    statistics: without, gamma is 0."""
    chain = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = o < O
    live = o < tl.where(tl.load(numbers + chain * 7 + 5) > 0, O, 0)
    eta = tl.load(numbers + chain * 7)
    scale = tl.load(numbers + chain * 7 + 1)
    gamma = tl.load(numbers + chain * 7 + 2)
    at = chain * O + o
    gradient = tl.load(sums + at, mask=mask, other=0.0)
    b = tl.load(bias + at, mask=mask, other=0.0)
    precision = tl.load(prior + chain * 4 + 2) * tl.load(numbers + chain * 7 + 4)
    v = gradient + precision * (b - tl.load(prior + chain * 4 + 3))
    key0 = tl.load(keys + chain * 2).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys + chain * 2 + 1).to(tl.uint32, bitcast=True)
    z = normal_at(o + start, key0, key1)
    noise = scale * z
    if KIND == 0:
        change = noise - eta * v
    else:
        j = tl.load(second + at, mask=mask, other=1.0)
        square = gradient * gradient
        if KIND > 1:
            square = tl.load(squares + at, mask=mask, other=0.0)
        new_j = tl.where(gamma > 0, mix(j, square, gamma), j)
        tl.store(second + at, new_j, mask=live)
        j = tl.where(fresh != 0, new_j, j)
        root = tl.rsqrt(j + tl.load(damping + chain * 2 + 1))
        if KIND == 1:
            noise = scale * tl.sqrt(root) * z
            change = noise - eta * root * v
        else:
            change, noise = root * (noise - eta * root * v), root * noise
        if KIND == 3:
            whole = tl.num_programs(1).to(tl.int64) * tiles_i * O
            for first in range(0, tiles_i, TILES):  # several at once: one wait for all of them
                tile = first + tl.arange(0, TILES)
                part = row_sums + (chain * tiles_i + tile[:, None]) * O + o[None, :]
                there = (tile < tiles_i)[:, None] & mask[None, :]
                change += tl.sum(tl.load(part, mask=there, other=0.0), axis=0)
                if SCHEME == 2:
                    noise += tl.sum(tl.load(part + whole, mask=there, other=0.0), axis=0)
    if SCHEME > 0:
        r = tl.load(momentum + at, mask=mask, other=0.0)
        change, r = follow(change, noise, r, tl.load(numbers + chain * 7 + 6), SCHEME)
        tl.store(momentum + at, r, mask=live)
    moved = b + change
    tl.store(bias + at, moved, mask=live)
    if HAS_MEAN:
        average = tl.load(mean + at, mask=mask, other=0.0)
        tl.store(mean + at, mix(average, moved, tl.load(numbers + chain * 7 + 3)), mask=live)
