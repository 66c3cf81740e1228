"""What a step does with the sums over its batch: metric, drift, noise, update and running mean.

The formulas, and the numbers of METRIC (its KIND) and SCHEME, are those of
``triton_linear_kernels``, for a whole layer at once and with its biases. The ``rates`` are eta,
sqrt(2 h eta T / N), gamma, mu, 1 / N and the kept share of the momentum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from natural_langevin._internal.triton_random import normal_at
from natural_langevin.execution.kernels.triton_linear_kernels import follow, mix


@triton.jit
def _averaged(j, at, batch, mask, gamma, use_new, other: tl.constexpr):
    """J moved on towards the batch's own where gamma > 0, and J as this step applies it."""
    old = tl.load(j + at, mask=mask, other=other)
    new = tl.where(gamma > 0, mix(old, batch, gamma), old)
    return new, tl.where(use_new, new, old)


@triton.jit
def _diagonal(v, used, z, damping, rates, METRIC: tl.constexpr):
    """Change and noise of a diagonal metric, as it is ``used``, or of none."""
    noise = rates[1] * z
    change = noise - rates[0] * v
    if METRIC > 0:
        root = tl.rsqrt(used + damping)  # C for RMSProp, C^{1/2} for the Fisher metric
        if METRIC == 1:
            noise = tl.sqrt(root) * noise
            change = noise - rates[0] * root * v
        else:
            noise = root * noise
            change = noise - rates[0] * root * root * v
    return change, noise


@triton.jit
def _moved(
    change, noise, theta, mean, momentum, at, mask, rates, HAS_MEAN: tl.constexpr,
    SCHEME: tl.constexpr,
):  # fmt: skip
    """theta after a ``change`` of which ``noise`` is noise, its running mean and its momentum."""
    r, average = change, theta
    if SCHEME > 0:
        r = tl.load(momentum + at, mask=mask, other=0.0)
        change, r = follow(change, noise, r, rates[5], SCHEME)
    theta += change
    if HAS_MEAN:
        average = mix(tl.load(mean + at, mask=mask, other=0.0), theta, rates[3])
    return theta, average, r


@triton.jit
def _store(moved, theta, mean, momentum, at, live, HAS_MEAN: tl.constexpr, SCHEME: tl.constexpr):
    tl.store(theta + at, moved[0], mask=live)
    if HAS_MEAN:
        tl.store(mean + at, moved[1], mask=live)
    if SCHEME > 0:
        tl.store(momentum + at, moved[2], mask=live)


@triton.jit
def move_layer(
    g, s, c, g_b, s_b, w, b, weight, mean, second, cross, momentum, bias, bias_mean, bias_second,
    bias_momentum, prior, damping, chain, O, I, start, bias_start, key0, key1, rates, keep, use_new,
    METRIC: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MEAN: tl.constexpr, SCHEME: tl.constexpr,
):  # fmt: skip
    """One layer of one chain, from its batch's gradient and statistics (unit, input) and (unit,);
    w and b are its parameters as they were. Nothing moves where ``keep`` is 0. All is read
    before anything is written: a number may be read by several threads."""
    o, i = tl.arange(0, w.shape[0]), tl.arange(0, w.shape[1])
    in_o, live_o = o < O, o < tl.where(keep > 0, O, 0)
    mask, live = in_o[:, None] & (i < I)[None, :], live_o[:, None] & (i < I)[None, :]
    at, place = o[:, None] * I + i[None, :], chain * O * I
    weight, mean, momentum = weight + place, mean + place, momentum + place
    second, cross, place = second + place, cross + place, chain * O
    bias, bias_mean, bias_momentum = bias + place, bias_mean + place, bias_momentum + place
    bias_second += place
    v = g + tl.load(prior + chain * 4) * rates[4] * (w - tl.load(prior + chain * 4 + 1))
    z = normal_at(at + start, key0, key1)
    epsilon = tl.load(damping + chain * 2)
    used, used_b = v, g_b  # of no metric: not read
    if METRIC == 1:
        s, s_b = g * g, g_b * g_b
    if METRIC > 0:
        s, used = _averaged(second, at, s, mask, rates[2], use_new, 1.0)
    if HAS_BIAS:
        v_b = g_b + tl.load(prior + chain * 4 + 2) * rates[4] * (b - tl.load(prior + chain * 4 + 3))
        z_b = normal_at(o + bias_start, key0, key1)
        epsilon_b = tl.load(damping + chain * 2 + 1)
        if METRIC > 0:
            s_b, used_b = _averaged(bias_second, o, s_b, in_o, rates[2], use_new, 1.0)
        change_b, noise_b = _diagonal(v_b, used_b, z_b, epsilon_b, rates, METRIC)
    if METRIC == 3 and HAS_BIAS:
        corner = tl.rsqrt(used_b + epsilon_b)[:, None]
        c, used_c = _averaged(cross, at, c, mask, rates[2], use_new, 0.0)
        scaled = corner * used_c
        diagonal = tl.rsqrt(tl.maximum(used - scaled * scaled, 0.0) + epsilon)
        row = tl.where(mask, -corner * diagonal * scaled, 0.0)
        noise = rates[1] * z
        push = noise - rates[0] * (row * v_b[:, None] + diagonal * v)  # A^T v
        change_b += tl.sum(row * push, axis=1)
        noise_b += tl.sum(row * noise, axis=1)
        change, noise = diagonal * push, diagonal * noise
    else:
        change, noise = _diagonal(v, used, z, epsilon, rates, METRIC)
    moved = _moved(change, noise, w, mean, momentum, at, mask, rates, HAS_MEAN, SCHEME)
    if HAS_BIAS:
        moved_b = _moved(
            change_b, noise_b, b, bias_mean, bias_momentum, o, in_o, rates, HAS_MEAN, SCHEME
        )
    tl.debug_barrier()
    _store(moved, weight, mean, momentum, at, live, HAS_MEAN, SCHEME)
    if METRIC > 0:  # noqa: SIM102 - the compiler knows this, a step what follows
        if rates[2] > 0:
            tl.store(second + at, s, mask=live)
            if METRIC == 3 and HAS_BIAS:
                tl.store(cross + at, c, mask=live)
            if HAS_BIAS:
                tl.store(bias_second + o, s_b, mask=live_o)
    if HAS_BIAS:
        _store(moved_b, bias, bias_mean, bias_momentum, o, live_o, HAS_MEAN, SCHEME)
