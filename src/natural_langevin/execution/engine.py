"""The engine: runs many steps, eager, by hand-written kernels, as a CUDA graph, or compiled.

All of them compute the same function, ``LangevinDynamics.step``. Which of them runs:

- ``compile=False``: eager operations alone, the reference.
- ``compile="auto"``: an executor or fused kernels where they implement the dynamics exactly, on
  CUDA recorded as a graph; nothing that takes longer than a few seconds to set up.
- ``compile=True``: ``torch.compile``, which takes up to a minute and repays it in long runs.

In all but the first the new state is written over the old one.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from natural_langevin._internal.chains import Batch, Params
from natural_langevin._internal.gpu_kernels import plain
from natural_langevin._internal.messages import first_line
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Kind, RatesTable
from natural_langevin.execution import kernels
from natural_langevin.execution.agreement import disagreement, last_bits_moved, same_losses
from natural_langevin.execution.compiled import Attempt, CompiledStep, known_steps
from natural_langevin.execution.full_data import Anchors, Pause
from natural_langevin.execution.graphs import GraphedStep
from natural_langevin.execution.kernels.native.planner import plan_native
from natural_langevin.execution.kernels.whole_steps.planner import plan_whole_steps
from natural_langevin.execution.stepping import (
    InPlaceStep,
    StepData,
    pure_step,
    shape_of,
    step_in_place,
)
from natural_langevin.execution.traced import TracedFunction, TracedStep, traced_passes
from natural_langevin.execution.trajectories import Trajectories, plan_trajectories

log = logging.getLogger("natural_langevin")

#: Weights from which a run on the CPU says that there is a GPU.
GPU_FROM = 20_000

Mode = Literal["eager", "auto", "compiled"]


class Executor(Protocol):
    """Takes many steps of a run at once."""

    #: For ``posterior.config``: which way the steps went.
    name: str

    def run(self, state: State, start: int, count: int) -> Info:
        """Steps ``start`` to ``start + count - 1``, written over ``state``; Info of the last."""


Planner = Callable[[LangevinDynamics, State, Stream, RatesTable, float], Executor | str]

#: Asked in order when a run begins, each for an executor that computes exactly the update that
#: ``dynamics.kernels`` names, or why it does not take the run.
PLANNERS: list[Planner] = [plan_native, plan_whole_steps]


def choose_mode(compile: bool | str) -> Mode:
    """The engine's mode for the argument ``compile``: True, False or "auto"."""
    if compile not in (True, False, "auto"):
        raise ValueError(f'compile must be True, False or "auto", got {compile!r}')
    if compile == "auto":
        return "auto"
    return "compiled" if compile else "eager"


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The device on which kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def replaying(dynamics: LangevinDynamics, state: State, stream: Stream) -> LangevinDynamics:
    """The same dynamics with graphs of their own, where chains are taken in turn: one chain's
    passes are recorded and replayed for all. A graph of 100 chains takes seconds to record."""
    in_turn = dynamics.gradients.in_turn(state.params, stream.example()[0])
    return replace(dynamics, recordings={}) if in_turn else dynamics


class Engine:
    """Advances states along one stream of data, at the rates of a table that starts at step 0."""

    def __init__(
        self,
        dynamics: LangevinDynamics,
        stream: Stream,
        rates: RatesTable,
        num_data: float,
        *,
        mode: Mode = "eager",
        fuse: bool = True,
    ) -> None:
        """``fuse``: whether hand-written kernels may be used if they implement the dynamics."""
        self.dynamics, self.stream, self.num_data, self.mode = dynamics, stream, num_data, mode
        self.rates, self._data = rates, StepData(stream, rates, num_data)
        self._fuse = fuse and mode != "eager"
        #: Told when the step is compiled, which takes a while; whoever shows progress listens.
        self.notify: Callable[[str], None] = lambda text: None
        self._ready = False
        self._executor: Executor | None = None
        #: Of the steps between the ends of trajectories.
        self._between: Trajectories | None = None
        self._declined: list[str] = []  # why planners that were asked did not take the run
        #: The step in place; None: ``pure_step``.
        self.step: InPlaceStep | None = None
        self._pure: Callable[..., tuple[State, Info]] = pure_step
        self._traces = TracedFunction()
        self._graph: GraphedStep | None = None
        #: Whether the log is told which way steps are run.
        self.announce = False
        #: Why kernels do not serve that were tried.
        self.refused = ""
        #: What is done between steps.
        self.pauses: list[Pause] = []
        if every := dynamics.control_variates:
            assert isinstance(stream, InMemory)
            self.pauses.append(Anchors(dynamics, stream, every))

    @property
    def way(self) -> str:
        """Which way the last steps went, for ``posterior.config``: what served after something
        failed, not what was tried; "eager" where a run was too short to record a graph."""
        parts = ["graph"] if self.recorded else []
        if not parts or self.arithmetic != "eager":
            parts.append(self.arithmetic)
        return ", ".join([*parts, *filter(None, [self.refused])])

    @property
    def arithmetic(self) -> str:
        """Whose sums the last steps are: "eager", an executor's, kernels', a compiler's. A graph or
        a trace of eager operations has their bits; any two of these differ in the last ones."""
        if (whole := self._executor or self._between) is not None:
            return whole.name
        step = self.step.step if isinstance(self.step, Attempt) else self.step
        parts = [f"{step.backend.name} kernels"] if isinstance(step, kernels.FusedStep) else []
        if isinstance(self.step, Attempt) and step is not step_in_place:
            parts.append("compiled")
        return ", ".join(parts or ["eager"])

    @property
    def traced(self) -> int:
        """How many kinds of eager steps are replayed from a trace, which changes no bit."""
        return self._traces.traced

    @property
    def recorded(self) -> int:
        """How many CUDA graphs are in use."""
        if self.dynamics.recordings:
            return sum(one.recorded for one in self.dynamics.recordings.values())
        return 0 if self._graph is None else self._graph.recorded

    def prepare(self, state: State) -> None:
        """Decides which way steps from ``state`` are run, unless that is decided already."""
        if self._ready:
            return
        with _current(state.step.device):
            self._plan(state)
            self._ready = True
            if self.announce:
                log.info("%s", self._described(state))

    def run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """The state after updates ``start`` to ``start + count - 1``, and the Info of the last.
        Unless steps are eager, the given ``state`` is overwritten."""
        self.prepare(state)
        with _current(state.step.device):
            return self._run(state, start, count)

    def _run(self, state: State, start: int, count: int) -> tuple[State, Info]:
        info, stop = None, start + count
        while start < stop:
            for pause in self.pauses:
                if start % pause.every == 0:
                    state = pause(state, start)
            then = min([stop, *((start // p.every + 1) * p.every for p in self.pauses)])
            state, info = self._steps(state, start, then - start)
            start = then
        assert info is not None
        return state, info

    def _steps(self, state: State, start: int, count: int) -> tuple[State, Info]:
        """``count`` steps without a pause between them."""
        if self._executor is not None:
            return state, self._executor.run(state, start, count)
        if self._graph is not None:
            state = self._graph.adopt(state)
        info: Info | None = None
        step, stop = start, start + count
        while step < stop:
            if self._between is not None and (inside := self._between.inside(step)):
                several = min(inside, stop - step)
                state, info = self._between.run(state, step, several)
                step += several
                continue
            self._data.shuffle(step)
            batch = None if isinstance(self.stream, InMemory) else self.stream.batch(step)
            if batch is not None:  # a DataLoader's last batch may be shorter than the others
                one = batch[0][0] if self.stream.chain_axis else batch[0]
                self.dynamics.prepare(state.params, one)
            kind = self.rates.kind(step)
            if self.step is None:
                state, info = self._pure(self.dynamics, self._data, state, batch, kind)
            elif self._graph is not None:
                info = self._graph(self.dynamics, self._data, state, batch, kind)
            else:
                info = self.step(self.dynamics, self._data, state, batch, kind)
            step += 1
        assert info is not None
        return state, info

    def _described(self, state: State) -> str:
        """Which way steps are run; where it is not the fastest, why, and what would change it."""
        told = f"steps are run this way: {self.way}"
        if state.step.device.type != "cpu":
            return told
        weights = sum(p[0].numel() for p in state.params.values())
        if weights >= GPU_FROM and torch.cuda.is_available():
            told += ', on the CPU, where the model is; device="cuda" uses the GPU'
        if self._executor is not None or self._between is not None:
            return told
        if self.mode == "eager":
            return f'{told}, since compile=False; compile="auto" may be several times faster'
        if not self._declined:
            return told
        why = self._declined[0]
        return f"{told}. The native engine is faster, but does not support this run: {why}"

    def _plan(self, state: State) -> None:
        """Decides how steps are taken: by an executor, kernels, a graph, compiled, or eagerly."""
        if self.mode == "eager":
            return
        device = state.step.device
        for plan in PLANNERS if self.mode == "auto" and self._fuse else ():
            found = plan(self.dynamics, state, self.stream, self.rates, self.num_data)
            if not isinstance(found, str):
                self._executor = found
                return
            log.debug("no whole steps: %s", found)
            self._declined.append(found)
        if self.mode == "auto" and self._fuse:
            between = plan_trajectories(
                self.dynamics, state, self.stream, self.rates, self.num_data
            )
            if not isinstance(between, str):
                self._between = between
            elif between:
                self._declined[0] = between
        if self.mode == "auto" and device.type == "cuda":
            self.dynamics = replaying(self.dynamics, state, self.stream)
        if self.mode == "compiled":
            self.step = Attempt(self._compiled_step(state), lambda text: self.notify(text))
        else:
            self.step = self._checked(self._fused_step(state), state)
            if self.step is None and device.type == "cuda":
                self.step = step_in_place
            elif self.step is None and device.type == "cpu":
                self._traces = traced = TracedStep()
                self._pure = traced.step
        in_turn = self.dynamics.recordings is not None
        if device.type == "cuda" and self.step is not None and not in_turn:
            self._graph = GraphedStep(self.step)

    def _fused_step(
        self, state: State, compile: Callable[[Any], Any] | None = None
    ) -> kernels.FusedStep | None:
        """The step whose linear layers are updated by kernels, where they implement it."""
        if not self._fuse or "linear" not in self.dynamics.kernels:
            return None
        backend = kernels.backend_for(state.step.device)
        if backend is None:
            return None
        on_cpu, whole = state.step.device.type == "cpu", compile is None
        tasks = kernels.plan(
            self.dynamics, state, self.stream.example(), self.num_data,
            given=whole, each=whole and backend.takes_each,
        )  # fmt: skip
        if not whole or not on_cpu:
            return kernels.FusedStep(tasks, backend, compile) if tasks else None
        # On a CPU passes are traced. So is the whole step, where kernels do not know all of it.
        if {name for task in tasks for name in task.parameters} != state.params.keys():
            return None
        self._traces = traced_passes(self.dynamics.gradients)
        return kernels.FusedStep(tasks, backend, traces=self._traces)

    def _checked(self, step: kernels.FusedStep | None, state: State) -> InPlaceStep | None:
        """``step``, where its kernels have agreed with the general step on the first batch, if they
        are compiled for this run: a compiler and a driver that we have not seen stand between them
        and their source."""
        if step is None or step.backend.build is None:
            return step
        start = int(state.step)
        self._data.shuffle(start)
        batch = None
        if not isinstance(self.stream, InMemory):
            batch = self.stream.example()
            if self.stream.chain_axis:
                x, y = (t.expand(state.chains, *t.shape).contiguous() for t in batch)
                batch = x, y
        try:
            reason = self._tried(step, state, batch, start)
            if reason and step.without_network():  # which asks most of a device
                log.debug("no kernels for the network's passes (%s)", reason)
                reason = self._tried(step, state, batch, start)
        except torch.OutOfMemoryError:  # two more states: too large a run to be looked at twice
            return step
        if not reason:
            return step
        log.warning("no %s kernels (%s): using the general step", step.backend.name, reason)
        self.refused = f"{step.backend.name} refused"
        return None

    def _tried(self, step: kernels.FusedStep, state: State, batch: Batch | None, start: int) -> str:
        """The reason why a fused step cannot be used from this state, or ""."""
        asked = self.dynamics, self._data
        kind = self.rates.kind(start)
        try:
            own, loss = self._moved(step, state, batch, kind)
            with plain():
                asked = replaying(self.dynamics, state, self.stream), self._data
                expected, right = pure_step(*asked, state, batch, kind)
                wrong = disagreement(own, expected.params, state.params)
                if wrong:
                    moved = state._replace(params=last_bits_moved(state.params))
                    rounded, _ = pure_step(*asked, moved, batch, kind)
                    wrong = disagreement(own, expected.params, state.params, rounded.params)
            if not same_losses(loss, right.loss):
                wrong = "the loss"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return first_line(error)
        return f"they disagree on {wrong}" if wrong else ""

    def _moved(
        self, step: kernels.FusedStep, state: State, batch: Batch | None, kind: Kind
    ) -> tuple[Params, Tensor]:
        """Weights after a fused step, and its losses. The rest of the new state is not kept: the
        general step, which comes next, needs the memory."""
        own = copy.deepcopy(state)
        step.build(self.dynamics, self._data, own, self.rates.kinds)
        info = step(self.dynamics, self._data, own, batch, kind)
        return own.params, info.loss

    def _compiled_step(self, state: State) -> InPlaceStep:
        """The compiled step, fused where a backend can; one for the same dynamics and shapes."""
        in_memory = isinstance(self.stream, InMemory)
        known = known_steps(self.dynamics)
        example = self.stream.example()
        data = (self.stream.x, self.stream.y) if isinstance(self.stream, InMemory) else ()
        key = (
            shape_of(state), shape_of(example), shape_of(data), self.rates.values.shape,
            self.num_data, self._fuse, torch.get_float32_matmul_precision(),
        )  # fmt: skip
        if key not in known:
            by_kind = partial(CompiledStep, guards=not in_memory)
            known[key] = self._fused_step(state, by_kind) or by_kind(step_in_place)
        return known[key]
