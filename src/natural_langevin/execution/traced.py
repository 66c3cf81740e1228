"""A step traced once and replayed as a list of torch operations, without Python overhead.

Eagerly, a step of a small network is mostly what is around the operations: hooks, transformations,
trees of names. Its operations depend on shapes and on the kind of step alone, so they are written
down once and repeated. Where kernels know the update, these are the passes and the
statistics alone; else the whole step. What a step looks up (its minibatch, rates and normals) are
inputs; which chains go on is decided outside. The first replay must give the bits of the step
itself; where tracing fails, or they differ, steps stay as they are.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from natural_langevin._internal.chains import Batch
from natural_langevin._internal.messages import first_line
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics as Dynamics
from natural_langevin.dynamics.rates import Kind, Rates
from natural_langevin.execution.stepping import StepData, pure_step, shape_of
from natural_langevin.statistics import Gradients

log = logging.getLogger("natural_langevin")

#: Shapes of batches, and kinds of steps, that are traced at most.
MOST = 16
#: Seconds that steps of a kind have taken, and how many there were, before they are traced, which
#: takes as long as some twenty steps: a short run does not wait for it. Nothing else depends on it,
#: for the bits are the same.
PATIENCE, SEVERAL = 0.1, 20


class TracedFunction:
    """Functions of a tree of tensors, each by its trace as soon as that pays."""

    def __init__(self) -> None:
        self._traces: dict[Any, Callable[[Any], Any] | None] = {}
        self._spent: dict[Any, tuple[int, float]] = {}  # calls and seconds, by kind of call

    @property
    def traced(self) -> int:
        """How many kinds of calls are replayed."""
        return sum(trace is not None for trace in self._traces.values())

    def __call__(self, key: Any, function: Callable[[Any], Any], inputs: Any) -> Any:
        """``function(inputs)``; calls of the same ``key`` have the same operations."""
        if key in self._traces:
            return (self._traces[key] or function)(inputs)
        calls, spent = self._spent.get(key, (0, 0.0))
        if calls >= SEVERAL and spent > PATIENCE and len(self._traces) < MOST:
            self._traces[key] = _traced(function, inputs)
            return (self._traces[key] or function)(inputs)
        started = time.perf_counter()
        found = function(inputs)
        self._spent[key] = calls + 1, spent + time.perf_counter() - started
        return found


#: By the gradients that passes form.
_KNOWN: WeakKeyDictionary[Gradients, TracedFunction] = WeakKeyDictionary()


def traced_passes(gradients: Gradients) -> TracedFunction:
    """The traces of these passes, the same for every engine: rounds of a descent, a pilot, a trial
    and the run differ in their numbers. Labels drawn from the model are constants of a trace."""
    if gradients.targets == "model":
        return TracedFunction()
    return _KNOWN.setdefault(gradients, TracedFunction())


class TracedStep(TracedFunction):
    """``pure_step``, traced as a whole."""

    def __init__(self) -> None:
        super().__init__()
        #: Of the stream, that a kind of step reads; None where it reads those of other steps too.
        self._draws: dict[Any, tuple[int, ...] | None] = {}

    def step(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> tuple[State, Info]:
        """A new state; the old one stays as it is."""
        if type(dynamics) is not Dynamics or kind.first or kind.refreshes:
            return pure_step(dynamics, data, state, batch, kind)
        here, rates, count, chain_axis = data.inputs(state, batch, kind)
        key = (kind, shape_of(here))
        if key not in self._draws:
            asked = _Asked(dynamics, state.step)
            own = dataclasses.replace(dynamics, given=asked)
            found = own.step(state, here, rates, count, chain_axis=chain_axis)
            self._draws[key] = None if asked.others else tuple(asked.draws)
            return found
        own_draws = self._draws[key]
        if own_draws is None:
            return pure_step(dynamics, data, state, batch, kind)

        def moved(inputs: Any) -> tuple[State, Tensor]:
            state, batch, (eta, gamma, mu), count, given = inputs
            own = dataclasses.replace(dynamics, given=lambda _, draw: given[draw])
            rates = Rates(eta, gamma, mu, kind)
            return own.moved(state, batch, rates, count, chain_axis=chain_axis)

        draws = {draw: dynamics.normals(state.step, draw) for draw in own_draws}
        numbers = rates.step_size, rates.decay, rates.mean
        new, loss = self(key, moved, (state, here, numbers, count, draws))
        return dynamics.settled(state, new, loss)


class _Asked:
    """The stream's normals, made when they are asked for; which were of this step, and whether some
    were of ``others``."""

    def __init__(self, dynamics: Dynamics, step: Tensor) -> None:
        self._dynamics, self._step = dynamics, step
        self.draws: dict[int, Tensor] = {}
        self.others = False

    def __call__(self, step: Tensor, draw: int) -> Tensor:
        if not torch.equal(step, self._step):
            self.others = True
            return self._dynamics.normals(step, draw)
        if draw not in self.draws:
            self.draws[draw] = self._dynamics.normals(step, draw)
        return self.draws[draw]


def _traced(function: Callable[[Any], Any], inputs: Any) -> Callable[[Any], Any] | None:
    """Its trace on such inputs; None where there is none that gives its bits."""
    from torch.func import functionalize

    started = time.monotonic()
    try:
        expected = function(inputs)
        leaves, spec = pytree.tree_flatten(inputs)
        if not _same(leaves, list(_leaves(inputs))):
            raise TypeError("a tree of unknown kinds")
        into: list[Any] = []

        def flat(*tensors: Tensor) -> list[Tensor]:
            found, out = pytree.tree_flatten(function(pytree.tree_unflatten(tensors, spec)))
            into.append(out)
            return found

        with torch.no_grad():
            graph = _written_down(flat, leaves)
            if any(map(_mutates, graph.graph.nodes)):  # an attention's mask is filled in place
                graph = _written_down(functionalize(graph, remove="mutations"), leaves)
        last: Any = graph.graph.output_node()
        out = into[-1]
        tree = pytree.tree_unflatten(last.args[0], out)
        whole = _is_plain(tree)  # a tree that the trace itself can return
        if whole:
            last.args = (tree,)
        _shorten(graph)
        forward: Any = graph.forward  # without a module's hooks

        def replayed(inputs: Any) -> Any:
            with torch.no_grad():
                found = forward(*_leaves(inputs))
            return found if whole else pytree.tree_unflatten(found, out)

        pairs = zip(pytree.tree_leaves(replayed(inputs)), pytree.tree_leaves(expected), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            log.info("the traced step differs from the eager step, which is used instead")
            return None
    except Exception as error:  # a network that looks at values, or operations it cannot follow
        log.info("no traced step (%s): using the step itself", first_line(error))
        return None
    log.info("traced the step in %.1f s", time.monotonic() - started)
    return replayed


class _Recorder(TorchDispatchMode):
    """Writes down the operations that are called inside, below all transformations. ``make_fx``
    does so too, and more: its first call imports a compiler and computer algebra, for seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # torch asks; saying so would import the compiler
        return False

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = fx.Graph(), nn.Module()
        self._nodes = WeakTensorKeyDictionary()
        for k, tensor in enumerate(inputs):
            self._known(tensor, self.graph.placeholder(f"input_{k}"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        _refuse_values(func, args)
        found = func(*args, **(kwargs or {}))
        given = pytree.tree_map_only(Tensor, self.node, (args, kwargs or {}))
        node = self.graph.call_function(func, *given)
        if isinstance(found, Tensor):
            self._known(found, node)
        elif isinstance(found, tuple | list):
            for k, one in enumerate(found):
                if isinstance(one, Tensor):
                    self._known(one, self.graph.call_function(operator.getitem, (node, k)))
        return found

    def _known(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["val"] = torch.empty_like(tensor, device="meta")
        self._nodes[tensor] = node

    def node(self, tensor: Tensor) -> fx.Node:
        """Where it comes from; a tensor of somewhere else is a constant."""
        if tensor not in self._nodes:
            name = f"constant_{len(list(self.constants.buffers()))}"
            self.constants.register_buffer(name, tensor)
            self._known(tensor, self.graph.create_node("get_attr", name))
        found: fx.Node = self._nodes[tensor]
        return found


def _written_down(function: Callable[..., list[Tensor]], inputs: list[Tensor]) -> fx.GraphModule:
    recorder = _Recorder(inputs)
    with recorder:
        found = function(*inputs)
    recorder.graph.output([recorder.node(t) if isinstance(t, Tensor) else t for t in found])
    return fx.GraphModule(recorder.constants, recorder.graph)


def _refuse_values(func: Any, args: tuple[Any, ...]) -> None:
    """Raises for operations whose values decide what comes next."""
    dynamic = torch.Tag.dynamic_output_shape in func.tags
    if func is _aten.index.Tensor:  # by places it is as long as they are many
        dynamic = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if dynamic or torch.Tag.data_dependent_output in func.tags:
        raise RuntimeError(f"{func} looks at values")


def _mutates(node: fx.Node) -> bool:
    """Whether it writes into what it was given."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _leaves(tree: Any) -> Iterator[Any]:
    """The leaves of tuples, lists and dictionaries, as torch's own way with trees gives them, which
    knows more kinds and takes five times as long."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        yield tree
        return
    for branch in tree:
        if isinstance(branch, Tensor):
            yield branch
        else:
            yield from _leaves(branch)


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _is_plain(tree: Any) -> bool:
    """Whether there is nothing in it but nodes, tuples, lists and dictionaries."""
    if type(tree) in (tuple, list):
        return all(map(_is_plain, tree))
    return isinstance(tree, fx.Node) or (type(tree) is dict and all(map(_is_plain, tree.values())))


def _shorten(graph: fx.GraphModule) -> None:
    """Leaves out what changes nothing (detached tensors, sums of one term, zeros that are added,
    shapes of shapes) or was computed before, and calls the rest by torch's own functions, which
    take half as long to call as the operators behind them."""
    pure = not any(map(_mutates, graph.graph.nodes))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    known: dict[Any, fx.Node] = {}
    for node in calls if pure else ():
        same = _shorter(graph, node)
        if same is node:
            same = known.setdefault((node.target, repr((node.args, node.kwargs))), node)
        if same is not node:
            node.replace_all_uses_with(same)
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes if pure else ():
        if node.target is _aten.pow.Tensor_Scalar and node.args[1] == 2 and _is_spare(node.args[0]):
            node.target, node.args = Tensor.square_, node.args[:1]  # half the memory, half the time
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = _function(node.target)
    graph.recompile()


#: Other shapes of the same numbers in the same order.
_aten = torch.ops.aten
_SHAPES = (
    _aten.view.default, _aten._unsafe_view.default, _aten.unsqueeze.default, _aten.squeeze.dim,
    Tensor.reshape,
)  # fmt: skip


def _shorter(graph: fx.GraphModule, node: fx.Node) -> Any:
    """A node before this one with the same numbers, or the node itself, from fewer others."""
    source: Any = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or "val" not in node.meta or "val" not in source.meta:
        return node
    before, after = source.meta["val"], node.meta["val"]
    if node.target in (_aten.detach.default, _aten.alias.default):
        return source
    if node.target in (_aten.expand.default, _aten.slice.Tensor) and before.shape == after.shape:
        return source
    if node.target is _aten.t.default and source.target is _aten.t.default:
        return source.args[0]
    if node.target is _aten.add.Tensor and not node.kwargs and before.shape == after.shape:
        other = node.args[1]
        return source if isinstance(other, fx.Node) and _is_zero(graph, other) else node
    alone = node.target is _aten.sum.dim_IntList and before.numel() == after.numel()
    if node.target in _SHAPES or (alone and before.dtype == after.dtype):
        while source.target in _SHAPES:
            source = source.args[0]
        if source.meta["val"].shape == after.shape:
            return source
        node.target, node.args, node.kwargs = Tensor.reshape, (source, list(after.shape)), {}
    return node


def _is_spare(node: Any) -> bool:
    """Whether nobody else reads the numbers of this product."""
    while len(node.users) == 1 and node.target in (*_SHAPES, _aten.t.default, _aten.transpose.int):
        node = node.args[0]
    products = (_aten.mm.default, _aten.bmm.default, _aten.mul.Tensor)
    return len(node.users) == 1 and node.target in products


def _is_zero(graph: fx.GraphModule, node: Any) -> bool:
    """Whether it is a constant of zeros, perhaps in another shape."""
    while node.target in (_aten.expand.default, _aten.unbind.int, operator.getitem):
        node = node.args[0]
    return node.op == "get_attr" and not getattr(graph, node.target).any()


def _function(operator: torch._ops.OpOverload) -> Any:
    """The function of torch, or the method of its tensors, that calls an operator; the operator
    itself where there is none."""
    name = operator._schema.name.removeprefix("aten::")
    if "__" in name or "::" in name:  # of other libraries, or what Python writes as a sign
        return operator
    return getattr(torch._C._VariableFunctions, name, None) or getattr(Tensor, name, operator)
