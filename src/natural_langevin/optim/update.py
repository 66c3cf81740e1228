"""A step of any dynamics on parameters that share device, precision, lr and temperature, with their
state as ``torch.optim`` has it: ``state[parameter]`` is a dict of tensors.

It is taken by torch's operations, or by the kernels of ``execution``. From operations a step writes
out every intermediate, some sixty times as many numbers as there are parameters; C code on a CPU,
or Triton's on a GPU, reads and writes each number once. Kernels take a gradient and statistics that
others have formed, so any network's parameters will do: float32, in memory as they are written
down, with dynamics and a metric that the kernels know. They write everything over the old state.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils import _pytree as pytree

from natural_langevin import random
from natural_langevin._internal import cuda_graphs
from natural_langevin._internal.chains import Params, Units
from natural_langevin._internal.messages import first_line
from natural_langevin.dynamics.base import State, note_diverged, select
from natural_langevin.dynamics.frame import Integrator, LangevinDynamics, kernels_of
from natural_langevin.dynamics.rates import Rates
from natural_langevin.execution.agreement import disagreement
from natural_langevin.execution.kernels import Backend, LayerTask, backend_for
from natural_langevin.execution.kernels.layer import (
    KINDS,
    LayerCall,
    LayerInputs,
    LayerState,
    LayerWork,
)
from natural_langevin.execution.kernels.step import DrawnInputs, coupled_units, layer_task
from natural_langevin.execution.stepping import overwrite
from natural_langevin.optim import shards
from natural_langevin.preconditioners import Metric, Preconditioner
from natural_langevin.priors import Prior
from natural_langevin.statistics import Evaluation, Gradients, Statistics
from natural_langevin.statistics.moments import Moments

log = logging.getLogger("natural_langevin")


class KernelStep:
    """``backend`` on parameters ``names``, which ``tasks`` share between them."""

    def __init__(self, backend: Backend, tasks: list[LayerTask], names: list[str]) -> None:
        self._backend, self._tasks, self._names = backend, tasks, names
        self._drawn = DrawnInputs()
        self._known: tuple[list[int], tuple[Any, ...], Params, list[LayerState]] = [], (), {}, []

    @property
    def on_trial(self) -> bool:
        """Whether its kernels are compiled for this run, and were never seen on this machine."""
        return self._backend.build is not None

    @staticmethod
    def of(
        dynamics: LangevinDynamics,
        params: Mapping[str, Tensor],
        units: Units,
        num_data: float,
    ) -> KernelStep | None:
        """None where no kernel computes this step. ``dynamics``: of the parameters by name."""
        kind = KINDS.get(type(dynamics.preconditioner))
        if kind is None or "linear" not in kernels_of(dynamics.integrator):
            return None
        if not all(p.dtype == torch.float32 and p.ndim and p.numel() for p in params.values()):
            return None
        here = {k: p[None] for k, p in params.items()}
        every = coupled_units(here, units if kind == "quasi-diagonal" else {})
        backend = backend_for(next(iter(params.values())).device)
        if backend is None or {name for own in every for name in own} != params.keys():
            return None
        damping = dynamics.damping(params, num_data)
        tasks = []
        for names in every:
            task = layer_task(dynamics, names[0], names, kind, dict(params), damping, given=True)
            if task is None:
                return None
            tasks.append(task)
        return KernelStep(backend, tasks, list(params))

    @property
    def deferrable(self) -> list[frozenset[str]]:
        """The parameters of every task that can do without statistics, given its layer's call."""
        return [frozenset(task.parameters) for task in self._tasks]

    def __call__(
        self, given: _Given, state: State, params: list[Tensor], evaluation: Evaluation
    ) -> None:
        """One step over ``params`` and ``state``, whose ``evaluation`` is by name; the calls that
        are ``given``, by weight, stand for the statistics of their layers."""
        dynamics, rates, num_data, keep = given.dynamics, given.rates, given.num_data, given.keep
        calls: Mapping[str, LayerCall] = given.moments.get("calls", {})
        goes_on = torch.ones_like(rates.step_size) if keep is None else keep
        at = state.step if cuda_graphs.has_graphs(rates.step_size.device) else int(state.step)
        drawn = self._drawn(dynamics, rates, num_data, goes_on, at)
        inputs = LayerInputs(*drawn, rates.kind.adapts, dynamics.fresh(rates.kind))
        theta, states = self._places(params, state)
        work: list[LayerWork] = []
        for task, own in zip(self._tasks, states, strict=True):
            sums = task.found(evaluation, theta, dynamics.weight(num_data))
            call = calls.get(task.parameters[0])
            work.append((task, own, sums if call is None else call._replace(given=sums)))
        self._backend.update_(work, inputs)

    def _places(
        self, params: list[Tensor], state: State
    ) -> tuple[dict[str, Tensor], list[LayerState]]:
        """The parameters, and every task's part of the state, with a chain axis; made anew where
        something lies elsewhere."""
        key = [p.data_ptr() for p in params]
        trees = state.mean, state.metric, state.own
        if key != self._known[0] or any(map(operator.is_not, trees, self._known[1])):
            theta = {k: p[None] for k, p in zip(self._names, params, strict=True)}
            named = state._replace(params=theta)
            self._known = key, trees, theta, [task.state(named) for task in self._tasks]
        return self._known[2:]


#: Kinds of steps, and sizes of batches, that are recorded at most: each has room of its own for a
#: gradient and its statistics.
MOST_RECORDINGS = 3


@dataclass(frozen=True, eq=False)
class OwnRows(LangevinDynamics):
    """Dynamics of this rank's rows. Draws are addressed by element: those of a parameter's rows
    begin at ``drawn`` (None: all rows are here), and nothing is communicated."""

    drawn: dict[str, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drawn is not None:
            object.__setattr__(self, "starts", self.drawn)

    def standard_normal(self, like: Params, step: Tensor, draw: int = 0) -> Params:
        if self.drawn is None:
            return super().standard_normal(like, step, draw)
        key, first = random.stream(self.noise, step), draw * self.stream_length
        random.check_addresses(first + self.stream_length)
        found = {}
        for k, p in like.items():
            start = first + self.starts[k]
            before = start % random.BLOCK  # normals are made in whole blocks
            z = random.normal(key, before + p[0].numel(), start=start - before)[:, before:]
            found[k] = z.to(p.dtype).reshape(p.shape)
        return found


@dataclass(frozen=True)
class Chain:
    """What the updates of one optimizer have in common: the chain that they are parts of."""

    integrator: Integrator
    preconditioner: Preconditioner
    gradients: Gradients
    seed: int
    number: int

    def dynamics(
        self, prior: dict[str, Prior], temperature: Tensor, drawn: dict[str, int] | None = None
    ) -> LangevinDynamics:
        """The chain's equation, for parameters of these priors, whose draws begin at ``drawn``."""
        number = torch.tensor([self.number], device=temperature.device)
        return OwnRows(
            self.integrator,
            gradients=self.gradients,
            preconditioner=self.preconditioner,
            prior=prior,
            temperature=temperature,
            noise=random.origin(self.seed, random.NOISE, number),
            labels=random.origin(self.seed, random.LABELS, number),
            drawn=drawn,
        )


class _Given(NamedTuple):
    """What a step is given. A graph reads its tensors where they were when it was recorded."""

    gradient: Sequence[Tensor]
    moments: Moments
    rates: Rates
    step: Tensor
    keep: Tensor | None
    dynamics: LangevinDynamics
    num_data: float
    size: int

    def tensors(self) -> Any:
        """A tree of all that changes from step to step."""
        rates = self.rates
        numbers = (rates.step_size, rates.decay, rates.mean, self.step)
        return list(self.gradient), self.moments, numbers, [k for k in [self.keep] if k is not None]

    def of(self, tensors: Any) -> _Given:
        """The same with other tensors in their places."""
        gradient, moments, (eta, gamma, mu, step), kept = tensors
        rates, keep = self.rates._replace(step_size=eta, decay=gamma, mean=mu), [*kept, None][0]
        return self._replace(gradient=gradient, moments=moments, rates=rates, step=step, keep=keep)


class Update:
    """Steps of ``params``: on one device, of one precision, with one lr and temperature.

    ``states``: the optimizer's ``state``, which holds what was before, or a checkpoint has left,
    for these parameters."""

    def __init__(
        self,
        params: Mapping[str, nn.Parameter],
        states: MutableMapping[Any, dict[str, Any]],
        chain: Chain,
        prior: Mapping[str, Prior],
        units: Units,
    ) -> None:
        self.params, self._states, self._chain = dict(params), states, chain
        here = self._here()
        first = next(iter(here.values()))
        self.device, self._dtype = first.device, first.dtype
        self._empty = not any(p.numel() for p in here.values())  # more ranks than rows
        self._drawn: dict[str, int] | None = None
        if shards.any_sharded(params.values()):
            start = chain.dynamics({}, torch.ones(1)).starts
            self._drawn = {k: start[k] + shards.offset(p) for k, p in params.items()}
        self._prior = {k: shards.rows_of_prior(prior[k], p) for k, p in params.items()}
        self._units = {b: ws for b, ws in units.items() if b in here}
        self._kernels: dict[float, KernelStep | None] = {}  # by N
        self._recordings: dict[Any, cuda_graphs.RecordedFunction] = {}  # by kind of step
        self._dynamics: dict[float, LangevinDynamics] = {}
        self._state = self._restored(
            State(
                step=torch.zeros((), dtype=torch.int64, device=self.device),
                params={},
                mean={k: p.clone() for k, p in here.items()},
                metric=chain.preconditioner.init(here, self._units),
                likelihood={},
                diverged=torch.full((1,), -1, device=self.device),
                own=chain.integrator.init(here),
            )
        )
        self._leaves: tuple[State | None, list[Tensor]] = None, []  # of the state
        self._published = False
        self.publish()

    # The state, here and in the optimizer ---------------------------------------------------------

    def _local(self) -> list[Tensor]:
        """This rank's rows of the parameters, where they lie now: a loop may put other memory into
        a parameter (``p.data = ...``) between two steps."""
        return [shards.local(p.detach()) for p in self.params.values()]

    def _here(self) -> Params:
        """The same by name, with a chain axis."""
        return {k: p[None] for k, p in zip(self.params, self._local(), strict=True)}

    def _kept(self, state: State) -> dict[str, dict[str, Any]]:
        """By parameter, what ``states`` keeps of it. A tensor of metric or momentum belongs to the
        parameter that its path ends in (a weight has one bias at most), else to the first."""
        found: dict[str, dict[str, Any]] = {k: {"mean": m[0]} for k, m in state.mean.items()}
        for tree in (state.metric, state.own):
            for path, leaf in pytree.tree_leaves_with_path(tree):
                kind, *names = (str(getattr(p, "name", getattr(p, "key", p))) for p in path)
                owner = (names[-1] if names else "") or next(iter(found))
                found[owner][kind] = leaf[0] if names else leaf
        return found

    def _restored(self, state: State) -> State:
        """The state with what ``states`` holds already, copied: a checkpoint stays as it is."""
        for k, fields in self._kept(state).items():
            for kind, into in fields.items():
                known = self._states.get(self.params[k], {}).get(kind)
                if known is not None:
                    into.copy_(shards.local(known))
        return state

    def publish(self) -> None:
        """Puts the state's tensors where ``torch.optim`` expects them. Idempotent."""
        if self._published:
            return
        self._published = True
        for k, fields in self._kept(self._state).items():
            p, shape = self.params[k], self._state.mean[k][0].shape
            own = {f: shards.like(p, v) if v.shape == shape else v for f, v in fields.items()}
            self._states[p].update(own)

    # The step -------------------------------------------------------------------------------------

    def step(
        self,
        gradient: Sequence[Tensor],
        moments: Moments,
        rates: Rates,
        *,
        step: Tensor,
        temperature: float,
        num_data: float,
        size: int,
        keep: Tensor | None = None,
        in_place: bool = False,
    ) -> None:
        """One step from every parameter's gradient and the means of ``moments``.

        ``size``: samples of the minibatch. ``keep`` (1,) bool: whether the step is taken, where
        that is known on the device only. ``in_place``: the new state lies where the old one
        did."""
        if self._empty:
            return
        own = self._own_moments(moments) if rates.kind.adapts else {}
        given = _Given(gradient, own, rates, step, keep, self._at(temperature), num_data, size)
        local = self._local()
        if num_data not in self._kernels:
            self._kernels[num_data] = self._tried(self._kernel_step(local, num_data), local, given)
        kernels = self._kernels[num_data] if _as_written(local) else None
        if in_place or not cuda_graphs.has_graphs(self.device):  # in place: others record it
            self._advance(kernels, local, given, in_place=in_place)
        else:
            key = rates.kind, temperature, size, keep is None, kernels is None
            self._advance_by_graph(key, kernels, local, given)
        increment_version(local)  # as torch's own operations in place do

    def _advance(
        self, kernels: KernelStep | None, local: list[Tensor], given: _Given, *, in_place: bool
    ) -> None:
        if kernels is not None:
            self._by_kernels(kernels, local, self._state, given)
            return
        new = self._by_operations(local, given)
        torch._foreach_copy_(local, [new.params[k][0] for k in self.params])
        if in_place:
            overwrite(self._state, new._replace(step=self._state.step, params={}))
            return
        self._state, self._published = new._replace(params={}), False

    def _advance_by_graph(
        self, key: Any, kernels: KernelStep | None, local: list[Tensor], given: _Given
    ) -> None:
        """On a GPU a step is recorded: its launches, a few for every layer, take longer than the
        work."""
        leaves, spec = pytree.tree_flatten(given.tensors())

        def advance(*tensors: Tensor) -> None:
            here = given.of(pytree.tree_unflatten(tensors, spec))
            self._advance(kernels, local, here, in_place=True)

        kind = given.rates.kind
        if kind.first or kind.refreshes or len(self._recordings.keys() | {key}) > MOST_RECORDINGS:
            advance(*leaves)
            return
        recorded = self._recordings.setdefault(
            key, cuda_graphs.RecordedFunction("the optimizer's step")
        )
        if self._leaves[0] is not self._state:
            self._leaves = self._state, pytree.tree_leaves(self._state)
        recorded(advance, leaves, [*local, *self._leaves[1]])

    def deferrable(self, num_data: float) -> list[frozenset[str]]:
        """Parameters, those of a layer together, whose step forms its own statistics: known before
        the first step, which has the bits of any other."""
        local = self._local()
        if cuda_graphs.has_graphs(self.device) or self._empty or not _as_written(local):
            return []
        known = self._kernels.get(num_data) or self._kernel_step(local, num_data)
        if known is None or known.on_trial:
            return []
        self._kernels[num_data] = known
        return known.deferrable

    def _by_kernels(
        self, kernels: KernelStep, params: list[Tensor], state: State, given: _Given
    ) -> None:
        kernels(given, state._replace(step=given.step), params, self._evaluation(given))

    def _by_operations(self, local: list[Tensor], given: _Given) -> State:
        found = self._evaluation(given)
        params = {k: p[None] for k, p in zip(self.params, local, strict=True)}
        here, keep = self._state._replace(step=given.step, params=params), given.keep
        on = given.dynamics
        new = on.integrator.update(on, here, found, given.rates, given.num_data)
        return new if keep is None else select(keep, new, here, note_diverged(here, keep))

    def _tried(
        self, kernels: KernelStep | None, local: list[Tensor], given: _Given
    ) -> KernelStep | None:
        """``kernels``, where this step by them is the step by torch's operations, on copies: a
        compiler and a driver that we have not seen stand between them and their source."""
        if kernels is None or not kernels.on_trial:
            return kernels
        try:
            own = [p.clone() for p in local]
            self._by_kernels(kernels, own, pytree.tree_map(torch.clone, self._state), given)
            right = self._by_operations(local, given).params
            found = {k: p[None] for k, p in zip(self.params, own, strict=True)}
            before = {k: p[None] for k, p in zip(self.params, local, strict=True)}
            wrong = disagreement(found, right, before)
            reason = f"they disagree on {wrong}" if wrong else ""
        except torch.OutOfMemoryError:  # two more states: too large a run to be looked at twice
            return kernels
        except Exception as error:
            reason = first_line(error)
        if not reason:
            return kernels
        log.warning("no kernels for the optimizer's step (%s): using torch operations", reason)
        return None

    def _own_moments(self, moments: Moments) -> Moments:
        """Those of these parameters."""
        return {
            field: {k: v for k, v in values.items() if k in self.params}
            for field, values in moments.items()
        }

    def _kernel_step(self, local: list[Tensor], num_data: float) -> KernelStep | None:
        params = dict(zip(self.params, local, strict=True))
        return KernelStep.of(self._at(1.0), params, self._units, num_data)

    def _evaluation(self, given: _Given) -> Evaluation:
        """What the step is given, by name and with a chain axis."""
        gradient = {k: g[None] for k, g in zip(self.params, given.gradient, strict=True)}
        means = {field: v for field, v in given.moments.items() if field != "calls"}
        loss = torch.zeros(1, device=self.device)
        return Evaluation(loss, gradient, _by_name(means), likelihood={}, size=given.size)

    def _at(self, temperature: float) -> LangevinDynamics:
        """The dynamics at this temperature; made once."""
        if temperature not in self._dynamics:
            tau = torch.tensor([temperature], dtype=self._dtype, device=self.device)
            self._dynamics[temperature] = self._chain.dynamics(self._prior, tau, self._drawn)
        return self._dynamics[temperature]

    @property
    def metric(self) -> Metric:
        """The metric of these parameters, with a chain axis."""
        return self._state.metric


def _as_written(params: list[Tensor]) -> bool:
    """Whether kernels can read them: a loop may have put other memory there."""
    return all(p.is_contiguous() for p in params)


def _by_name(moments: Moments) -> Statistics:
    own: Any = {field: _with_chain(values) for field, values in moments.items()}
    return Statistics(**own)


def _with_chain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _with_chain(value) for name, value in tree.items()}
    return tree[None]
