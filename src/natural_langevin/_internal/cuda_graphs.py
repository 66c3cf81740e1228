"""CUDA graphs of functions of tensors: recorded once and replayed, one launch from the host.

Before a recording the function has run a few times: libraries set themselves up in their first
calls. What cannot be recorded runs as it did, and the log says so.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal.messages import first_line

log = logging.getLogger("natural_langevin")

#: Ordinary calls before one is recorded.
WARM_UP = 2


class RecordedFunction:
    """A function of tensors, recorded as soon as it is warm, where tensors are on a GPU.

    All calls are alike: functions that do the same, on inputs of the same shapes, which are copied
    to where the graph reads them. What comes out lies where the next call will write. A function
    may also read and write tensors that are no inputs, its ``fixed`` ones: where these have moved,
    it is recorded anew."""

    def __init__(self, what: str) -> None:
        self._what, self._calls, self._places = what, 0, tuple[int, ...]()
        self._replay: Callable[[], Any] | None = None
        self._static: list[Tensor] = []
        self._result: Any = None

    @property
    def recorded(self) -> bool:
        """Whether there is a graph."""
        return self._replay is not None

    def __call__(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], fixed: Sequence[Tensor] = ()
    ) -> Any:
        """``function(*inputs)``."""
        if not recordable(inputs[0]):
            return function(*inputs)
        places = tuple(t.data_ptr() for t in fixed)
        if places != self._places:
            self._places, self._replay, self._calls = places, None, min(self._calls, 0)
        if self._replay is not None:
            copy_all(self._static, inputs)
            self._replay()
            return self._result
        self._calls += 1
        if self._calls <= WARM_UP:
            return function(*inputs)
        return self._record(function, inputs)

    def _record(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
        static = [torch.empty_like(t) for t in inputs]
        copy_all(static, inputs)
        try:
            replay, result = record(lambda: function(*static), inputs[0].device)
        except Exception as error:  # something waits for the host
            log.warning("no CUDA graph of %s (%s)", self._what, first_line(error))
            torch.cuda.synchronize()
            self._calls = NEVER
            return function(*inputs)
        self._static, self._replay, self._result = static, replay, result
        replay()  # recording runs nothing
        return result


#: Calls counted from here on never make a recording.
NEVER = -(1 << 60)


def has_graphs(device: torch.device) -> bool:
    """Whether what happens on a device can be recorded."""
    return device.type == "cuda"


def recordable(on: Tensor) -> bool:
    """Whether it can be now, on this tensor's: nobody else is recording."""
    return has_graphs(on.device) and not torch.cuda.is_current_stream_capturing()


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """What is launched is recorded. Other threads may go on using the device meanwhile. The garbage
    collector rests: where it frees a graph that somebody else has left, this one is lost."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()


def record(function: Callable[[], Any], device: torch.device) -> tuple[Callable[[], Any], Any]:
    """How to run ``function`` again, and where its result will then lie."""
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with recording(graph):
            result = function()
    return graph.replay, result


def copy_all(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """In as few launches as there are kinds of numbers."""
    for dtype in {t.dtype for t in into}:
        own = [(a, b) for a, b in zip(into, values, strict=True) if a.dtype == dtype]
        torch._foreach_copy_([a for a, _ in own], [b for _, b in own])
