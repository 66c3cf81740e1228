"""What a step does beside its network, as two Triton kernels instead of sixty small launches.

``begin`` looks everything up at the state's own counter: the chains' minibatches, rates, noise
scale and keys. ``end`` decides from the losses which chains go on, and counts the step. Both are
for steps whose parameters are all moved by layer kernels, with data in memory; ``FusedStep`` does
the same by plain operations where they are not.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import torch
import triton
import triton.language as tl
from torch import Tensor

from natural_langevin._internal.gpu_build import Launch, build, launch, side_by_side
from natural_langevin._internal.triton_random import key_at
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Kind
from natural_langevin.execution.kernels.layer import Begun, Given, LayerInputs, LayerTask
from natural_langevin.execution.kernels.triton_linear import update_layer_
from natural_langevin.execution.kernels.triton_perceptron import Perceptron
from natural_langevin.execution.stepping import StepData
from natural_langevin.statistics import DeferredCall


@triton.jit
def _copy_rows(source, target, rows, to, inside, first, words, WORDS: tl.constexpr):
    """Words ``first`` to ``first + WORDS`` of some rows of (N, words) become those of ``to``."""
    k = first + tl.arange(0, WORDS)
    mask = inside[:, None] & (k < words)[None, :]
    value = tl.load(source + rows[:, None] * words + k[None, :], mask=mask, other=0)
    tl.store(target + to[:, None] * words + k[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["chains", "width", "share", "kept", "length", "B", "batches"])
def _begin_kernel(
    step, now, table, temperature, count, origin, numbers, keys, order, x, y, x_out, y_out,
    chains, width, share, kept, length, B, batches, x_words, y_words, BOTH: tl.constexpr,
    ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    chain, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = n < B
    t = tl.load(step)
    rows = tl.load(order + chain * length + (t % batches) * B + n, mask=inside, other=0)
    to = chain * B + n
    if BOTH:
        _copy_rows(x, x_out, rows, to, inside, part * WORDS, x_words, WORDS)
    if part == 0:
        for first in range(0, y_words, WORDS):
            _copy_rows(y, y_out, rows, to, inside, first, y_words, WORDS)
    if (part == 0) & (tl.program_id(0) == 0):
        tl.store(now, t)  # for ``end``, which counts on where this one reads: all write the same
        tl.store(keys + chain, key_at(tl.load(origin + chain), t))
        eta = tl.load(table + t * width + chain)
        data = tl.load(count)
        scale = tl.sqrt_rn(tl.div_rn(2.0 * share * eta * tl.load(temperature + chain), data))
        tl.store(numbers + chain * 7, eta)
        tl.store(numbers + chain * 7 + 1, scale)
        tl.store(numbers + chain * 7 + 2, tl.load(table + t * width + chains))
        tl.store(numbers + chain * 7 + 3, tl.load(table + t * width + chains + 1))
        tl.store(numbers + chain * 7 + 4, tl.div_rn(1.0, data))
        tl.store(numbers + chain * 7 + 6, kept)


@triton.jit(do_not_specialize=["chains", "parts"])
def _end_kernel(
    losses, loss, now, step, diverged, stopped, numbers, chains, parts, BLOCK: tl.constexpr
):
    chain = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = chain < chains
    t = tl.load(now)
    before = tl.load(diverged + chain, mask=inside, other=0)
    mean = tl.zeros([BLOCK], tl.float32)
    for part in range(0, parts):
        mean += tl.load(losses + chain * parts + part, mask=inside, other=0.0)
    tl.store(loss + chain, mean, mask=inside)
    finite = tl.abs(mean) < float("inf")  # not: NaN
    keep = (before < 0) & finite
    after = tl.where((before < 0) & (keep == 0), t, before)
    tl.store(diverged + chain, after, mask=inside)
    tl.store(stopped + chain, (after >= 0).to(tl.int8), mask=inside)
    tl.store(numbers + chain * 7 + 5, keep.to(tl.float32), mask=inside)
    tl.store(step, t + 1)


class Bookkeeping:
    """The two kernels, and where they write."""

    def __init__(self, dynamics: LangevinDynamics, data: StepData, state: State) -> None:
        stream = data.stream
        assert isinstance(stream, InMemory)
        chains, device, size = state.chains, state.step.device, stream.batch_size
        self._numbers = torch.zeros(chains, 7, device=device)
        self._keys = torch.zeros(chains, dtype=torch.int64, device=device)
        self._now = torch.zeros((), dtype=torch.int64, device=device)
        both = [stream.x] if stream.x is not stream.y else []
        self._batch = [t.new_empty(chains, size, *t.shape[1:]) for t in (*both, stream.y)]
        self._words = [_words(t) for t in (*both, stream.y)]
        # T / beta: the kernels divide by N.
        temperature = dynamics.temperature / dynamics.weight(1.0)
        self._temperature = temperature.to(torch.float32).contiguous()
        self._share, self._kept, _ = dynamics.integrator.kernel_update

    @staticmethod
    def serves(dynamics: LangevinDynamics, data: StepData, state: State) -> bool:
        """Whether data and rates lie as the kernels read them."""
        stream, rates = data.stream, data.rates.values
        return (
            isinstance(stream, InMemory)
            and all(_words(t) is not None for t in (stream.x, stream.y))
            and rates.dtype == torch.float32
            and rates.is_contiguous()
            and all(p.dtype == torch.float32 for p in state.params.values())
        )

    def begin(
        self,
        dynamics: LangevinDynamics,
        data: StepData,
        state: State,
        kind: Kind,
        run: Launch = launch,
    ) -> Begun:
        """The batch, ``LayerInputs.numbers`` but for whether chains go on, and the keys."""
        stream, rates = data.stream, data.rates.values
        assert isinstance(stream, InMemory)
        assert data.order is not None
        chains, (y, y_out) = state.chains, (self._words[-1], self._batch[-1])
        x, x_out = self._words[0], self._batch[0]
        assert x is not None
        assert y is not None
        grid = -(-stream.batch_size // 16), chains, -(-x.shape[1] // 64)
        run(
            _begin_kernel, grid, state.step, self._now, rates,
            self._temperature, data.count, dynamics.noise, self._numbers, self._keys, data.order,
            x, y, x_out.view(torch.int32), y_out.view(torch.int32), chains, rates.shape[1],
            0.0 if kind.explores else float(self._share), float(self._kept),
            data.order.shape[1], stream.batch_size, stream.batches_per_epoch,
            x.shape[1], y.shape[1], BOTH=len(self._batch) == 2, ROWS=16, WORDS=64,
        )  # fmt: skip
        keys = self._keys.view(torch.int32).unflatten(-1, (-1, 2))
        return Begun((x_out, y_out), self._numbers, keys)

    def end(self, state: State, losses: Tensor, run: Launch = launch) -> Info:
        """Sums the parts of losses, (chain, part), writes which chains go on into the numbers, and
        counts."""
        stopped = torch.empty_like(state.diverged, dtype=torch.bool)
        loss, block = self._numbers.new_empty(state.chains), 1024
        run(
            _end_kernel, (-(-state.chains // block),), losses.contiguous(), loss, self._now,
            state.step, state.diverged, stopped.view(torch.int8), self._numbers, state.chains,
            losses.shape[1], BLOCK=block,
        )  # fmt: skip
        return Info(loss, stopped)

    @property
    def keep(self) -> Tensor:
        """Which chains go on: (chain,) bool, after ``end``."""
        return self._numbers[:, 5] > 0


def build_all(
    tasks: list[LayerTask],
    books: Bookkeeping | None,
    network: Perceptron | None,
    dynamics: LangevinDynamics,
    data: StepData,
    state: State,
    kinds: set[bool],
) -> None:
    """Compiles the kernels of a run side by side; ``kinds``: whether steps adapt."""
    stream = data.stream
    example = stream.example()[0].shape[0]
    rows = stream.batch_size if isinstance(stream, InMemory) else example
    numbers, keys = state.step.new_zeros(state.chains, 7), state.step.new_zeros(state.chains, 2)
    with suppress(Exception), torch.cuda.device(state.step.device), side_by_side():
        for task, adapts in itertools.product(tasks, kinds):
            own = task.state(state)
            inputs = LayerInputs(numbers.float(), keys.int(), adapts, fresh=False)
            if task.given:
                call: Given | DeferredCall = Given(
                    own.weight, own.weight, own.cross, own.bias, own.bias
                )
            else:
                drawn = adapts and dynamics.gradients.targets == "model"
                a = own.weight.new_empty(state.chains, rows, own.weight.shape[2])
                delta = a.new_empty(state.chains, rows, own.weight.shape[1])
                call = DeferredCall(a, delta, delta if drawn else None)
            update_layer_(task, own, call, inputs, build)
        if books is not None:
            begun = books.begin(dynamics, data, state, Kind(), build)
            if network is not None:
                network(state, begun.batch, build)
            books.end(state, numbers[:, :1].float(), build)


def _words(data: Tensor) -> Tensor | None:
    """(N, ...) as (N, words) of 32 bits; None where rows are no whole number of them."""
    if not data.is_contiguous() or data.element_size() % 4 or data.is_complex():
        return None
    return data.reshape(len(data), -1).view(torch.int32) if data.numel() else None
