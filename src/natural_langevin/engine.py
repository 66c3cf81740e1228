"""The engine runs Algorithm 1 for many steps: eager, compiled, or as a CUDA graph.

All three run the same function, ``Engine._step``: it reads the rates, the minibatch and the noise
of step t from tensors addressed by the step counter that lives in the state, so nothing in it
depends on the host. Compiled and captured, it writes the new state over the old one, which keeps
every buffer where it is.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.langevin import Dynamics, Info, Rates, State

log = logging.getLogger("natural_langevin")

Mode = Literal["eager", "compiled"]

#: Below this many multiply-adds in a whole run, compiling costs more than it saves.
COMPILE_FROM = 2e11


def choose_mode(compile: bool | str, work: float, device: torch.device) -> Mode:
    """``compile`` as the user gave it; "auto" compiles runs that are long enough to repay it."""
    if compile not in (True, False, "auto"):
        raise ValueError(f'compile must be True, False or "auto", got {compile!r}')
    if compile == "auto":
        compile = work >= COMPILE_FROM
    return "compiled" if compile else "eager"


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
    ) -> None:
        self.dynamics, self.stream, self.num_data = dynamics, stream, num_data
        self._rates = rates
        self._order: Tensor | None = None
        self._mode = mode
        self._compiled: Any = None
        self._graph: Any = None
        self._epoch = -1

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """``count`` updates from ``state``, which has seen ``start``; compiled, in its memory."""
        info: Info | None = None
        for step in range(start, start + count):
            self._shuffle(step)
            batch = None if isinstance(self.stream, InMemory) else self.stream.batch(step)
            if self._mode == "eager":
                state, info = self._step(state, batch)
            else:
                info = self._compiled_step(state, batch)
        assert info is not None
        return state, info

    def _shuffle(self, step: int) -> None:
        """Puts the permutations of this step's epoch where the step function looks for them."""
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

    def _step(self, state: State, batch: tuple[Tensor, Tensor] | None) -> tuple[State, Info]:
        # index_select, because indexing with a 0-d tensor would wait for its value on the host.
        row = self._rates.index_select(0, state.step.reshape(1))[0]
        rates = Rates(step_size=row[:-2], decay=row[-2], mean=row[-1])
        chain_axis = batch is None
        if batch is None:
            assert isinstance(self.stream, InMemory)
            assert self._order is not None
            batch = self.stream.gather(self._order, state.step)
        return self.dynamics.step(state, batch, rates, self.num_data, chain_axis=chain_axis)

    def _step_in_place(self, state: State, batch: tuple[Tensor, Tensor] | None) -> Info:
        new, info = self._step(state, batch)
        pytree.tree_map(lambda old, value: old.copy_(value), state, new)
        return info

    def _compiled_step(self, state: State, batch: tuple[Tensor, Tensor] | None) -> Info:
        if self._graph is not None:
            graph, info = self._graph
            graph.replay()
            return info
        if self._compiled is None:
            self._compiled = torch.compile(self._step_in_place, fullgraph=True, dynamic=False)
            started = time.monotonic()
            try:
                info = self._compiled(state, batch)
            except Exception as error:  # no compiler on this machine, or a network it cannot take
                log.warning("compiling failed (%s); running eagerly", _first_line(error))
                self._mode = "eager"
                self._compiled = self._step_in_place
                return self._step_in_place(state, batch)
            log.info("compiled the step in %.0f s", time.monotonic() - started)
            return info
        if state.step.is_cuda and batch is None:
            return self._capture(state)
        return self._compiled(state, batch)

    def _capture(self, state: State) -> Info:
        """Records one step as a CUDA graph. Capturing runs nothing, so the step is replayed."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            info = self._compiled(state, None)
        self._graph = (graph, info)
        graph.replay()
        return info


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
