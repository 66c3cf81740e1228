"""Counter-based random numbers: every draw is a pure function of its address.

An address is (seed, purpose, chain, step, tensor, element). There is no generator state, so
resuming a run or changing the number of chains never changes a draw (compiling the step, or
another device, changes its rounding), and PyTorch's global generators are never touched.

Two integer hashes do the work, both public and well studied:

* a 64-bit finaliser (Stafford's variant 13, as in SplitMix64) turns (seed, purpose, chain, step)
  into a pair of 32-bit keys, once per chain and step;
* a three-round 32-bit multiply-xorshift permutation (constants of Wellons' ``triple32``), with
  the second key injected after its first round, turns the element's index into 32 random bits.

Normals come from the Box-Muller transform of two words: elements i and i + 16 of every block of
32 form a pair, so that both loads and stores are contiguous runs. The smallest uniform is 2^-32,
which puts the largest possible draw at sqrt(64 ln 2) = 6.66 standard deviations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _len_torch_dispatch_stack

from natural_langevin._internal.gpu_kernels import Trial, allowed, tried, usable

# What a stream is for. Streams of different purposes never share a key.
NOISE, INIT, DATA, LABELS, HELD_OUT, EXCHANGE = range(6)

#: Normals are made in blocks of this many.
BLOCK = 32
_HALF = BLOCK // 2
#: Words of one stream: indices are 32-bit integers.
ADDRESSES = 1 << 32

#: cos(2 pi u) as a polynomial in u^2 for |u| <= 1/2: interpolation at Chebyshev nodes, rounded to
#: float32. The error, rounding included, is below 5e-7.
COSINE = (
    1.0, -19.73920440673828, 64.93911743164062, -85.45011138916016,
    60.16743087768555, -25.96688461303711, 6.527706146240234,
)  # fmt: skip


#: Normals of one key from which on a CPU has them from compiled code, where there is any.
NATIVE_FROM = 1 << 12
_NATIVE: list[Callable[[Tensor, int, int], Tensor | None]] = []


def use_native(draw: Callable[[Tensor, int, int], Tensor | None]) -> None:
    """From now on long runs of normals on a CPU come from ``draw(key, count, start)``: the same
    draws, but for rounding; None where it has none."""
    _NATIVE[:] = [draw]


def _signed(value: int, bits: int) -> int:
    """The two's complement reading of an unsigned constant: torch has no unsigned arithmetic."""
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


_M1, _M2 = _signed(0xBF58476D1CE4E5B9, 64), _signed(0x94D049BB133111EB, 64)
_GOLDEN = _signed(0x9E3779B97F4A7C15, 64)
_T1, _T2, _T3 = (_signed(c, 32) for c in (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB))


def _shift_right(x: Tensor, count: int, bits: int) -> Tensor:
    """Logical right shift (torch's is arithmetic)."""
    return (x >> count) & ((1 << (bits - count)) - 1)


def _mix64(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30, 64)) * _M1
    z = (z ^ _shift_right(z, 27, 64)) * _M2
    return z ^ _shift_right(z, 31, 64)


def origin(seed: int, purpose: int, chain: Tensor) -> Tensor:
    """Where the streams of (seed, purpose, chain) start: int64, the shape of ``chain``.

    Constant along a run, so that a step only pays for ``stream``.
    """
    chain = chain.to(torch.int64)
    z = _mix64(torch.full_like(chain, seed) + _GOLDEN)
    z = _mix64(z + (purpose + 1))
    return _mix64(z ^ (chain * _M2 + _GOLDEN))


def later(origin: Tensor, steps: int) -> Tensor:
    """The origin whose step t is step t + ``steps`` of this one.

    >>> at = origin(0, NOISE, torch.arange(3))
    >>> torch.equal(stream(later(at, 5), 2), stream(at, 7))
    True
    """
    return origin + torch.as_tensor(steps, device=origin.device) * _GOLDEN


def stream(origin: Tensor, step: Tensor | int) -> Tensor:
    """Key of the stream at this step: int32, shape ``origin.shape + (2,)``.

    >>> key = stream(origin(0, NOISE, torch.arange(3)), 7)
    >>> tuple(key.shape), key.dtype
    ((3, 2), torch.int32)
    """
    if isinstance(step, Tensor) and step.ndim == 0 and origin.ndim == 1:
        kernels = _kernels(origin)
        if kernels is not None:
            return kernels.stream(origin.contiguous(), step)
    if isinstance(step, int) and origin.ndim == 1 and _has_memory(origin):
        # Twenty operations on a few numbers, in a fifth of torch's time.
        n = origin.numpy().view(np.uint64) + np.uint64((step + 1) * _GOLDEN % (1 << 64))
        n = (n ^ (n >> np.uint64(30))) * np.uint64(_M1 % (1 << 64))
        n = (n ^ (n >> np.uint64(27))) * np.uint64(_M2 % (1 << 64))
        return torch.from_numpy((n ^ (n >> np.uint64(31))).view(np.int32).reshape(-1, 2))
    z = _mix64(origin + (torch.as_tensor(step, device=origin.device) + 1) * _GOLDEN)
    return z.view(torch.int32).unflatten(-1, (-1, 2))


def bits(key: Tensor, count: int, *, start: int = 0) -> Tensor:
    """Words ``start`` to ``start + count`` of every key's stream, 32 random bits each: int32,
    shape ``key.shape[:-1] + (count,)``.

    For one key the map from index to word is a bijection of the 32-bit integers.
    """
    index = torch.arange(start, start + count, dtype=torch.int32, device=key.device)
    x = index + key[..., 0, None]
    x = (x ^ _shift_right(x, 17, 32)) * _T1
    x = (x ^ _shift_right(x, 11, 32)) + key[..., 1, None]
    x = x * _T2
    x = (x ^ _shift_right(x, 15, 32)) * _T3
    return x ^ _shift_right(x, 14, 32)


def _open_unit(word: Tensor) -> Tensor:
    """31 of a word's bits as float32 in (0, 1]: never 0, so that a logarithm may follow."""
    return ((word & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-31


def uniform(key: Tensor, count: int) -> Tensor:
    """Uniform draws in (0, 1]: float32, shape ``key.shape[:-1] + (count,)``."""
    return _open_unit(bits(key, count))


def normal(key: Tensor, count: int, *, start: int = 0) -> Tensor:
    """Standard normal draws ``start`` to ``start + count`` of every key's stream: float32, shape
    ``key.shape[:-1] + (count,)``. ``start`` is a multiple of 32.

    >>> two, one = origin(0, NOISE, torch.arange(2)), origin(0, NOISE, torch.arange(1))
    >>> bool((normal(stream(two, 0), 5)[0] == normal(stream(one, 0), 5)[0]).all())
    True
    """
    if start % BLOCK:
        raise ValueError(f"start must be a multiple of {BLOCK}, got {start}")
    kernels = _kernels(key) if key.ndim == 2 and start + count < 1 << 31 else None
    if kernels is not None:
        return kernels.normal(key.contiguous(), count, start)
    if count >= NATIVE_FROM and _NATIVE and _has_memory(key):
        found = _NATIVE[0](key, count, start)
        if found is not None:
            return found
    blocks = -(-count // BLOCK)
    words = bits(key, blocks * BLOCK, start=start).unflatten(-1, (blocks, 2, _HALF))
    radius = torch.sqrt(-2.0 * torch.log(_open_unit(words[..., 0, :])))
    cos, sin = _cos_sin(words[..., 1, :])
    return torch.stack([radius * cos, radius * sin], dim=-2).flatten(-3)[..., :count]


def _has_memory(key: Tensor) -> bool:
    """Whether a function of our own may read a CPU tensor now: nobody traces or transforms it."""
    return (
        key.device.type == "cpu"
        and type(key) is Tensor
        and not torch.compiler.is_compiling()
        and allowed()
        and torch._C._functorch.peek_interpreter_stack() is None
        and not _len_torch_dispatch_stack()
    )


def _kernels(on: Tensor) -> Any:
    """The same functions as Triton kernels, for a plain tensor on a GPU; or None."""
    return _tried_kernels(on.device) if usable(on) else None


@cache
def _tried_kernels(device: torch.device) -> Any:
    def trial() -> Trial:
        from natural_langevin._internal import triton_random

        at, step = origin(0, NOISE, torch.arange(3, device=device)), torch.tensor(5, device=device)
        key = stream(at, step)
        triton_random.build_both(at, step)
        found = triton_random.normal(key, 70, 32), triton_random.stream(at, step).double()
        return triton_random, found, (normal(key, 70, start=32), key.double())

    return tried(device, "generators", trial)


def aligned_starts(sizes: Iterable[int]) -> list[int]:
    """Where tensors of these sizes start in a stream, so that none shares a block with another.

    >>> aligned_starts([5, 40, 1])
    [0, 32, 96]
    """
    blocks = itertools.accumulate((-(-size // BLOCK) for size in sizes), initial=0)
    *starts, end = [BLOCK * before for before in blocks]
    check_addresses(end)
    return starts


def check_addresses(end: int) -> None:
    """Refuses more normals than a stream has addresses for, of all draws of a step together."""
    if end > ADDRESSES:
        raise ValueError(
            f"a chain's stream has 2^32 normals per step, and {end} are needed: beyond that the "
            "noise of weights would repeat. Sample a part of the network (requires_grad_(False)), "
            "or with dynamics that draw once per step"
        )


def _cos_sin(word: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of word / 2^32 turns.

    A general cosine spends most of its time on large arguments; half a turn needs one polynomial,
    and a sine is the cosine a quarter of a turn earlier, which is an integer subtraction. Eagerly a
    polynomial is many passes over memory, and torch's own functions are faster.
    """
    if not torch.compiler.is_compiling():
        angle = word.to(torch.float32) * (math.pi * 2.0**-31)
        return torch.cos(angle), torch.sin(angle)
    return _cos_turns(word), _cos_turns(word - (1 << 30))


def _cos_turns(word: Tensor) -> Tensor:
    turns = word.to(torch.float32) * 2.0**-32
    square = turns * turns
    result = torch.full_like(square, COSINE[-1])
    for coefficient in reversed(COSINE[:-1]):
        result = result * square + coefficient
    return result


def permutation(key: Tensor, count: int) -> Tensor:
    """A random permutation of ``range(count)`` for every key: int64, ``key.shape[:-1] + (count,)``.

    Stable sorting breaks the rare ties between 32-bit sort keys the same way everywhere.
    """
    return torch.argsort(bits(key, count), dim=-1, stable=True)
