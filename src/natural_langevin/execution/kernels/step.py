"""A step whose linear layers are updated by a backend, and everything else by torch.

``evaluate_`` is one function to compile: forward, backward, and the general update of all
parameters that belong to no fused layer. It hands each fused layer's (a, delta) to the backend,
which forms the products and writes the layer's new state over the old one. Parameter by parameter
the result is that of ``LangevinDynamics.step``; only the order of summation differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import Batch
from natural_langevin.dynamics.base import (
    Info,
    State,
    note_diverged,
    select,
    still_running,
)
from natural_langevin.dynamics.frame import LangevinDynamics as Dynamics
from natural_langevin.dynamics.rates import Kind, Rates
from natural_langevin.execution.kernels.layer import (
    KINDS,
    Backend,
    Books,
    LayerInputs,
    LayerTask,
    LayerWork,
    Passes,
    chain_column,
    parameter_names,
    prior_numbers,
)
from natural_langevin.execution.kernels.layer import Kind as LayerKind
from natural_langevin.execution.stepping import StepData, overwrite
from natural_langevin.execution.traced import TracedFunction
from natural_langevin.preconditioners import Damping
from natural_langevin.statistics import DeferredCall, Evaluation, Statistics

#: Streams over which the updates of layers are spread.
MOST_STREAMS = 4
#: Rows on which layers' products are held against the loss's gradient.
ROWS_CHECKED = 10


class FusedStep:
    """One step in the state's own memory, of dynamics that ``plan`` has made ``tasks`` for."""

    def __init__(
        self,
        tasks: list[LayerTask],
        backend: Backend,
        compile: Callable[[Any], Any] | None = None,
        traces: TracedFunction | None = None,
    ) -> None:
        """``traces``: replays the passes, where nothing is deferred."""
        self.tasks, self.backend, self._compiles = tasks, backend, compile is not None
        self._evaluate = self.evaluate_ if compile is None else compile(self.evaluate_)
        self._traces, self._drawn = traces, DrawnInputs()
        self._deferred = tuple(task.name for task in tasks if not task.given)
        self._apart = {name for task in tasks for name in task.parameters}
        self._streams: list[torch.cuda.Stream] = []
        self._looked_up = False  # whether the next two have been looked for
        self._books: Books | None = None
        self._network: Passes | None = None  # both passes by kernels; None: by torch's operations

    def __call__(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> Info:
        self._open_books(dynamics, data, state)
        if self._books is not None:
            found = self._few_launches(self._books, dynamics, data, state, kind)
        else:
            found = self._evaluate(dynamics, data, state, batch, kind)
        info, calls, numbers, keys = found
        inputs = LayerInputs(numbers, keys, kind.adapts, dynamics.fresh(kind))
        work = [(task, task.state(state), calls[task.name]) for task in self.tasks]
        with self._side_by_side(state.step.device, work) as parts:
            for own, layers in parts:
                with own:
                    self.backend.update_(layers, inputs)
        return info

    @contextmanager
    def _side_by_side(
        self, device: torch.device, work: list[LayerWork]
    ) -> Iterator[list[tuple[AbstractContextManager[Any], list[LayerWork]]]]:
        """On a GPU every layer's update has a stream of its own: none waits for another's, and one
        chain's are too small to fill the device. Elsewhere the backend shares them out."""
        if device.type != "cuda" or len(self.tasks) == 1:
            yield [(nullcontext(), work)]
            return
        main = torch.cuda.current_stream(device)
        if not self._streams:
            self._streams = [torch.cuda.Stream(device) for _ in self.tasks[:MOST_STREAMS]]
        for stream in self._streams:
            stream.wait_stream(main)
        turn = map(torch.cuda.stream, itertools.cycle(self._streams))
        yield [(own, [layer]) for own, layer in zip(turn, work, strict=False)]
        for stream in self._streams:
            main.wait_stream(stream)

    def evaluate_(
        self, dynamics: Dynamics, data: StepData, state: State, batch: Batch | None, kind: Kind
    ) -> tuple[Info, dict[str, Any], Tensor, Tensor]:
        """Forward and backward, the rest of the state, and what the backend needs for its part."""
        batch, rates, num_data, chain_axis = data.inputs(state, batch, kind)

        def passes(inputs: Any) -> tuple[Any, ...]:
            params, likelihood, step, batch = inputs
            here = state._replace(params=params, likelihood=likelihood, step=step)
            found = dynamics.evaluate(
                here, batch, kind, chain_axis=chain_axis, deferred=self._deferred
            )
            told = found.loss, found.gradient, vars(found.statistics), found.likelihood
            return *told, {
                n: [t for t in call if t is not None] for n, call in found.deferred.items()
            }

        inputs = state.params, state.likelihood, state.step, batch
        if self._traces is None:
            found = passes(inputs)
        else:
            shapes = tuple((t.shape, t.dtype) for t in batch)
            key = kind.adapts, chain_axis, state.chains, shapes, self._deferred
            found = self._traces(key, passes, inputs)
        loss, gradient, statistics, likelihood, handed = found
        keep = still_running(state, loss)
        at = state.step if self._traces is None else int(state.step)
        numbers, keys = self._drawn(dynamics, rates, num_data, keep, at)
        deferred = {name: DeferredCall(*call) for name, call in handed.items()}
        size = batch[0].shape[1 if chain_axis else 0]
        evaluation = Evaluation(
            loss, gradient, Statistics(**statistics), likelihood, deferred, size
        )
        if self._traces is not None and bool(keep.all()):  # kernels move all there is
            calls = self._calls(evaluation, kind, state, dynamics.weight(num_data))
            overwrite(state.likelihood, likelihood)
            state.step.add_(1)
            return Info(loss, ~keep), calls, numbers, keys
        rest = self._rest(state)
        if rest.params:
            own = {k: g for k, g in evaluation.gradient.items() if k not in self._apart}
            theirs = replace(evaluation, gradient=own)
            new = dynamics.integrator.update(dynamics, rest, theirs, rates, num_data)
        else:
            new = dynamics.arrived(rest, {}, rest.metric, evaluation, rates, own=rest.own)
        diverged = note_diverged(state, keep)
        overwrite(rest, select(keep, new, rest, diverged))
        calls = self._calls(evaluation, kind, state, dynamics.weight(num_data))
        return Info(evaluation.loss, diverged >= 0), calls, numbers, keys

    def _calls(
        self, evaluation: Evaluation, kind: Kind, state: State, weight: float | Tensor
    ) -> dict[str, Any]:
        return {
            task.name: task.found(evaluation, state.params, weight)
            if task.given
            else self.backend.arrange(task, evaluation.deferred[task.name], kind.adapts)
            for task in self.tasks
        }

    def build(self, dynamics: Dynamics, data: StepData, state: State, kinds: set[bool]) -> None:
        """Has the backend compile what steps that adapt, or do not, will call."""
        self._open_books(dynamics, data, state)
        if self.backend.build is not None:
            self.backend.build(self.tasks, self._books, self._network, dynamics, data, state, kinds)

    def _open_books(self, dynamics: Dynamics, data: StepData, state: State) -> None:
        """Where kernels move every parameter, they can do the rest of a step as well."""
        books, whole = self.backend.bookkeeping, set(state.params) == self._apart
        if self._looked_up or books is None or not whole or self._compiles:
            return
        self._looked_up = True
        if books.serves(dynamics, data, state):
            self._books = books(dynamics, data, state)
            if self.backend.network is not None:
                self._network = self.backend.network(dynamics, data, state, self.tasks)

    def without_network(self) -> bool:
        """Leaves the network's passes to torch's operations; whether kernels had them before."""
        had, self._network = self._network is not None, None
        return had

    def _few_launches(
        self, books: Books, dynamics: Dynamics, data: StepData, state: State, kind: Kind
    ) -> tuple[Info, dict[str, Any], Tensor, Tensor]:
        """``evaluate_`` where there is no rest but what the likelihood learns."""
        batch, numbers, keys = books.begin(dynamics, data, state, kind)
        if self._network is not None:
            losses, calls = self._network(state, batch)
            return books.end(state, losses), calls, numbers, keys
        evaluation = dynamics.evaluate(state, batch, kind, chain_axis=True, deferred=self._deferred)
        info = books.end(state, evaluation.loss[:, None])
        for name, old in state.likelihood.items():
            keep = books.keep.reshape(-1, *(1,) * (old.ndim - 1))
            old.copy_(torch.where(keep, evaluation.likelihood[name], old))
        calls = self._calls(evaluation, kind, state, dynamics.weight(data.count))
        return info, calls, numbers, keys

    def _rest(self, state: State) -> State:
        """The part of the state that no fused layer owns: the same tensors."""

        def without(tree: dict[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in tree.items() if k not in self._apart}

        return state._replace(
            params=without(state.params),
            mean=without(state.mean),
            metric={group: without(values) for group, values in state.metric.items()},
            own=type(state.own)(*map(without, state.own)),
        )


def step_numbers(
    dynamics: Dynamics, rates: Rates, num_data: float | Tensor, keep: Tensor
) -> Tensor:
    """``LayerInputs.numbers``; ``keep``: which chains go on, (chain,)."""
    share, kept, _ = dynamics.integrator.kernel_update
    like = rates.decay
    return torch.stack(
        torch.broadcast_tensors(
            rates.step_size, dynamics.noise_scale(rates, num_data, share), like, rates.mean,
            1 / num_data if isinstance(num_data, Tensor) else like.new_full((), 1 / num_data),
            keep.to(like.dtype), like.new_full((), kept),
        ),
        dim=1,
    )  # fmt: skip


class DrawnInputs:
    """``step_numbers`` and noise keys. Of an int ``step``, on a CPU, where an operation takes
    longer than its few numbers, what it has in common with the one before is kept, and the next
    call writes over it."""

    def __init__(self) -> None:
        self._known: tuple[object, ...] = ()
        self._numbers = torch.empty(0)

    def __call__(
        self,
        dynamics: Dynamics,
        rates: Rates,
        num_data: float | Tensor,
        keep: Tensor,
        step: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        keys = random.stream(dynamics.noise, step).contiguous()
        if isinstance(step, Tensor):
            return step_numbers(dynamics, rates, num_data, keep), keys
        tau = dynamics.temperature.tolist()
        known = dynamics, rates.step_size.tolist(), tau, float(num_data), rates.kind.explores
        if known != self._known:
            self._known = known
            self._numbers = step_numbers(dynamics, rates, num_data, keep).contiguous()
        else:
            numbers = self._numbers.numpy()
            numbers[:, 2], numbers[:, 3] = float(rates.decay), float(rates.mean)
            numbers[:, 5] = keep.numpy()
        return self._numbers, keys


def plan(
    dynamics: Dynamics,
    state: State,
    batch: Batch,
    num_data: float,
    *,
    given: bool = False,
    each: bool = False,
) -> list[LayerTask]:
    """The layers of this network that a backend may update; ``batch`` has no chain axis. With
    ``given``, also parameters whose gradients and statistics are formed elsewhere; with ``each``,
    weights each of which has a variance of its own.

    The dynamics say whether the kernels compute their update at all, the metric's own class says
    of which kind it is. A layer qualifies when its gradients can be deferred (see
    ``Gradients.deferrable``), its parameters are float32 and all trainable, and its priors are
    Gaussian or flat (others where gradients are given); and when delta^T a is the gradient of its
    weight on this batch, whatever the network's structure says.
    """
    if "linear" not in dynamics.kernels:
        return []
    kind = KINDS.get(type(dynamics.preconditioner))
    if kind is None:
        return []
    trainable = dynamics.gradients.network.trainable()
    damping = dynamics.damping(dynamics.prior, num_data)
    model = dynamics.gradients.network.model
    layers = {}
    for name in dynamics.gradients.deferrable(state.params, batch[0]):
        weight, bias = parameter_names(name)
        names = (weight, bias)[: 1 + (model.get_submodule(name).bias is not None)]
        layers[name] = layer_task(dynamics, name, names, kind, trainable, damping, each=each)
    found = {name: task for name, task in layers.items() if task is not None}
    tasks = [found[name] for name in _with_true_gradient(dynamics, state, batch, list(found))]
    if given:
        taken = {name for task in tasks for name in task.parameters}
        for own in coupled_units(state.params, state.metric.get("cross", {}), taken):
            task = layer_task(dynamics, own[0], own, kind, trainable, damping, given=True)
            tasks += [task] if task is not None else []
    return tasks


def coupled_units(
    params: Mapping[str, Tensor], cross: Mapping[str, Collection[str]], taken: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """The parameters that are not ``taken``, by what the metric couples, ``cross`` by bias: alone,
    or a weight (chain, unit, ...) and the bias (chain, unit) of its units. Units with several
    weights are left out."""
    pairs = [(w, b) for b, row in cross.items() for w in row]
    apart = {*taken, *(name for pair in pairs for name in pair)}
    biases = [b for _, b in pairs]
    found: list[tuple[str, ...]] = [
        (w, b)
        for w, b in pairs
        if biases.count(b) == 1
        and not {w, b} & set(taken)
        and params[w].shape[:2] == params[b].shape
    ]
    units = [*found, *((n,) for n, p in params.items() if n not in apart and p.ndim > 1)]
    return [own for own in units if all(params[n].is_contiguous() for n in own)]


def layer_task(
    dynamics: Dynamics,
    name: str,
    names: tuple[str, ...],
    kind: LayerKind,
    trainable: dict[str, Tensor],
    damping: Damping,
    *,
    given: bool = False,
    each: bool = False,
) -> LayerTask | None:
    """The parameters ``names``, a weight and perhaps its bias, as kernels see them; or None.
    ``given``: their gradients are formed elsewhere; ``each``: weights may have a variance each."""
    weight = names[0]
    if any(n not in trainable or trainable[n].dtype != torch.float32 for n in names):
        return None
    chains, device = len(dynamics.temperature), trainable[weight].device
    both, power = (weight, names[-1]), chain_column(dynamics.weight(1.0), chains, device)
    known = {n: prior_numbers(dynamics.prior[n], power) for n in both}
    precisions = dynamics.prior[weight].precisions if each else None
    if precisions is not None:
        known[weight] = torch.zeros(chains, 2, device=device)
        precisions = precisions.to(device, torch.float32).expand(chains, -1, -1)
        precisions = (precisions / power[:, None, None]).contiguous()
    others = {n: dynamics.prior[n] for n in names if known[n] is None}
    if others and (not given or kind == "rmsprop"):  # whose metric is of the loss's gradient alone
        return None
    flat = torch.zeros(chains, 2, device=device)
    numbers = [flat if (own := known[n]) is None else own for n in both]
    return LayerTask(
        name=name,
        kind=kind,
        parameters=names,
        damping=torch.stack([chain_column(damping[n], chains, device) for n in both], dim=1),
        weight_start=dynamics.starts[weight],
        bias_start=dynamics.starts[names[-1]],
        prior=torch.cat(numbers, dim=1).contiguous(),
        scheme=dynamics.integrator.kernel_update.scheme,
        given=given,
        each=precisions,
        others=others,
    )


def _with_true_gradient(
    dynamics: Dynamics, state: State, batch: Batch, names: list[str]
) -> list[str]:
    """Those layers whose delta^T a / B is the loss's gradient, for one chain and a few rows."""
    if not names:
        return []
    if dynamics.gradients.data_parallel is None:
        batch = batch[0][:ROWS_CHECKED], batch[1][:ROWS_CHECKED]
    one = state._replace(
        params={k: p[:1] for k, p in state.params.items()},
        likelihood={k: v[:1] for k, v in state.likelihood.items()},
    )
    first = replace(dynamics, labels=dynamics.labels[:1])
    first.prepare(one.params, batch[0])
    whole = first.evaluate(one, batch, chain_axis=False).gradient
    apart = first.evaluate(one, batch, chain_axis=False, deferred=tuple(names)).deferred
    true = []
    for name in names:
        a, delta, _ = apart[name]
        expected = whole[parameter_names(name)[0]]
        error = (delta.mT @ a / a.shape[-2] - expected).norm()
        if error <= 1e-2 * expected.norm() + 1e-12:
            true.append(name)
    return true
