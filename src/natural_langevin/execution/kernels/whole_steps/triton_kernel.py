"""Whole Langevin steps of a perceptron of one to three linear layers: a program per chain.

A program takes many steps, one after the other: it gathers its chain's minibatch tile by tile, goes
forward and backward, adds up gradients and statistics in registers, and moves its layers. What a
chain holds (a few thousand numbers) stays in the caches of its multiprocessor. Rows and data of the
next tiles are asked for before they are needed, because for one chain waiting is what a step costs.

Layers are numbered from the input; the last one is number 3, also where there are fewer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from natural_langevin._internal.triton_random import key_at
from natural_langevin.execution.kernels.triton_linear_kernels import mix
from natural_langevin.execution.kernels.whole_steps.triton_network import (
    activate,
    add_sums,
    linear,
    of_bias,
    output_gradient,
    send_back,
    with_ones,
)
from natural_langevin.execution.kernels.whole_steps.triton_update import move_layer

#: Arguments that change from launch to launch: nothing is compiled anew for them.
NUMBERS = (
    "chains", "start", "count", "first_step", "first_epoch", "kept_rows", "num_rows", "batches",
    "B", "targets", "outputs", "num_data", "share", "kept", "variance", "fresh",
)  # fmt: skip


@triton.jit
def _row_numbers(
    order, chain, q, start, first_epoch, kept_rows, num_rows, batches, B, TILES: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Data rows of tile number ``q`` from step ``start`` on."""
    step = start + q // TILES
    n = (q % TILES) * TILE + tl.arange(0, TILE)
    first = (step // batches - first_epoch) * num_rows + (step % batches) * B
    return tl.load(order + chain * kept_rows + first + n, mask=n < B, other=0).to(tl.int64)


@triton.jit
def _samples(
    x, y, rows, I, targets, LIKELIHOOD: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr
):
    """Inputs (sample, input) and targets (sample, output), or classes (sample,)."""
    i, o = tl.arange(0, WIDTH), tl.arange(0, OUTPUTS)
    inputs = tl.load(x + rows[:, None] * I + i[None, :], mask=(i < I)[None, :], other=0.0)
    if LIKELIHOOD == 0:
        wanted = tl.load(y + rows)
    else:
        at = rows[:, None] * targets + o[None, :]
        wanted = tl.load(y + at, mask=(o < targets)[None, :], other=0.0)
    return inputs, wanted


@triton.jit
def _parameters(
    weight, bias, chain, O, I, HAS_BIAS: tl.constexpr, UNITS: tl.constexpr, WIDTH: tl.constexpr
):
    """A layer's weights (unit, input) and biases (unit,), 0 where there are none."""
    o, i = tl.arange(0, UNITS), tl.arange(0, WIDTH)
    mask = (o < O)[:, None] & (i < I)[None, :]
    w = tl.load(weight + chain * O * I + o[:, None] * I + i[None, :], mask=mask, other=0.0)
    b = tl.zeros([UNITS], tl.float32)
    if HAS_BIAS:
        b = tl.load(bias + chain * O + o, mask=o < O, other=0.0)
    return w, b


@triton.jit(do_not_specialize=NUMBERS)
def steps_kernel(
    x, y, order, table, temperature, origin, diverged, losses, learned,
    w1, m1, j1, c1, r1, b1, bm1, bj1, br1, prior1, damping1, start1, bias_start1,
    w2, m2, j2, c2, r2, b2, bm2, bj2, br2, prior2, damping2, start2, bias_start2,
    w3, m3, j3, c3, r3, b3, bm3, bj3, br3, prior3, damping3, start3, bias_start3,
    I, O1, O2, O3, I3, chains, start, count, first_step, first_epoch, kept_rows, num_rows, batches,
    B, targets, outputs, num_data, share, kept, variance, fresh,
    LAYERS: tl.constexpr, WIDTH: tl.constexpr, H1: tl.constexpr, H2: tl.constexpr,
    H3: tl.constexpr, OUTPUTS: tl.constexpr, ACT1: tl.constexpr, ACT2: tl.constexpr,
    ACT3: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BIAS1: tl.constexpr,
    BIAS2: tl.constexpr, BIAS3: tl.constexpr, FREE1: tl.constexpr, FREE2: tl.constexpr,
    FREE3: tl.constexpr,
    LIKELIHOOD: tl.constexpr, LEARNS: tl.constexpr, METRIC: tl.constexpr, SCHEME: tl.constexpr,
    HAS_MEAN: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``count`` steps from ``start`` on. WIDTH, H1, H2 and OUTPUTS are the padded inputs of the
    network and units of its layers, H3 the padded inputs of the last; ACT1 to ACT3 the activations
    and FIRST and SECOND their numbers; FREE1 to FREE3: whether inputs have a padded column."""
    chain = tl.program_id(0).to(tl.int64)
    stopped = tl.load(diverged + chain)
    heat, from_data = tl.load(temperature + chain), tl.load(origin + chain)
    width = variance
    if LEARNS:
        width = tl.load(learned + chain)
    tiles = count * TILES
    rows = _row_numbers(
        order, chain, 0, start, first_epoch, kept_rows, num_rows, batches, B, TILES, TILE
    )
    a0, wanted = _samples(x, y, rows, I, targets, LIKELIHOOD, WIDTH, OUTPUTS)
    rows = _row_numbers(
        order, chain, tl.minimum(1, tiles - 1), start, first_epoch, kept_rows, num_rows, batches, B,
        TILES, TILE,
    )  # fmt: skip
    for k in range(0, count):
        step = start + k
        # The same number, but no compiler knows: the addresses of all that a chain holds would
        # otherwise be worked out before the loop, and there are not registers for them.
        own = chain + (k >> 30)
        line = table + (step - first_step).to(tl.int64) * (chains + 2)
        eta, gamma, mu = tl.load(line + chain), tl.load(line + chains), tl.load(line + chains + 1)
        w_3, b_3 = _parameters(w3, b3, own, O3, I3, BIAS3, OUTPUTS, H3)
        g_3, gb_3 = tl.zeros([OUTPUTS, H3], tl.float32), tl.zeros([OUTPUTS], tl.float32)
        s_3, x_3, sb_3 = g_3, g_3, gb_3
        if LAYERS > 1:
            w_1, b_1 = _parameters(w1, b1, own, O1, I, BIAS1, H1, WIDTH)
            g_1, gb_1 = tl.zeros([H1, WIDTH], tl.float32), tl.zeros([H1], tl.float32)
            s_1, x_1, sb_1 = g_1, g_1, gb_1
        if LAYERS > 2:
            w_2, b_2 = _parameters(w2, b2, own, O2, O1, BIAS2, H2, H1)
            g_2, gb_2 = tl.zeros([H2, H1], tl.float32), tl.zeros([H2], tl.float32)
            s_2, x_2, sb_2 = g_2, g_2, gb_2
        total = tl.zeros([TILE], tl.float32)
        for tile in range(0, TILES):
            inputs, labels = a0, wanted
            a0, wanted = _samples(x, y, rows, I, targets, LIKELIHOOD, WIDTH, OUTPUTS)
            ahead = tl.minimum(k * TILES + tile + 2, tiles - 1)
            rows = _row_numbers(
                order, chain, ahead, start, first_epoch, kept_rows, num_rows, batches, B, TILES,
                TILE,
            )  # fmt: skip
            inputs = with_ones(inputs, I, FREE1)
            a = inputs
            if LAYERS > 1:
                a1, slope1 = activate(linear(inputs, w_1, b_1, PRECISION), ACT1, FIRST, SECOND)
                a1 = with_ones(a1, O1, FREE2)
                a = a1
            if LAYERS > 2:
                a2, slope2 = activate(linear(a1, w_2, b_2, PRECISION), ACT2, FIRST, SECOND)
                a2 = with_ones(a2, O2, FREE3)
                a = a2
            f, slope3 = activate(linear(a, w_3, b_3, PRECISION), ACT3, FIRST, SECOND)
            in_n = tile * TILE + tl.arange(0, TILE) < B
            in_o = tl.arange(0, OUTPUTS) < O3
            loss, d3 = output_gradient(f, labels, in_n, in_o, LIKELIHOOD)
            total += loss
            d3 = d3 * slope3
            g_3, s_3, x_3, gb_3, sb_3 = add_sums(
                g_3, s_3, x_3, gb_3, sb_3, d3, a, gamma, METRIC, BIAS3, FREE3, PRECISION
            )
            if LAYERS > 1:
                below = send_back(d3, w_3, PRECISION)
            if LAYERS > 2:
                d2 = below * slope2
                g_2, s_2, x_2, gb_2, sb_2 = add_sums(
                    g_2, s_2, x_2, gb_2, sb_2, d2, a1, gamma, METRIC, BIAS2, FREE2, PRECISION
                )
                below = send_back(d2, w_2, PRECISION)
            if LAYERS > 1:
                d1 = below * slope1
                g_1, s_1, x_1, gb_1, sb_1 = add_sums(
                    g_1, s_1, x_1, gb_1, sb_1, d1, inputs, gamma, METRIC, BIAS1, FREE1, PRECISION
                )
        # From sums to means, and the likelihood's own width.
        per_sample = 1.0 / B.to(tl.float32)
        mean_loss, by = tl.sum(total, axis=0) * per_sample, 1.0
        new_width = width
        if LIKELIHOOD == 2:
            if LEARNS:
                rate = tl.rsqrt((step + 1).to(tl.float32))
                new_width = mix(width, tl.maximum(mean_loss / outputs, 1e-12), rate)
            by = 1.0 / new_width
            constant = outputs * tl.log(6.283185307179586 * new_width)
            mean_loss = 0.5 * (mean_loss * by + constant)
        finite = tl.where(tl.abs(mean_loss) < float("inf"), 1, 0)  # not: NaN
        keep = tl.where(stopped < 0, finite, 0)
        new = tl.where(keep > 0, stopped, step.to(tl.int64))
        stopped = tl.where(stopped < 0, new, stopped)
        tl.store(losses + chain, mean_loss)
        tl.store(diverged + chain, stopped)
        if LEARNS:
            width = tl.where(keep > 0, new_width, width)
            tl.store(learned + chain, width)
        one, two = per_sample * by, per_sample * by * by
        noise = tl.sqrt(2.0 * share * eta * heat / num_data)
        rates = (eta, noise, gamma, mu, 1.0 / num_data, kept)
        key = key_at(from_data, step.to(tl.int64)).to(tl.uint64, bitcast=True)
        key0, key1 = key.to(tl.uint32), (key >> 32).to(tl.uint32)
        use_new = (fresh != 0) | (step == 0)
        move_layer(
            g_3 * one, s_3 * two, x_3 * two, of_bias(g_3, gb_3, I3, FREE3) * one,
            of_bias(s_3, sb_3, I3, FREE3) * two, w_3, b_3, w3, m3, j3, c3, r3, b3, bm3,
            bj3, br3, prior3, damping3, own, O3, I3, start3, bias_start3, key0, key1, rates,
            keep, use_new, METRIC, BIAS3, HAS_MEAN, SCHEME,
        )  # fmt: skip
        if LAYERS > 2:
            move_layer(
                g_2 * one, s_2 * two, x_2 * two, of_bias(g_2, gb_2, O1, FREE2) * one,
                of_bias(s_2, sb_2, O1, FREE2) * two, w_2, b_2, w2, m2, j2, c2, r2, b2, bm2,
                bj2, br2, prior2, damping2, own, O2, O1, start2, bias_start2, key0, key1, rates,
                keep, use_new, METRIC, BIAS2, HAS_MEAN, SCHEME,
            )  # fmt: skip
        if LAYERS > 1:
            move_layer(
                g_1 * one, s_1 * two, x_1 * two, of_bias(g_1, gb_1, I, FREE1) * one,
                of_bias(s_1, sb_1, I, FREE1) * two, w_1, b_1, w1, m1, j1, c1, r1, b1, bm1,
                bj1, br1, prior1, damping1, own, O1, I, start1, bias_start1, key0, key1, rates,
                keep, use_new, METRIC, BIAS1, HAS_MEAN, SCHEME,
            )  # fmt: skip
        # Other threads read in the next step what these have written.
        tl.debug_barrier()
