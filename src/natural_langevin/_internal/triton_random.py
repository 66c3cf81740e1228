"""The generators of ``random`` in Triton: the same words, and a launch each on a GPU.

From plain operations a key takes 14 launches and a step's normals 25, each over all of memory.
``random`` calls these where tensors are on a GPU, after it has seen them agree; layer kernels make
the normals of their weights by ``normal_at``.
"""

from __future__ import annotations

from contextlib import suppress

import torch
import triton
import triton.language as tl
from torch import Tensor

from natural_langevin._internal.gpu_build import Launch, build, launch, side_by_side

BLOCK = 1024


@triton.jit
def bits_at(index, key0, key1):
    """The 32-bit hash of ``random.bits``."""
    x = index.to(tl.uint32) + key0
    x = (x ^ (x >> 17)) * tl.full([], 0xED5AD4BB, tl.uint32)
    x = (x ^ (x >> 11)) + key1
    x = x * tl.full([], 0xAC4C1B51, tl.uint32)
    x = (x ^ (x >> 15)) * tl.full([], 0x31848BAB, tl.uint32)
    return x ^ (x >> 14)


@triton.jit
def normal_at(element, key0, key1):
    """Element ``element`` of ``random.normal``: its pair differs in bit 4 of the index."""
    second_half = element & 16
    first = element - second_half
    radius = _radius(bits_at(first, key0, key1))
    # A sine is the cosine a quarter of a turn earlier: 2^30 of 2^32.
    quarter = (second_half << 26).to(tl.uint32)
    return radius * _cosine(bits_at(first + 16, key0, key1) - quarter)


@triton.jit
def normal_rows(first, key0, key1, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """``normal_at`` of elements ``first[r]`` to ``first[r] + COLUMNS``, both multiples of 32, with
    each pair made at once: half the hashes, logarithms and roots."""
    k = tl.arange(0, COLUMNS // 2)
    element = first[:, None] + (k + (k // 16) * 16)[None, :]
    radius = _radius(bits_at(element, key0, key1))
    word = bits_at(element + 16, key0, key1)
    quarter = tl.full([], 1 << 30, tl.uint32)
    pairs = tl.join(radius * _cosine(word), radius * _cosine(word - quarter))
    pairs = tl.reshape(pairs, (ROWS, COLUMNS // 32, 16, 2))
    return tl.reshape(tl.permute(pairs, (0, 1, 3, 2)), (ROWS, COLUMNS))


@triton.jit
def _radius(word):
    low = (word & tl.full([], 0x7FFFFFFF, tl.uint32)).to(tl.int32, bitcast=True)
    uniform = (low.to(tl.float32) + 0.5) * 4.656612873077393e-10
    return tl.sqrt(-2.0 * tl.log(uniform))


@triton.jit
def _cosine(word):
    """Of word / 2^32 turns: the polynomial of ``random.COSINE``."""
    turns = word.to(tl.int32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10
    s = turns * turns
    c = 6.527706146240234
    c = c * s - 25.96688461303711
    c = c * s + 60.16743087768555
    c = c * s - 85.45011138916016
    c = c * s + 64.93911743164062
    c = c * s - 19.73920440673828
    return c * s + 1.0


@triton.jit
def key_at(origin, step):
    """The 64 bits of ``random.stream`` for an origin and a step, both int64."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    z = origin.to(tl.uint64, bitcast=True) + (step + 1).to(tl.uint64, bitcast=True) * golden
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return (z ^ (z >> 31)).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["count"])
def _stream_kernel(origin, step, keys, count, BLOCK: tl.constexpr):
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < count
    z = key_at(tl.load(origin + k, mask=inside, other=0), tl.load(step))
    tl.store(keys + k, z, mask=inside)


@triton.jit(do_not_specialize=["count", "start"])
def _normal_kernel(keys, out, count, start, BLOCK: tl.constexpr):
    chain = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key0 = tl.load(keys + chain * 2).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys + chain * 2 + 1).to(tl.uint32, bitcast=True)
    tl.store(out + chain * count + k, normal_at(k + start, key0, key1), mask=k < count)


def stream(origin: Tensor, step: Tensor, run: Launch = launch) -> Tensor:
    """``random.stream`` of origins (chain,) at a step that is on the device."""
    keys, grid = torch.empty_like(origin), (-(-len(origin) // BLOCK),)
    run(_stream_kernel, grid, origin, step, keys, len(origin), BLOCK=BLOCK)
    return keys.view(torch.int32).unflatten(-1, (-1, 2))


def normal(key: Tensor, count: int, start: int, run: Launch = launch) -> Tensor:
    """``random.normal`` of keys (chain, 2)."""
    out, grid = torch.empty(len(key), count, device=key.device), (-(-count // BLOCK), len(key))
    if out.numel():
        run(_normal_kernel, grid, key, out, count, start, BLOCK=BLOCK)
    return out


def build_both(origin: Tensor, step: Tensor) -> None:
    """Compiles the two kernels, side by side."""
    with suppress(Exception), side_by_side():
        normal(stream(origin, step, build), 1, 0, build)
