"""The plan: how the statistics of every parameter are computed, for inputs of one shape.

Two rehearsals, the second with one sample more, show which axis of every tensor is the batch: the
one that grew. Three ways lead to per-sample gradients, from cheap to dear:

    ruled     the layer has a rule, and its inputs and outputs have the samples on one axis
    replayed  no rule: the layer alone is run again, sample by sample
    whole     the network is run again, sample by sample: for a parameter that is used outside its
              own layer, or in a layer whose outputs are shared by all samples in a way that cannot
              be told apart

A layer that sees nothing of the batch (an embedding of places) has one output for all samples. It
is given a batch axis, by adding zeros that have one, and its gradient is then every sample's own.
That the network makes the same of it is tried out.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.rules import Call, SampleGradient
from natural_langevin.statistics.rules.rewritten import RewrittenLayer
from natural_langevin.statistics.tape import CallKey, Tape, Tensors, Trace, is_real

_ZEROS: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def _zero(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The number 0, made once; in compiled code a constant of its own."""
    if torch.compiler.is_compiling():
        return torch.zeros((), dtype=dtype, device=device)
    if (dtype, device) not in _ZEROS:
        _ZEROS[dtype, device] = torch.zeros((), dtype=dtype, device=device)
    return _ZEROS[dtype, device]


class Axis(NamedTuple):
    """Where the samples are: ``repeat`` consecutive indices of ``axis`` belong to each."""

    axis: int
    repeat: int

    def first(self, value: Tensor) -> Tensor:
        """(..., B repeat, ...) -> (B repeat, ...)."""
        return value if self.axis == 0 else value.movedim(self.axis, 0)

    def apart(self, value: Tensor) -> Tensor:
        """(..., B repeat, ...) -> (B, repeat, ...)."""
        return self.first(value).unflatten(0, (-1, self.repeat))

    def one(self, value: Tensor) -> Tensor:
        """What ``apart`` made of one sample, as a batch of that sample alone."""
        return value.movedim(0, self.axis)


@dataclass(frozen=True)
class Plan:
    """What the statistics of one batch need to know."""

    traces: dict[CallKey, Trace]  # of the ruled and replayed layers' calls
    inputs: dict[CallKey, list[Axis | None]]
    outputs: dict[CallKey, list[Axis]]
    ruled: tuple[str, ...]
    replayed: tuple[str, ...]
    whole: frozenset[str]  # full names of parameters
    shared: frozenset[CallKey] = frozenset()  # calls that were given a batch axis
    #: Full names of parameters whose gradients come with their statistics: of layers that are
    #: called once and share none of them (``SampleGradient.adds_up``).
    summed: frozenset[str] = frozenset()

    def spread(self, key: CallKey, inputs: list[Tensor]) -> list[Tensor]:
        """The inputs of a call, with a batch axis where it was given one."""
        if key not in self.shared:
            return inputs
        pairs = zip(inputs, self.traces[key].inputs, strict=True)
        return [value.expand(shape) for value, shape in pairs]

    def epsilons(self, device: torch.device) -> Tensors:
        """Zeros added to every call's outputs, whose gradients are the deltas: nobody writes to
        them, so one number is all of them."""
        return {
            key: [_zero(dtype, device).expand(shape) for shape, dtype in trace.outputs]
            for key, trace in self.traces.items()
        }

    def without(self, layers: Collection[str]) -> Plan:
        """The plan with these ruled layers left out."""
        return replace(self, ruled=tuple(n for n in self.ruled if n not in layers))

    def single_linear_calls(self, network: Network) -> list[str]:
        """Ruled ``nn.Linear`` layers with one call, of one row per sample, and no other use."""
        found = []
        for name in self.ruled:
            keys = [key for key in self.traces if key[0] == name]
            own = network.owned[name].values()
            plain = type(network.model.get_submodule(name)) is nn.Linear and len(keys) == 1
            if plain and not self.whole & set(own) and network.alone(name):
                trace, rows = self.traces[keys[0]], [self.inputs[keys[0]], self.outputs[keys[0]]]
                shapes = [*trace.inputs, *(shape for shape, _ in trace.outputs)]
                if rows == [[Axis(0, 1)]] * 2 and all(len(shape) == 2 for shape in shapes):
                    found.append(name)
        return found


def make_plan(network: Network, params: Params, x: Tensor, distrusted: frozenset[str]) -> Plan:
    """``params`` of one chain; ``distrusted`` parameters are known to need the whole network."""
    traces, strangers = _rehearse(network, params, x)
    longer, _ = _rehearse(network, params, torch.cat([x, x[:1]]))
    shared = _shared_calls(network, params, x, traces, longer)
    traces |= shared
    inputs: dict[CallKey, list[Axis | None]] = {}
    outputs: dict[CallKey, list[Axis]] = {}
    ruled, replayed, whole = [], [], {*distrusted, *strangers}
    summed: set[str] = set()
    for name, own in network.owned.items():
        keys = [key for key in traces if key[0] == name]
        if not keys:
            continue  # never called: its statistics are zero
        try:
            if keys != [key for key in longer if key[0] == name]:
                raise _UnclearError
            for key in keys:
                if key in shared:
                    inputs[key] = [Axis(0, 1) for _ in traces[key].inputs]
                    outputs[key] = [Axis(0, 1)]
                else:
                    inputs[key], outputs[key] = _axes(traces[key], longer[key], len(x))
        except _UnclearError:
            whole |= set(own.values())
            continue
        forms = _forms(network, name, [(traces[k], inputs[k], outputs[k]) for k in keys])
        if forms is not None:
            ruled.append(name)
            if len(keys) == 1 and network.alone(name) and all(form.adds_up for form in forms):
                summed |= set(own.values())
        elif isinstance(network.model.get_submodule(name), RewrittenLayer):
            whole |= set(own.values())  # what is on tape are its inner maps, not its arguments
        else:
            replayed.append(name)
    by_rule = {p for name in ruled for p in network.owned[name].values()}
    by_replay = [p for name in replayed for p in network.owned[name].values()]
    whole |= {p for p in by_replay if p in by_rule or by_replay.count(p) > 1}
    for bias, weights in network.units().items():
        if whole & {bias, *weights}:
            whole |= {bias, *weights}

    def needed(name: str) -> bool:
        return not whole >= set(network.owned[name].values())

    ruled, replayed = [n for n in ruled if needed(n)], [n for n in replayed if needed(n)]
    kept = {key: t for key, t in traces.items() if key[0] in ruled or key[0] in replayed}
    own_axis = frozenset(key for key in shared if key in kept)
    formed = {p for name in ruled for p in network.owned[name].values()} - whole
    return Plan(
        kept, inputs, outputs, tuple(ruled), tuple(replayed), frozenset(whole), own_axis,
        frozenset(summed & formed),
    )  # fmt: skip


def _shared_calls(
    network: Network,
    params: Params,
    x: Tensor,
    traces: dict[CallKey, Trace],
    longer: dict[CallKey, Trace],
) -> dict[CallKey, Trace]:
    """The calls that see nothing of the batch, as they are with a batch axis; none where the
    network does not make the same of them."""
    found: dict[CallKey, Trace] = {}
    for key, trace in traces.items():
        rewritten = isinstance(network.model.get_submodule(key[0]), RewrittenLayer)
        same = key in longer and trace[3:] == longer[key][3:]  # shapes
        if same and not rewritten and trace.inputs and len(trace.outputs) == 1:
            shapes = [_with_batch(shape, len(x)) for shape in trace.inputs]
            (shape, dtype), alone = trace.outputs[0], all(s[:1] == (1,) for s in trace.inputs)
            if alone == (shape[:1] == (1,)):
                found[key] = trace._replace(
                    inputs=shapes, outputs=[(_with_batch(shape, len(x)), dtype)]
                )
    if not found:
        return {}
    own = Plan(found, {}, {}, (), (), frozenset())
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of what the plain network does not do
            torch.no_grad(),
            network.taping(Tape(own.epsilons(x.device))),
        ):
            spread = network.call(params, x.clone())
        with torch.no_grad():
            plain = network.call(params, x.clone())
    except (RuntimeError, ValueError, TypeError, IndexError):  # another shape does not fit there
        return {}
    return found if _agree(spread, plain) else {}


def _with_batch(shape: torch.Size, batch: int) -> torch.Size:
    return torch.Size([batch, *(shape[1:] if shape[:1] == (1,) else shape)])


def _agree(one: Any, other: Any) -> bool:
    """Whether outputs are the same but for rounding."""
    ours, theirs = ([v for v in pytree.tree_leaves(o) if is_real(v)] for o in (one, other))
    if [v.shape for v in ours] != [v.shape for v in theirs]:
        return False
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.device.type != "meta"]
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


class _UnclearError(Exception):
    """A tensor whose batch axis cannot be told."""


def _axes(trace: Trace, longer: Trace, batch: int) -> tuple[list[Axis | None], list[Axis]]:
    if len(trace.inputs) != len(longer.inputs) or len(trace.outputs) != len(longer.outputs):
        raise _UnclearError
    pairs = zip(trace.inputs, longer.inputs, strict=True)
    inputs = [_grown_axis(a, b, batch) for a, b in pairs]
    outputs = []
    for (a, _), (b, _) in zip(trace.outputs, longer.outputs, strict=True):
        axis = _grown_axis(a, b, batch)
        if axis is None:
            raise _UnclearError  # an output that all samples share
        outputs.append(axis)
    return inputs, outputs


def _grown_axis(shape: torch.Size, longer: torch.Size, batch: int) -> Axis | None:
    """The axis that grew with one sample more, or None where none did."""
    if len(shape) != len(longer):
        raise _UnclearError
    grown = [i for i, (a, b) in enumerate(zip(shape, longer, strict=True)) if a != b]
    if not grown:
        return None
    axis = grown[0]
    repeat, rest = divmod(shape[axis], batch)
    if len(grown) > 1 or rest or longer[axis] != repeat * (batch + 1):
        raise _UnclearError
    return Axis(axis, repeat)


def _forms(
    network: Network, name: str, calls: list[tuple[Trace, list[Axis | None], list[Axis]]]
) -> list[SampleGradient] | None:
    """The gradients of all calls, by a rule that knows all of the layer's parameters, with samples
    on one axis of everything; None where there is none."""
    found: list[SampleGradient] = []
    if name not in network.rules:
        return None
    for trace, inputs, outputs in calls:
        if None in inputs or len({axis.repeat for axis in (*inputs, *outputs) if axis}) != 1:
            return None
        like = next(iter(network.model.parameters()))
        sizes = [shape for shape, _ in trace.outputs]
        deltas = tuple(a.first(like.new_zeros(s)) for a, s in zip(outputs, sizes, strict=True))
        tensors = zip(inputs, trace.inputs, trace.real, strict=True)
        made = tuple(
            a.first(like.new_zeros(s, dtype=None if real else torch.int64))
            for a, s, real in tensors
            if a is not None
        )
        known = network.rules[name].gradients(network.model.get_submodule(name), Call(made, deltas))
        if not network.owned[name].keys() <= known.keys():
            return None
        found += [known[own].folded(outputs[0].repeat) for own in network.owned[name]]
    return found


# Rehearsals ---------------------------------------------------------------------------------------


def _rehearse(network: Network, params: Params, x: Tensor) -> tuple[dict[CallKey, Trace], set[str]]:
    """One forward pass: the calls of all watched layers, and the parameters used elsewhere."""
    with _open_modules(network) as opened, torch.no_grad(), network.taping(Tape()) as tape:
        strangers = _Strangers(network, params, opened)
        with strangers:
            network.call(params, x.clone())  # a network may work in place
    return tape.traces, strangers.found


@contextmanager
def _open_modules(network: Network) -> Iterator[list[str]]:
    """The names of the watched layers whose forward is running, kept up to date by hooks."""
    opened: list[str] = []

    def push(name: str) -> Any:
        return lambda *_: opened.append(name)

    def pop(module: nn.Module, args: Any, output: Any) -> None:
        opened.pop()

    handles = []
    for name in network.owned:
        module = network.model.get_submodule(name)
        handles.append(module.register_forward_pre_hook(push(name), prepend=True))
        handles.append(module.register_forward_hook(pop))
    try:
        yield opened
    finally:
        for handle in handles:
            handle.remove()


class _Strangers(TorchFunctionMode):
    """Notes every parameter that a function sees while none of the parameter's layers is running.

    ``functional_call`` puts the very tensors of ``params`` into the modules, so they are known by
    identity. Looking at a shape or a dtype is no use of a parameter."""

    def __init__(self, network: Network, params: Params, opened: list[str]) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._opened = opened
        self._names = {id(p): name for name, p in params.items()}
        self._owners: dict[str, set[str]] = {}
        for layer, own in network.owned.items():
            for full in own.values():
                self._owners.setdefault(full, set()).add(layer)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        seen = {self._names.get(id(leaf)) for leaf in pytree.tree_leaves((args, kwargs))} - {None}
        if seen and any(is_real(leaf) for leaf in pytree.tree_leaves(result)):
            self.found |= {n for n in seen if n and not self._owners[n] & set(self._opened)}
        return result
