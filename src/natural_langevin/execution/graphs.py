"""CUDA graphs: a step recorded once and replayed, one launch from the host instead of hundreds.

Any step in place can be recorded that never waits for the host: eager operations, Triton kernels,
compiled code. Each kind of step (with and without statistics) and each shape of batch has a graph
of its own; all of them work on the same state. Before a recording the step has run a few times on a
side stream, as it must: libraries set themselves up in their first calls. Those are ordinary steps
of the run. What cannot be recorded runs as it did, and the log says so.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Batch
from natural_langevin._internal.cuda_graphs import WARM_UP, recording
from natural_langevin._internal.messages import first_line
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics as Dynamics
from natural_langevin.dynamics.rates import Kind
from natural_langevin.execution.stepping import InPlaceStep, StepData, overwrite

log = logging.getLogger("natural_langevin")

#: Shapes of a DataLoader's batches that get a graph; a network fed with ever new ones has none.
MOST_SHAPES = 4


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: Batch | None  # where the graph reads a DataLoader's batch
    info: Info


class GraphedStep:
    """``step``, recorded as soon as it is warm. States and batches are on one CUDA device."""

    def __init__(self, step: InPlaceStep) -> None:
        self._step = step
        self._state: State | None = None  # whose memory the graphs work on
        self._recordings: dict[Any, _Recording] = {}
        self._calls: dict[Any, int] = {}
        self._failed = False
        self._side: torch.cuda.Stream | None = None
        self._pool: Any = None

    @property
    def recorded(self) -> int:
        """How many graphs there are in use: none where a recording has failed."""
        return 0 if self._failed else len(self._recordings)

    def adopt(self, state: State) -> State:
        """The state as the graphs know it: the same values, in their memory."""
        if self._state is None or state is self._state:
            return state
        overwrite(self._state, state)
        return self._state

    def __call__(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> Info:
        if kind.first or kind.refreshes or self._failed:  # eigenvectors wait for the host
            return self._step(dynamics, data, state, batch, kind)
        key = (kind, None if batch is None else tuple((t.shape, t.dtype) for t in batch))
        found = self._recordings.get(key)
        if found is not None:
            if batch is not None and found.batch is not None:
                with torch.no_grad():
                    overwrite(found.batch, batch)
            found.graph.replay()
            return found.info
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] <= WARM_UP or len({k[1] for k in self._recordings}) >= MOST_SHAPES:
            return self._on_the_side(dynamics, data, state, batch, kind)
        return self._record(key, dynamics, data, state, batch, kind)

    def _on_the_side(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> Info:
        device = state.step.device
        if self._side is None:
            self._side = torch.cuda.Stream(device)
        current = torch.cuda.current_stream(device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            info = self._step(dynamics, data, state, batch, kind)
        current.wait_stream(self._side)
        return pytree.tree_map(torch.clone, info)  # into memory of the stream that reads it

    def _record(
        self,
        key: Any,
        dynamics: Dynamics,
        data: StepData,
        state: State,
        batch: Batch | None,
        kind: Kind,
    ) -> Info:
        """Recording runs nothing, so the step is replayed afterwards."""
        started = time.monotonic()
        static = None if batch is None else (batch[0].clone(), batch[1].clone())
        if batch is not None and static is not None and batch[0] is batch[1]:
            static = (static[0], static[0])
        try:
            with torch.cuda.device(state.step.device):
                if self._pool is None:
                    self._pool = torch.cuda.graph_pool_handle()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with recording(graph, self._pool):
                    info = self._step(dynamics, data, state, static, kind)
        except Exception as error:  # something in the network waits for the host
            log.warning("no CUDA graph (%s); launching kernels one by one", first_line(error))
            self._failed = True
            torch.cuda.synchronize()
            return self._step(dynamics, data, state, batch, kind)
        log.info("recorded a CUDA graph in %.2f s", time.monotonic() - started)
        self._state = state
        self._recordings[key] = _Recording(graph, static, info)
        graph.replay()
        return info
