"""A step traced once and replayed: torch's own operations in a row, without what led to them.

Eagerly, a step of a small network is mostly what is around the operations: hooks, transformations,
trees of names. Its operations depend on shapes and on the kind of step alone, so they are written
down once (``make_fx``) and repeated. What a step looks up (its minibatch, rates and normals) are
inputs; which chains go on is decided outside. The first replay must give the bits of the step
itself; where tracing fails, or they differ, steps stay as they are.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from natural_langevin.dynamics.base import Dynamics, Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import Kind
from natural_langevin.execution.stepping import StepData, pure_step, shape_of
from natural_langevin.types import Batch

log = logging.getLogger("natural_langevin")

#: Shapes of batches, and kinds of steps, that are traced at most.
MOST = 8
#: Seconds that steps of a kind have taken, and how many there were, before they are traced, which
#: takes some seconds and as long as some twenty steps: a short run does not wait for it. Nothing
#: else depends on it, for the bits are the same.
PATIENCE, SEVERAL = 2.0, 20


class _Trace(NamedTuple):
    """The operations of a step, and which of the stream's draws it reads."""

    graph: fx.GraphModule
    draws: tuple[int, ...]
    spec: Any  # of what comes out


class TracedStep:
    """``pure_step``, by its trace as soon as that pays."""

    def __init__(self) -> None:
        self._traces: dict[Any, _Trace | None] = {}
        self._spent: dict[Any, tuple[int, float]] = {}  # steps and seconds, by kind of step

    @property
    def traced(self) -> int:
        """How many kinds of steps are replayed."""
        return sum(trace is not None for trace in self._traces.values())

    def __call__(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> tuple[State, Info]:
        """A new state; the old one stays as it is."""
        if type(dynamics) is not LangevinDynamics or kind.first or kind.refreshes:
            return pure_step(dynamics, data, state, batch, kind)
        here, rates, count, chain_axis = data.inputs(state, batch, kind)
        key = (kind, shape_of(here))
        steps, spent = self._spent.get(key, (0, 0.0))
        pays = steps >= SEVERAL and spent > PATIENCE
        if pays and key not in self._traces and len(self._traces) < MOST:
            self._traces[key] = _traced(dynamics, state, here, rates, count, chain_axis)
        trace = self._traces.get(key)
        if trace is not None:
            new, loss = _replayed(trace, dynamics, state, here, rates, count)
            return dynamics.settled(state, new, loss)
        started = time.perf_counter()
        found = dynamics.step(state, here, rates, count, chain_axis=chain_axis)
        self._spent[key] = steps + 1, spent + time.perf_counter() - started
        return found


class _Asked(Mapping[int, Tensor]):
    """The stream's normals, made when they are asked for, and which were."""

    def __init__(self, dynamics: LangevinDynamics, step: Tensor) -> None:
        self._dynamics, self._step = dynamics, step
        self.draws: dict[int, Tensor] = {}

    def __getitem__(self, draw: int) -> Tensor:
        if draw not in self.draws:
            self.draws[draw] = self._dynamics.normals(self._step, draw)
        return self.draws[draw]

    def __iter__(self) -> Any:
        return iter(self.draws)

    def __len__(self) -> int:
        return len(self.draws)


def _traced(
    dynamics: LangevinDynamics, state: State, batch: Batch, rates: Any, count: Tensor, axis: bool
) -> _Trace | None:
    """The trace of such a step; None where there is none that gives its bits."""
    from torch.fx.experimental.proxy_tensor import make_fx

    started = time.monotonic()
    asked = _Asked(dynamics, state.step)
    try:
        own = dataclasses.replace(dynamics, given=asked)
        expected = own.moved(state, batch, rates, count, chain_axis=axis)
        draws = tuple(asked.draws)
        leaves, spec = pytree.tree_flatten((state, batch, rates._replace(kind=None), count))
        outputs: list[Any] = []

        def flat(*inputs: Tensor) -> list[Tensor]:
            one, other = inputs[: len(leaves)], inputs[len(leaves) :]
            state, batch, given_rates, count = pytree.tree_unflatten(one, spec)
            given = dict(zip(draws, other, strict=True))
            step = dataclasses.replace(dynamics, given=given)
            found = step.moved(
                state, batch, given_rates._replace(kind=rates.kind), count, chain_axis=axis
            )
            tensors, out = pytree.tree_flatten(found)
            outputs.append(out)
            return tensors

        with torch.no_grad():
            graph = make_fx(flat)(*leaves, *asked.draws.values())
        _shorten(graph)
        trace = _Trace(graph, draws, outputs[-1])
        found = _replayed(trace, dynamics, state, batch, rates, count)
        pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            log.info("the traced step differs from the eager step, which is used instead")
            return None
    except Exception as error:  # a network that looks at values, or operations it cannot follow
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        log.info("no traced step (%s): the step itself serves", first)
        return None
    log.info("traced the step in %.1f s", time.monotonic() - started)
    return trace


def _replayed(
    trace: _Trace, dynamics: LangevinDynamics, state: State, batch: Batch, rates: Any, count: Tensor
) -> tuple[State, Tensor]:
    leaves = pytree.tree_leaves((state, batch, rates._replace(kind=None), count))
    draws = [dynamics.normals(state.step, draw) for draw in trace.draws]
    with torch.no_grad():
        found = trace.graph(*leaves, *draws)
    new, loss = pytree.tree_unflatten(found, trace.spec)
    return new, loss


def _shorten(graph: fx.GraphModule) -> None:
    """Leaves out what changes nothing (detached tensors, views of the shape a tensor has) or was
    computed before, and calls the rest by torch's own functions, which take half as long to call
    as the operators behind them."""
    aten = torch.ops.aten
    same = (aten.detach.default, aten.alias.default)
    views = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.slice.Tensor)
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    known: dict[Any, fx.Node] = {}
    pure = not any(
        getattr(n.target, "_schema", None) and n.target._schema.is_mutable for n in calls
    )
    for node in calls:
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and "val" in node.meta and "val" in source.meta:
            before, after = source.meta["val"], node.meta["val"]
            unchanged = node.target in views and before.shape == after.shape
            if node.target in same or unchanged:
                node.replace_all_uses_with(source)
                continue
        first = known.setdefault((node.target, repr((node.args, node.kwargs))), node)
        if pure and first is not node:
            node.replace_all_uses_with(first)
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = _function(node.target)
    graph.recompile()


def _function(operator: torch._ops.OpOverload) -> Any:
    """The function of torch, or the method of its tensors, that calls an operator; the operator
    itself where there is none."""
    name = operator._schema.name.removeprefix("aten::")
    if "__" in name or "::" in name:  # of other libraries, or what Python writes as a sign
        return operator
    return getattr(torch._C._VariableFunctions, name, None) or getattr(Tensor, name, operator)
