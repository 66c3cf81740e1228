"""What the user's passes show: inputs and output gradients of every layer call, and a copy of the
network for what they do not show.

A forward hook on every layer keeps the tensors that went in, and a hook on what came out waits for
its gradient. Both belong to the autograd graph: a forward pass that no backward follows (such as an
evaluation) is dropped with its graph. Passes that a gradient has reached are ``touched`` until
their statistics are computed.

The copy holds the same parameters. It is run to find which axis of every tensor is the batch, what
happens inside layers that torch computes in one kernel (attention, a recurrent net), and the
gradients of single samples where no rule describes them. A network may take any arguments. The
gradients' machinery knows networks of one tensor, whose rows are samples; here that tensor is a
vector of row numbers, and ``Arguments`` picks the rows.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods import State as LikelihoodState
from natural_langevin.statistics import Network, vectorised
from natural_langevin.statistics.plan import Plan
from natural_langevin.statistics.prepare import refuse_model
from natural_langevin.statistics.tape import CallKey, Tape, Tensors, is_real


class Arguments(NamedTuple):
    """What a network was called with: leaves of (args, kwargs), and which of them have samples."""

    leaves: list[Any]
    spec: Any
    batched: tuple[bool, ...]
    size: int  # samples

    @staticmethod
    def of(args: Any, kwargs: Any) -> Arguments:
        """The arguments of a call, and which of them have a batch axis."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim > 0]
        if not tensors:
            raise TypeError(
                "the model was called without a tensor among its arguments, so the number of "
                "samples cannot be seen: give it tensors whose first axis is the batch (they may "
                "be in lists, tuples and dicts)"
            )
        size = len(tensors[0])
        batched = tuple(
            isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == size for leaf in leaves
        )
        kept = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return Arguments(kept, spec, batched, size)

    def first_alone(self) -> Arguments:
        """The same with samples in the first tensor only."""
        first = self.batched.index(True)
        return self._replace(batched=tuple(i == first for i in range(len(self.batched))))

    def rows(self, rows: Tensor) -> tuple[Any, Any]:
        """(args, kwargs) with these samples."""
        pairs = zip(self.leaves, self.batched, strict=True)
        return pytree.tree_unflatten([x[rows] if has else x for x, has in pairs], self.spec)

    @property
    def every_row(self) -> Tensor:
        """The numbers of all samples: (B,)."""
        device = next(x.device for x, has in zip(self.leaves, self.batched, strict=True) if has)
        return torch.arange(self.size, device=device)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Calls of the same kind have the same plan."""
        shapes = tuple(
            (x.shape, x.dtype) if isinstance(x, Tensor) else repr(x) for x in self.leaves
        )
        return (str(self.spec), *shapes)


class Cotangent(Likelihood):
    """<delta_n, outputs_n>: a loss whose gradient is that of the user's, for known delta."""

    def __init__(self) -> None:
        self.deltas: list[Tensor | None] = []

    def log_loss(self, outputs: Any, y: Tensor, state: LikelihoodState) -> Tensor:
        """``y`` holds row numbers."""
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if is_real(leaf)]
        terms = [
            (o * d[y].to(o.dtype)).reshape(len(y), -1).sum(1)
            for o, d in zip(leaves, self.deltas, strict=True)
            if d is not None
        ]
        return torch.stack(terms).sum(0)


class NetworkCopy(Network):
    """A network of row numbers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.arguments: Arguments | None = None
        self._sampled = {n: p for n, p in model.named_parameters() if p.requires_grad}

    @property
    def first(self) -> Tensor:
        """The first of the trainable parameters."""
        return next(iter(self._sampled.values())).detach()

    def trainable(self) -> Params:
        """As it was at the start: what is frozen on the way keeps its place in the noise."""
        return {name: p.detach() for name, p in self._sampled.items()}

    @contextmanager
    def called_with(self, arguments: Arguments) -> Iterator[None]:
        """Inside, the network is called with these arguments."""
        before, self.arguments = self.arguments, arguments
        try:
            yield
        finally:
            self.arguments = before

    def call(self, params: Params, x: Tensor, *, once: bool = False) -> Any:
        assert self.arguments is not None
        args, kwargs = self.arguments.rows(x)
        with vectorised(x, once=once):
            return self.slots.call(params, args, kwargs)

    def follow(self, model: nn.Module) -> None:
        """Takes over the modes and buffers that ``model`` has by now."""
        for ours, theirs in zip(self.model.modules(), model.modules(), strict=True):
            ours.training = theirs.training
            for name, value in theirs._buffers.items():
                ours._buffers[name] = None if value is None else value.detach().clone()


def copy_network(model: nn.Module) -> nn.Module:
    """A copy that shares all parameters, and nothing else."""
    refuse_model(model)
    if type(model).__name__ == "OptimizedModule":
        raise TypeError(
            "the model is wrapped by torch.compile, inside which no hook sees the layers: give the "
            "original module to the optimizer and call it in the loop, or use Langevin(...), which "
            "compiles the whole step"
        )
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


class Record:
    """One call of a layer: its arguments, and the gradients of its floating-point outputs."""

    def __init__(self, owner: Pass | None, args: Any, kwargs: Any) -> None:
        # Weakly: a pass and its records go when their graph goes, not at the next collection.
        self._owner = None if owner is None else weakref.ref(owner)
        leaves, self._spec = _flat((args, kwargs) if kwargs or len(args) != 1 else args[0])
        self._alone = not kwargs and len(args) == 1
        # Detached, a tensor still counts how often it was changed in place.
        self._leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._versions = [leaf._version for leaf in self._leaves if isinstance(leaf, Tensor)]
        self.deltas: list[Tensor | None] = []
        self.drawn: list[Tensor | None] = []  # for labels drawn from the model

    @property
    def owner(self) -> Pass | None:
        """The forward pass that the call belongs to, while it is alive."""
        return None if self._owner is None else self._owner()

    def tensors(self, what: str) -> list[Tensor]:
        """The tensors among the arguments, as they were when the layer was called."""
        found = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        if [t._version for t in found] != self._versions:
            raise RuntimeError(
                f"an input of {what} was changed in place after its forward pass, and before its "
                "statistics were taken at step(): work on a copy (x = x.clone())"
            )
        return found

    def arguments(self, what: str, dtype: torch.dtype) -> Any:
        """(args, kwargs), floating-point tensors as ``dtype``."""
        self.tensors(what)
        leaves = [leaf.to(dtype) if is_real(leaf) else leaf for leaf in self._leaves]
        found = _unflat(leaves, self._spec)
        return ((found,), {}) if self._alone else found

    def watch(
        self, output: Any, arrived: Callable[[Record, int, Tensor], None], *, keep: Any = None
    ) -> Any:
        """The output to hand on, whose gradients will be told to ``arrived``. Its graph keeps
        ``keep`` alive."""
        leaves, spec = _flat(output)
        places = [i for i, leaf in enumerate(leaves) if is_real(leaf)]
        self.deltas, self.drawn = [None] * len(places), [None] * len(places)
        changed = False
        for index, place in enumerate(places):
            if not leaves[place].requires_grad:
                continue
            # An in-place operation on a view would lose its hooks; and one of several outputs may
            # have been made from another one, whose gradient would then count that use as well.
            if leaves[place]._is_view() or len(places) > 1:
                leaves[place], changed = leaves[place].clone(), True
            leaves[place].register_hook(_Arrival(self, index, arrived, keep))
        return _unflat(leaves, spec) if changed else output


def _flat(tree: Any) -> tuple[list[Any], Any]:
    """Its leaves, and what it is otherwise; None where it is one tensor, as most are: a hook takes
    longer to look for others than a small layer to be computed."""
    return ([tree], None) if type(tree) is Tensor else pytree.tree_flatten(tree)


def _unflat(leaves: list[Any], spec: Any) -> Any:
    return leaves[0] if spec is None else pytree.tree_unflatten(leaves, spec)


class _Arrival:
    """The hook on an output. It returns nothing: the gradient stays as it is."""

    def __init__(
        self,
        record: Record,
        index: int,
        arrived: Callable[[Record, int, Tensor], None],
        keep: Any,
    ) -> None:
        self.record, self.index, self.arrived, self.keep = record, index, arrived, keep

    def __call__(self, gradient: Tensor) -> None:
        self.arrived(self.record, self.index, gradient.detach())


class Pass:
    """One forward pass of the whole network with gradients enabled."""

    def __init__(self, arguments: Arguments, plan: Plan | None, wanted: frozenset[str]) -> None:
        self.arguments, self.plan, self.wanted = arguments, plan, wanted
        self.calls: dict[CallKey, Record] = {}
        self.root: Record | None = None
        self.counted = False
        self._counts: dict[str, int] = {}

    def begin(self, name: str) -> CallKey:
        """The key of a layer's next call: its name, and how often it was called before."""
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return (name, count)


class Hook:
    """A module's hook, which works for that module only: copies of the module are not watched, and
    can be pickled."""

    def __init__(self, target: Any, method: str, module: nn.Module | None, name: str = "") -> None:
        self._target = None if target is None else weakref.ref(target)
        self._module = None if module is None else weakref.ref(module)
        self._method, self._name = method, name

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        if self._target is None or self._module is None or self._module() is not module:
            return None
        target = self._target()
        return None if target is None else getattr(target, self._method)(self._name, *args)

    def __deepcopy__(self, memo: Any) -> Hook:
        return Hook(None, self._method, None, self._name)

    def __reduce__(self) -> Any:
        return Hook, (None, self._method, None, self._name)


def remove_hooks(model: nn.Module) -> None:
    """Removes all such hooks from a module and its submodules."""
    for module in model.modules():
        tables: tuple[dict[int, Any], ...] = (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._forward_hooks_with_kwargs,
            module._forward_hooks_always_called,
            module._forward_pre_hooks_with_kwargs,
        )
        ours = [k for t in tables[:2] for k, hook in t.items() if isinstance(hook, Hook)]
        for key in ours:
            for table in tables:
                table.pop(key, None)


class Capture:
    """Watches a model's passes. ``plan_for(arguments)`` is asked before each of them."""

    def __init__(
        self,
        model: nn.Module,
        layers: list[str],
        plan_for: Callable[[Arguments], tuple[Arguments, Plan | None, frozenset[str]]],
        finished: Callable[[Pass, Any], None] | None,
    ) -> None:
        """``finished(pass, outputs)``: told of every pass, while its graph is whole."""
        self.touched: list[Pass] = []
        self.stray: str | None = None  # a layer that a gradient reached outside model(...)
        self._plan_for, self._finished = plan_for, finished
        #: What the loop is given for the outputs of a pass.
        self.hand_out: Callable[[Pass, Any], Any] = lambda one, outputs: outputs
        self._running: list[Pass | None] = []
        self._drawing = False
        # First of all hooks: a user's own hook may change the output afterwards.
        for name in layers:
            module = model.get_submodule(name)
            hook = Hook(self, "_layer_called", module, name)
            module.register_forward_hook(hook, with_kwargs=True, prepend=True)
        before, after = Hook(self, "_begin", model), Hook(self, "_end", model)
        model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        model.register_forward_hook(after, with_kwargs=True, always_call=True)

    def forget(self) -> None:
        """Drops what has been seen of passes that a gradient reached."""
        for one in self.touched:
            for record in (one.root, *one.calls.values()):
                if record is not None:
                    record.deltas = [None] * len(record.deltas)
        self.touched, self.stray = [], None

    def draw(self, backward: Callable[[], Any]) -> None:
        """Runs a backward pass whose gradients count as those of drawn labels."""
        self._drawing = True
        try:
            backward()
        finally:
            self._drawing = False

    def _begin(self, _: str, args: Any, kwargs: Any) -> None:
        self._running.append(None)
        if torch.is_grad_enabled():
            self._running[-1] = Pass(*self._plan_for(Arguments.of(args, kwargs)))

    def _end(self, _: str, args: Any, kwargs: Any, output: Any) -> Any:
        running = self._running.pop() if self._running else None
        if running is None or output is None:
            return None
        running.root = Record(running, args, kwargs)
        output = running.root.watch(output, self._arrived, keep=running)
        if self._finished is not None:
            self._finished(running, output)
        return self.hand_out(running, output)

    def _layer_called(self, name: str, args: Any, kwargs: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        running = self._running[-1] if self._running else None
        if running is None:  # perhaps a checkpoint's second pass, which no gradient reaches
            stray = Record(None, (), {})
            return stray.watch(output, lambda *_: self._strayed(name))
        key = running.begin(name)
        if name not in running.wanted:
            return None
        record = running.calls[key] = Record(running, args, kwargs)
        if running.plan is not None and key in running.plan.shared:
            output = output.expand(running.plan.traces[key].outputs[0][0])
        return record.watch(output, self._arrived)

    def _strayed(self, name: str) -> None:
        self.stray = name

    def _arrived(self, record: Record, index: int, gradient: Tensor) -> None:
        owner = record.owner
        if self._drawing:
            record.drawn[index] = gradient
            return
        if owner is None:  # the outputs of the network are gone: what is this the gradient of?
            self._strayed("one of its layers")
            return
        if owner.counted:
            raise RuntimeError(
                "a second backward pass went through outputs whose statistics have been counted "
                "already: add up the losses of one forward pass and call backward() once"
            )
        if not any(one is owner for one in self.touched):
            self.touched.append(owner)
        before = record.deltas[index]
        record.deltas[index] = gradient if before is None else before + gradient


@dataclass(frozen=True)
class CallReader:
    """Reads the calls that ``plan`` names, in the precision of ``like``.

    ``opaque``: the layers of one kernel. ``drawn``: gradients are those of labels drawn from the
    model. ``replay``: runs such a layer again, a function of tensors with the same operations for
    every call of one kind."""

    network: NetworkCopy
    plan: Plan
    opaque: Collection[str]
    like: Tensor
    drawn: bool
    replay: Callable[[Any, Callable[[Any], Any], Any], Any]

    def read(self, one: Pass) -> tuple[Tensors, Tensors]:
        """Inputs and output gradients, by call."""
        inputs: Tensors = {}
        deltas: Tensors = {}
        for name in sorted(one.wanted & set(self.opaque)):
            seen, pulled = self._look_inside(one, name)
            inputs |= seen
            deltas |= pulled
        for key, trace in self.plan.traces.items():
            if key in inputs:
                continue
            record = one.calls.get(key)
            if record is None or len(record.deltas) != len(trace.outputs):
                raise ValueError(_unexpected(key[0]))
            found = record.tensors(f"layer {key[0]!r}")
            same = [t.to(self.like.dtype) if is_real(t) else t for t in found]
            try:
                inputs[key] = self.plan.spread(key, same)
            except RuntimeError:
                raise ValueError(_unexpected(key[0])) from None
            if [t.shape for t in inputs[key]] != trace.inputs:
                raise ValueError(_unexpected(key[0]))
            pairs = zip(self._of(record), trace.outputs, strict=True)
            deltas[key] = [self._delta(known, shape) for known, (shape, _) in pairs]
        planned = {key[0] for key in self.plan.traces} - set(self.opaque)
        surplus = {k for k in one.calls if k not in inputs and k[0] in planned}
        if surplus:
            raise ValueError(_unexpected(next(iter(surplus))[0]))
        return inputs, deltas

    def _of(self, record: Record) -> list[Tensor | None]:
        return record.drawn if self.drawn else record.deltas

    def _delta(self, known: Tensor | None, shape: torch.Size) -> Tensor:
        """In full precision; zero for an output that the loss does not depend on."""
        return self.like.new_zeros(shape) if known is None else known.to(self.like.dtype)

    def _look_inside(self, one: Pass, name: str) -> tuple[Tensors, Tensors]:
        """The same of a layer's inner maps, by running it again."""
        module, traces = self.network.model.get_submodule(name), self.plan.traces
        names, params = self.network.names_within(name), self.network.trainable()
        own = {k: params[full] for k, full in names.items()}
        records = [r for key, r in one.calls.items() if key[0] == name]
        keys = [k for k in traces if k[0] == name or k[0].startswith(f"{name}.")]
        every = self.plan.epsilons(self.like.device)
        if sum(k[0] == name for k in keys) not in (0, len(records)):
            raise ValueError(_unexpected(name))
        arguments = [r.arguments(f"layer {name!r}", self.like.dtype) for r in records]
        leaves, spec = pytree.tree_flatten(arguments)
        holes = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        known = [d for r in records for d in self._of(r)]
        ends = [i for i, d in enumerate(known) if d is not None]

        def looked(inputs: Any) -> tuple[Tensors, Tensors]:
            own, tensors, gradients = inputs
            filled = dict(enumerate(leaves)) | dict(zip(holes, tensors, strict=True))
            calls = pytree.tree_unflatten(list(filled.values()), spec)

            def outputs(epsilons: Tensors) -> tuple[list[Tensor], Tensors]:
                found = []
                with self.network.taping(Tape(epsilons)) as tape:
                    for args, kwargs in calls:
                        with vectorised(self.like):
                            result = functional_call(module, own, args, kwargs)
                        found += [leaf for leaf in pytree.tree_leaves(result) if is_real(leaf)]
                return found, tape.inputs

            made, pullback, seen = vjp(outputs, {k: every[k] for k in keys}, has_aux=True)  # type: ignore[misc]
            reached = dict(zip(ends, gradients, strict=True))
            cotangents = [
                self._delta(reached.get(i), output.shape) for i, output in enumerate(made)
            ]
            (pulled,) = pullback(cotangents)
            return seen, pulled

        rest = repr([leaf for leaf in leaves if not isinstance(leaf, Tensor)])
        kind = (id(self.plan), name, spec, rest, tuple(ends), self.like.dtype, self.like.device)
        given = (own, [leaves[i] for i in holes], [known[i] for i in ends])
        return self.replay(kind, looked, given)


def _unexpected(name: str) -> str:
    return (
        f"layer {name!r} was not called as in the rehearsal of this batch's shape: does the "
        "network choose its layers by the values of its inputs, or call them without gradients, "
        "as torch.utils.checkpoint does (use use_reentrant=False there)? Use "
        "preconditioners.RMSProp() or Euclidean() for such a network"
    )
