"""The step under ``torch.compile``: compiled once in a process for the same dynamics and shapes.

Compiled code is found again by (dynamics, shapes): a second run of the same sampler on data of the
same shapes starts at once. Guards, torch's own check that a call is like the one compiled for, take
0.4 ms per step; where every call is alike by construction they are left out.
"""

from __future__ import annotations

import logging
import time
import types
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Batch
from natural_langevin._internal.messages import first_line
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics as Dynamics
from natural_langevin.dynamics.rates import Kind
from natural_langevin.execution.stepping import InPlaceStep, StepData, overwrite, step_in_place

log = logging.getLogger("natural_langevin")

#: Who makes code of what torch has traced. "eager" runs the trace as it is: all that can go wrong
#: before the compiler proper, in a tenth of its time, for tests.
BACKEND = "inductor"

#: By dynamics, and shapes.
_KNOWN: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def known_steps(dynamics: Dynamics) -> dict[Any, Any]:
    """The steps compiled so far for these dynamics, by shapes: a dictionary to be added to."""
    return _KNOWN.setdefault(dynamics, {})


def compiled(function: Any, *, guards: bool) -> Any:
    """``function`` compiled as a whole; its calls differ in the values of tensors alone."""
    own = _with_own_code(function)
    if BACKEND != "inductor":
        return torch.compile(own, fullgraph=True, dynamic=False, backend=BACKEND)
    options = _same_kernels()
    if not guards:
        options["guard_filter_fn"] = torch.compiler.skip_all_guards_unsafe
    return torch.compile(own, fullgraph=True, dynamic=False, options=options)


class CompiledStep:
    """A step, or a function with a step's arguments, compiled for each kind of step when it first
    comes up."""

    def __init__(self, function: Callable[..., Any], *, guards: bool) -> None:
        self._function, self._guards = function, guards
        self._of: dict[Kind, Callable[..., Any]] = {}

    def __call__(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> Any:
        if kind not in self._of:
            self._of[kind] = compiled(self._function, guards=self._guards)
        return self._of[kind](dynamics, data, state, batch, kind)


class Attempt:
    """A compiled step that logs the compile time; if compiling fails, the eager step is used.

    The first step of a run, of which there is one, is not worth compiling."""

    def __init__(self, step: InPlaceStep, say: Callable[[str], None]) -> None:
        self.step, self._say = step, say
        self._taken: set[Kind] = set()

    def __call__(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> Info:
        if kind.first or kind.refreshes or self.step is step_in_place:
            return step_in_place(dynamics, data, state, batch, kind)
        if kind not in self._taken:
            return self._take_first(dynamics, data, state, batch, kind)
        try:
            return self.step(dynamics, data, state, batch, kind)
        except Exception as error:  # batches of ever new shapes: torch compiles only so many
            if batch is None or not type(error).__module__.startswith("torch._dynamo"):
                raise
            log.warning("compiling gave up (%s); running eagerly from here", first_line(error))
            self.step = step_in_place
            return self.step(dynamics, data, state, batch, kind)

    def _take_first(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> Info:
        self._say("compiling the step: up to a minute the first time, then from the cache")
        started = time.monotonic()
        before = pytree.tree_map(torch.clone, state)  # a step that breaks off leaves half of it
        try:
            info = self.step(dynamics, data, state, batch, kind)
        except Exception as error:  # no compiler on this machine, or a network it cannot take
            log.warning("compiling failed (%s); running eagerly", first_line(error))
            self.step = step_in_place
            overwrite(state, before)
            return self.step(dynamics, data, state, batch, kind)
        self._taken.add(kind)
        took = f"compiled the step in {time.monotonic() - started:.0f} s"
        log.info(took)
        self._say(took)
        return info


def _same_kernels() -> dict[str, Any]:
    """Options by which the compiler chooses kernels by rule, not by timing them: two runs would
    otherwise add up in different orders, and differ in their last digits."""
    known = "deterministic" in torch._inductor.list_options()
    return {"deterministic": True} if known else {}


def _with_own_code(function: Any) -> Any:
    """A function whose code object is a copy.

    ``torch.compile`` keeps what it compiled with the code object, and tells one use of it from
    another by guards, of which a code object may have only a few sets."""
    if isinstance(function, types.MethodType):
        return types.MethodType(_with_own_code(function.__func__), function.__self__)
    copied = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
