"""The engine runs Algorithm 1 for many steps: eager, compiled, or as a CUDA graph.

All three run the same function, ``Dynamics.step``. What a step needs from outside (its rates, its
minibatch) is read from tensors at the step counter that lives in the state, so nothing waits for
the host. Compiled and captured, the new state is written over the old one, which keeps every
buffer where it is. Nothing that differs between two runs of the same network is a constant of the
compiled code (the number of data is a tensor), so the compiler's cache serves the next run too.
"""

from __future__ import annotations

import logging
import time
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.allocator import keep_pages
from natural_langevin._internal.trees import copy_tree_
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.overdamped import Dynamics, Info, Rates, State
from natural_langevin.execution import kernels

log = logging.getLogger("natural_langevin")

Mode = Literal["eager", "compiled"]
Batch = tuple[Tensor, Tensor]

#: Compiling takes tens of seconds. It saves a part of the arithmetic, and a few milliseconds of
#: overhead per step: it is repaid by this many multiply-adds, or by this many steps.
COMPILE_FROM_WORK, COMPILE_FROM_STEPS = 2e12, 10_000


def choose_mode(compile: bool | str, *, work: float, steps: int) -> Mode:
    """``compile`` as the user gave it; "auto" compiles runs that are long enough to repay it."""
    if compile not in (True, False, "auto"):
        raise ValueError(f'compile must be True, False or "auto", got {compile!r}')
    if compile == "auto":
        compile = work >= COMPILE_FROM_WORK or steps >= COMPILE_FROM_STEPS
    return "compiled" if compile else "eager"


class StepInputs(NamedTuple):
    """What a step needs from outside."""

    batch: Batch
    rates: Rates
    num_data: Tensor
    chain_axis: bool  # whether the batch has one


class Engine:
    """Advances states along one stream of data.

    ``rates`` has a row per step: eta of every chain, gamma, mu.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        stream: Stream,
        rates: Tensor,
        num_data: float,
        *,
        mode: Mode = "eager",
        fuse: bool = True,
    ) -> None:
        self.dynamics, self.stream, self.num_data, self.mode = dynamics, stream, num_data, mode
        self.rates = rates
        self._count = torch.tensor(float(num_data), dtype=rates.dtype, device=rates.device)
        self._order: Tensor | None = None
        self._epoch = -1
        self._fuse = fuse
        #: Told when the step is compiled, which takes a while; whoever shows progress listens.
        self.say: Callable[[str], None] = lambda text: None
        self._compiled: Any = None
        self._capturable = True
        self._captured: tuple[torch.cuda.CUDAGraph, State, Info] | None = None

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """``count`` updates from ``state``, which has seen ``start``; compiled, in its memory."""
        info: Info | None = None
        if self._captured is not None and state is not self._captured[1]:
            copy_tree_(self._captured[1], state)  # the graph works on the memory it was captured on
        for step in range(start, start + count):
            self._shuffle(step)
            batch = None if isinstance(self.stream, InMemory) else self.stream.batch(step)
            if batch is not None:  # a DataLoader's last batch may be shorter than the others
                one = batch[0][0] if self.stream.chain_axis else batch[0]
                self.dynamics.gradients.prepare(state.params, one)
            if self.mode == "eager":
                state, info = self._eager_step(state, batch)
            elif self._captured is not None:
                graph, state, info = self._captured
                graph.replay()
            else:
                info = self._compiled_step(state, batch)
        assert info is not None
        return state, info

    def _shuffle(self, step: int) -> None:
        """Puts the permutations of this step's epoch where the step looks for them."""
        if not isinstance(self.stream, InMemory):
            return
        epoch = step // self.stream.batches_per_epoch
        if epoch != self._epoch:
            order = self.stream.order(epoch)
            if self._order is None:
                self._order = order.clone()
            else:
                self._order.copy_(order)
            self._epoch = epoch

    def inputs(self, state: State, batch: Batch | None, order: Tensor | None) -> StepInputs:
        """This step's minibatch and rates; in memory, looked up at the state's own counter."""
        # index_select, because indexing with a 0-d tensor would wait for its value on the host.
        row = self.rates.index_select(0, state.step.reshape(1))[0]
        rates = Rates(step_size=row[:-2], decay=row[-2], mean=row[-1])
        if batch is not None:
            return StepInputs(batch, rates, self._count, self.stream.chain_axis)
        assert isinstance(self.stream, InMemory)
        assert order is not None
        return StepInputs(self.stream.gather(order, state.step), rates, self._count, True)

    def _eager_step(self, state: State, batch: Batch | None) -> tuple[State, Info]:
        batch, rates, count, chain_axis = self.inputs(state, batch, self._order)
        return self.dynamics.step(state, batch, rates, count, chain_axis=chain_axis)

    def _step_in_place(self, state: State, batch: Batch | None, order: Tensor | None) -> Info:
        batch, rates, count, chain_axis = self.inputs(state, batch, order)
        new, info = self.dynamics.step(state, batch, rates, count, chain_axis=chain_axis)
        pytree.tree_map(lambda old, value: old.copy_(value), state, new)
        return info

    def _compiled_step(self, state: State, batch: Batch | None) -> Info:
        if self._compiled is None:
            self.say("compiling the step: up to a minute the first time, then from the cache")
            started = time.monotonic()
            self._compiled = self._build(state, batch)
            before = pytree.tree_map(torch.clone, state)  # a step that breaks off leaves half of it
            try:
                info = self._compiled(state, batch, self._order)
            except Exception as error:  # no compiler on this machine, or a network it cannot take
                log.warning("compiling failed (%s); running eagerly", _first_line(error))
                self._compiled, self._capturable = self._step_in_place, False
                copy_tree_(state, before)
                return self._compiled(state, batch, self._order)
            took = f"compiled the step in {time.monotonic() - started:.0f} s"
            log.info(took)
            self.say(took)
            return info
        if state.step.is_cuda and batch is None and self._capturable:
            return self._capture(state)
        try:
            return self._compiled(state, batch, self._order)
        except Exception as error:  # batches of ever new shapes: torch compiles only so many
            if batch is None or not type(error).__module__.startswith("torch._dynamo"):
                raise
            log.warning("compiling gave up (%s); running eagerly from here", _first_line(error))
            self._compiled = self._step_in_place
            return self._compiled(state, batch, self._order)

    def _build(self, state: State, batch: Batch | None) -> Any:
        """The step to run from now on: fused where a backend can, otherwise the general one."""

        def compile(function: Any) -> Any:
            options = _same_kernels()
            if batch is None:  # every call is alike, and looking whether it is takes 0.4 ms
                options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
            own = _with_own_code(function)
            return torch.compile(own, fullgraph=True, dynamic=False, options=options)

        if state.step.device.type == "cpu":
            keep_pages()
        backend = kernels.backend_for(state.step.device) if self._fuse else None
        if backend is not None:
            tasks = kernels.plan(self.dynamics, state, batch or self.stream.example())
            if tasks:
                return kernels.FusedStep(self.dynamics, tasks, backend, self.inputs, compile)
        return compile(self._step_in_place)

    def _capture(self, state: State) -> Info:
        """Records one step as a CUDA graph. Capturing runs nothing, so the step is replayed."""
        self._capturable = False  # once
        try:
            with torch.cuda.device(state.step.device):
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    info = self._compiled(state, None, self._order)
        except RuntimeError as error:  # something in the network waits for the host
            log.warning("no CUDA graph (%s); launching kernels one by one", _first_line(error))
            return self._compiled(state, None, self._order)
        self._captured = (graph, state, info)
        graph.replay()
        return info


def _same_kernels() -> dict[str, Any]:
    """Kernels chosen by rule, not by timing: another order of summation is another rounding."""
    known = "deterministic" in torch._inductor.list_options()
    return {"deterministic": True} if known else {}


def _with_own_code(method: Any) -> Any:
    """A bound method whose code object is a copy.

    ``torch.compile`` keeps what it compiled with the code object, and tells one engine's from
    another's by guards, of which a code object may have only a few sets. Each engine compiles
    once, for itself."""
    function = method.__func__
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return types.MethodType(copied, method.__self__)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
