"""A step of any dynamics on the parameters of one vector, with their state as ``torch.optim`` has
it: ``state[parameter]`` is a dict of tensors of the parameter's shape, views of the vectors here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
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
from natural_langevin.dynamics.frame import Integrator, LangevinDynamics
from natural_langevin.dynamics.rates import Rates
from natural_langevin.execution.agreement import disagreement
from natural_langevin.execution.kernels.layer import LayerCall
from natural_langevin.execution.stepping import overwrite
from natural_langevin.optim import shards
from natural_langevin.optim.kernel_step import KernelStep
from natural_langevin.optim.metric_state import MetricLayout
from natural_langevin.optim.vector import VECTOR, Vector, VectorPrior
from natural_langevin.optim.vector_metric import NamedMetric, vector_metric
from natural_langevin.preconditioners import Metric, Preconditioner
from natural_langevin.priors import Prior
from natural_langevin.statistics import Evaluation, Gradients, Statistics
from natural_langevin.statistics.moments import Moments

log = logging.getLogger("natural_langevin")

#: Kinds of steps, and sizes of batches, that are recorded at most: each has room of its own for a
#: gradient and its statistics.
MOST_RECORDINGS = 3


@dataclass(frozen=True, eq=False)
class VectorDynamics(LangevinDynamics):
    """The dynamics of one ``vector``, or of none.

    Draws are addressed by element: a rank that holds some rows of a tensor makes those of its own
    rows, and nothing is communicated."""

    vector: Vector | None = None

    def standard_normal(self, like: Params, step: Tensor, draw: int = 0) -> Params:
        assert self.vector is not None
        first = draw * self.stream_length
        random.check_addresses(first + self.stream_length)
        parts = [self._drawn(step, first + r.start, r.end - r.start) for r in self.vector.runs]
        z = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return {VECTOR: self.vector.without_gaps(z).to(like[VECTOR].dtype)}

    def _drawn(self, step: Tensor, start: int, count: int) -> Tensor:
        before = start % random.BLOCK  # normals are made in whole blocks
        key = random.stream(self.noise, step)
        return random.normal(key, before + count, start=start - before)[:, before:]


@dataclass(frozen=True)
class Chain:
    """What the vectors of one optimizer have in common: the chain that they are parts of."""

    integrator: Integrator
    preconditioner: Preconditioner
    gradients: Gradients
    seed: int
    number: int

    def dynamics(
        self, prior: dict[str, Prior], temperature: Tensor, vector: Vector | None = None
    ) -> LangevinDynamics:
        """The chain's equation, for parameters of these priors, or for a ``vector`` of them."""
        number = torch.tensor([self.number], device=temperature.device)
        return VectorDynamics(
            self.integrator,
            gradients=self.gradients,
            preconditioner=self.preconditioner,
            prior=prior,
            temperature=temperature,
            noise=random.origin(self.seed, random.NOISE, number),
            labels=random.origin(self.seed, random.LABELS, number),
            vector=vector,
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


class VectorUpdate:
    """The parameters of one vector: on one device, of one precision, with one lr and temperature.

    ``states``: the optimizer's ``state``, which holds what an earlier vector, or a checkpoint, has
    left for these parameters."""

    def __init__(
        self,
        params: Mapping[str, nn.Parameter],
        states: MutableMapping[Any, dict[str, Any]],
        chain: Chain,
        prior: Mapping[str, Prior],
        units: Units,
    ) -> None:
        self.params, self._states = dict(params), states
        local = dict(zip(self.params, self._local(), strict=True))
        start = chain.dynamics({}, torch.ones(1)).starts
        drawn = {k: start[k] + shards.offset(p) for k, p in params.items()}
        self.vector = Vector(local, drawn)
        self._metric = vector_metric(chain.preconditioner, self.vector, units)
        self._given, self._chain = chain, replace(chain, preconditioner=self._metric)
        own = {k: shards.rows_of_prior(prior[k], p) for k, p in params.items()}
        self._prior: dict[str, Prior] = {VECTOR: VectorPrior(self.vector, own)}
        self._own_prior, self._drawn, self._units = own, drawn, units
        self._kernels: dict[float, KernelStep | None] = {}  # by N
        self._recordings: dict[Any, cuda_graphs.RecordedFunction] = {}  # by kind of step
        self._named: MetricLayout | None = None
        if isinstance(self._metric, NamedMetric):
            shapes = {k: p.shape for k, p in local.items()}
            self._named = MetricLayout(chain.preconditioner, shapes, self._metric.units)
        self._dynamics: dict[float, LangevinDynamics] = {}
        self._biased = _with_bias_row(self._metric)
        self._state = self._restored(self._start())._replace(params={})
        self._published = False
        self.publish()

    # The state, here and in the optimizer ---------------------------------------------------------

    def _start(self) -> State:
        """The state before the first step."""
        theta = {VECTOR: self._theta()}
        device = self.vector.device
        return State(
            step=torch.zeros((), dtype=torch.int64, device=device),
            params=theta,
            mean={VECTOR: theta[VECTOR].clone()},
            metric=self._metric.init(theta, {}),
            likelihood={},
            diverged=torch.full((1,), -1, device=device),
            own=self._chain.integrator.init(theta),
        )

    def _local(self) -> list[Tensor]:
        """This rank's rows of the parameters, where they lie now: a loop may put other memory into
        a parameter (``p.data = ...``) between two steps."""
        return [shards.local(p.detach()) for p in self.params.values()]

    def _theta(self) -> Tensor:
        return self.vector.joined(self._local())

    def _kept(self, state: State) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the state that ``states`` keeps, with its key there."""
        yield "mean", state.mean[VECTOR]
        if self._named is None:
            for field, tree in state.metric.items():
                yield field, tree[VECTOR]
        for path, leaf in pytree.tree_leaves_with_path(state.own):
            name = str(getattr(path[0], "name", getattr(path[0], "key", path[0])))
            yield name, leaf

    def _restored(self, state: State) -> State:
        """The state with what ``states`` holds already."""
        if not any(self._states.get(p) for p in self.params.values()):
            return state
        for key, value in self._kept(state):
            if value.shape != (1, self.vector.length):  # of the chain, not of a parameter
                found = self._states.get(next(iter(self.params.values())), {}).get(key)
                if found is not None:
                    value.copy_(found)
                continue
            for p, into in zip(self.params.values(), self.vector.views(value), strict=True):
                found = self._states.get(p, {}).get(key)
                if found is not None:
                    into.copy_(shards.local(found))
        if self._named is None:
            return state
        own = {k: dict(self._states.get(p, {})) for k, p in self.params.items()}
        fresh: dict[str, dict[str, Any]] = {k: {} for k in self.params}
        self._named.write(fresh, self.params, state.metric)
        for k in fresh:
            for f in fresh[k].keys() & own[k].keys():
                fresh[k][f] = shards.local(own[k][f]).to(fresh[k][f])
        return state._replace(metric=self._named.read(fresh, self.params))

    def publish(self) -> None:
        """Puts the state's tensors where ``torch.optim`` expects them, as views. Idempotent."""
        if self._published:
            return
        self._published = True
        kept: dict[str, dict[str, Any]] = {k: {} for k in self.params}
        for key, value in self._kept(self._state):
            if value.shape != (1, self.vector.length):
                kept[self.vector.names[0]][key] = value
                continue
            for k, view in zip(self.vector.names, self.vector.views(value), strict=True):
                if key != "cross" or k in self._biased:
                    kept[k][key] = shards.like(self.params[k], view)
        if self._named is not None:
            named: dict[str, dict[str, Any]] = {k: {} for k in self.params}
            self._named.write(named, self.params, self._state.metric)
            for k, fields in named.items():
                kept[k] |= {f: shards.like(self.params[k], v) for f, v in fields.items()}
        for k, p in self.params.items():
            self._states[p].update(kept[k])

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
        if not self.vector.length:
            return  # more ranks than rows
        own = self._own_moments(moments) if rates.kind.adapts else {}
        given = _Given(gradient, own, rates, step, keep, self._at(temperature), num_data, size)
        local = self._local()
        if num_data not in self._kernels:
            self._kernels[num_data] = self._tried(self._kernel_step(local, num_data), local, given)
        kernels = self._kernels[num_data]
        if not all(p.is_contiguous() for p in local):  # a loop has put other memory there
            kernels = None
        if kernels is None and "calls" in own:
            given = given._replace(moments=self._formed(own))
        if in_place or not cuda_graphs.has_graphs(self.vector.device):  # in place: others record it
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
        torch._foreach_copy_(local, self.vector.views(new.params[VECTOR]))
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
        state = self._state
        fixed = pytree.tree_leaves((local, state.mean, state.metric, state.own))
        recorded(advance, leaves, fixed)

    def deferrable(self, num_data: float) -> list[frozenset[str]]:
        """Parameters, those of a layer together, whose step forms its own statistics: known before
        the first step, which has the bits of any other."""
        if cuda_graphs.has_graphs(self.vector.device) or not self.vector.length:
            return []
        known = self._kernels.get(num_data) or self._kernel_step(self._local(), num_data)
        if known is None or known.on_trial:
            return []
        self._kernels[num_data] = known
        return known.deferrable

    def _formed(self, moments: Moments) -> Moments:
        """The same with statistics in place of calls."""
        calls: dict[str, LayerCall] = moments.pop("calls")
        bias_of = {w: b for b, ws in self._units.items() for w in ws if b in self.params}
        for weight, call in calls.items():
            a, squares = call.a[0], (call.delta[0] * call.scale).square()
            moments.setdefault("second", {})[weight] = squares.mT @ a.square()
            if weight in bias_of:
                moments["second"][bias_of[weight]] = squares.sum(0)
                moments.setdefault("cross", {})[bias_of[weight]] = {weight: squares.mT @ a}
        return moments

    def _by_kernels(
        self, kernels: KernelStep, params: list[Tensor], state: State, given: _Given
    ) -> None:
        gradient = {k: g[None] for k, g in zip(self.params, given.gradient, strict=True)}
        calls = given.moments.get("calls", {})
        means = {field: v for field, v in given.moments.items() if field != "calls"}
        found = self._evaluation(gradient, _by_name(means), given.size)
        kernels(
            given.dynamics, state._replace(step=given.step), params, found, calls, given.rates,
            given.num_data, given.keep,
        )  # fmt: skip

    def _by_operations(self, local: list[Tensor], given: _Given) -> State:
        gradient = {VECTOR: self.vector.joined(given.gradient)}
        found = self._evaluation(gradient, self._statistics(given.moments), given.size)
        params, keep = {VECTOR: self.vector.joined(local)}, given.keep
        here = self._state._replace(step=given.step, params=params)
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
            right = self.vector.named(self._by_operations(local, given).params[VECTOR])
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
        """Those of this vector's parameters."""
        return {
            field: {k: v for k, v in values.items() if k in self.params}
            for field, values in moments.items()
        }

    def _kernel_step(self, local: list[Tensor], num_data: float) -> KernelStep | None:
        tau = torch.ones(1, dtype=self.vector.dtype, device=self.vector.device)
        named = self._given.dynamics(self._own_prior, tau)
        params = dict(zip(self.params, local, strict=True))
        return KernelStep.of(named, params, self._units, self.vector, self._drawn, num_data)

    def _evaluation(self, gradient: Params, statistics: Statistics, size: int) -> Evaluation:
        loss = torch.zeros(1, device=self.vector.device)
        return Evaluation(
            loss=loss, gradient=gradient, statistics=statistics, likelihood={}, size=size
        )

    def _statistics(self, moments: Moments) -> Statistics:
        """As the metric wants them: vectors, or by name."""
        if self._named is not None:
            return _by_name(moments)
        found = Statistics()
        if "second" in moments:
            found.second = {VECTOR: self._vector_of(moments["second"])}
        if moments.get("cross"):
            rows = {w: v for row in moments["cross"].values() for w, v in row.items()}
            found.cross = {VECTOR: {VECTOR: self._vector_of(rows)}}
        return found

    def _vector_of(self, named: Mapping[str, Tensor]) -> Tensor:
        if len(named.keys() & self.params.keys()) == len(self.params):
            return self.vector.joined([named[k] for k in self.vector.names])
        found = torch.zeros(
            1, self.vector.length, dtype=self.vector.dtype, device=self.vector.device
        )
        views = zip(self.vector.names, self.vector.views(found), strict=True)
        pairs = [(view, named[k]) for k, view in views if k in named]
        torch._foreach_copy_([a for a, _ in pairs], [b.view_as(a) for a, b in pairs])
        return found

    def _at(self, temperature: float) -> LangevinDynamics:
        """The dynamics at this temperature; made once."""
        if temperature not in self._dynamics:
            tau = torch.tensor([temperature], dtype=self.vector.dtype, device=self.vector.device)
            found = self._chain.dynamics(self._prior, tau, self.vector)
            self._dynamics[temperature] = found
        return self._dynamics[temperature]

    @property
    def metric(self) -> Metric:
        """The metric by name, where it is so."""
        return self._state.metric


def _by_name(moments: Moments) -> Statistics:
    own: Any = {field: _with_chain(values) for field, values in moments.items()}
    return Statistics(**own)


def _with_chain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _with_chain(value) for name, value in tree.items()}
    return tree[None]


def _with_bias_row(metric: Preconditioner) -> set[str]:
    units: Units = getattr(metric, "units", {})
    return {w for ws in units.values() for w in ws}
