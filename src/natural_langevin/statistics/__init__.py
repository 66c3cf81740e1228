"""Gradients: model + batch -> loss, mean gradient and Fisher statistics, for all chains at once.

Imports data, models and likelihoods; preconditioners and up import it.

This is the only backward pass of the library. For every chain, with per-sample loss l_n:

    gradient = mean_n d l_n / d theta                      what Algorithm 1 calls g
    statistics                                             what was asked for: see ``requests``

With ``targets="model"`` the statistics come from labels y~ drawn from the model (the Fisher matrix
proper); the gradient always comes from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.utils import _pytree as pytree

from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods import State as LikelihoodState
from natural_langevin.statistics.accumulation import accumulated, clipped, joined
from natural_langevin.statistics.capture import Network, Params
from natural_langevin.statistics.data_parallel import DataParallel, Part, at_its_rows
from natural_langevin.statistics.evaluation import DeferredCall, Evaluation, Settled, Statistics
from natural_langevin.statistics.moments import (
    CHUNK_NUMBERS,
    NO_BASIS,
    Moments,
    Sharing,
    dense_moments,
    split_rows,
    unit_rows,
)
from natural_langevin.statistics.plan import Plan, make_plan
from natural_langevin.statistics.prepare import plain_copy, prepare_model, with_parameters
from natural_langevin.statistics.requests import (
    Basis,
    Group,
    Request,
    Requests,
    check_requests,
    grouped,
)
from natural_langevin.statistics.rules import (
    RULES,
    Call,
    Outer,
    Rule,
    SampleGradient,
    Scatter,
    Stacked,
    Sum,
    own_units,
    positions,
    register_rule,
    restore_layers,
    row_units,
)
from natural_langevin.statistics.statistics import Recorded, layer_statistics
from natural_langevin.statistics.vectorised import vectorised

__all__ = [
    "RULES",
    "Basis",
    "Call",
    "DataParallel",
    "DeferredCall",
    "Evaluation",
    "Gradients",
    "Group",
    "Network",
    "Outer",
    "Params",
    "Part",
    "Request",
    "Requests",
    "Rule",
    "SampleGradient",
    "Scatter",
    "Sharing",
    "Stacked",
    "Statistics",
    "Sum",
    "grouped",
    "own_units",
    "plain_copy",
    "positions",
    "prepare_model",
    "register_rule",
    "restore_layers",
    "row_units",
    "split_rows",
    "unit_rows",
    "vectorised",
    "with_parameters",
]  # fmt: skip

Deferred = dict[str, tuple[Tensor, ...]]  # a, delta, and delta of drawn labels where they differ


def _without_axis(function: Any, axes: tuple[int | None, ...], *values: Any) -> Any:
    """``vmap`` of one: eagerly, the transformation costs more than the arithmetic."""
    inside = (
        value if axis is None else pytree.tree_map(lambda t: t[0], value)
        for axis, value in zip(axes, values, strict=True)
    )
    return pytree.tree_map(lambda t: t[None], function(*inside))


def _first_order(pullback: Any, cotangent: Any) -> Any:
    """Without a graph of the gradient itself, which nobody differentiates: torch then takes its
    one-kernel formulas (of SiLU, say) rather than those made of differentiable pieces."""
    if torch.compiler.is_compiling():  # which fuses the pieces anyway
        return pullback(cotangent)
    with torch.no_grad():
        return pullback(cotangent)


class Gradients:
    """Evaluates all chains on a batch. ``requests`` name the statistics that a metric needs."""

    def __init__(
        self,
        network: Network,
        likelihood: Likelihood,
        *,
        requests: Collection[Request] = (),
        targets: Literal["data", "model"] = "data",
        sharing: Sharing = "exact",
        microbatch: int | None = None,
        clip: float | None = None,
        data_parallel: DataParallel | None = None,
    ) -> None:
        """``microbatch``: at most this many samples of a chain at once (see ``accumulation``).
        ``clip``: the largest norm of a chain's gradient; statistics stay as they are.
        ``data_parallel``: processes that each take a part of every minibatch."""
        self.network, self.likelihood = network, likelihood
        self.requests, self.targets, self.sharing = check_requests(requests), targets, sharing
        self.microbatch, self.clip, self.data_parallel = microbatch, clip, data_parallel
        self._numbers = CHUNK_NUMBERS
        self._plans: dict[Any, Plan] = {}  # by ``_kind`` of the inputs
        self._distrusted: frozenset[str] = frozenset()
        self._wanted: Requests = self.requests  # by the call under way
        self._watching = self.from_layers
        if self.requests - {"samples"}:  # the hooks' owners tell which parameters are a unit
            network.install_hooks()
        self._units = network.units()  # once: it walks over all layers

    @property
    def from_layers(self) -> bool:
        """Whether statistics come from the layers' calls: some are wanted, and none of them is
        per-sample gradients of the whole network, from which all others would follow."""
        return bool(self._wanted) and "samples" not in self._wanted

    def groups(self, params: Params) -> list[Group]:
        """What is wanted of every parameter; ``params`` of one chain."""
        return grouped({k: p.shape for k, p in params.items()}, self._units, self._wanted)

    def prepare(self, params: Params, x: Tensor) -> None:
        """Learns how the network treats a batch like ``x`` (no chain axis). Idempotent."""
        if not self._watching:
            return
        if self.data_parallel is not None:
            x = x[self.data_parallel.part(len(x)).rows]
        first = {name: value[0] for name, value in params.items()}
        for part in x.split(self.microbatch or len(x)):
            if self._kind(part) not in self._plans:
                plan = make_plan(self.network, first, part, self._distrusted)
                self._plans[self._kind(part)] = plan

    def deferrable(self, params: Params, x: Tensor) -> list[str]:
        """Linear layers whose update needs nothing but one call's matrices a and delta.

        From here on their calls are on tape whatever the preconditioner needs. Gradients that are
        clipped, gathered in pieces or formed in reduced precision are deferred to nobody."""
        whole = self.microbatch is None and self.data_parallel is None
        if not whole or self.clip is not None or self.network.dtype is not None:
            return []
        if not self._watching:
            self.network.install_hooks()
            self._watching = True
        self.prepare(params, x)
        return self._plans[self._kind(x)].single_linear_calls(self.network)

    def distrust(self, names: set[str]) -> bool:
        """From now on these parameters' statistics come from the whole network, sample by sample.

        False where they did already."""
        known = self._distrusted.union(*(plan.whole for plan in self._plans.values()))
        self._distrusted |= names
        self._plans = {}
        return not known >= names

    def __call__(
        self,
        params: Params,
        likelihood: LikelihoodState,
        batch: tuple[Tensor, Tensor],
        *,
        chain_axis: bool,
        key: Tensor,
        step: Tensor,
        deferred: tuple[str, ...] = (),
        statistics: bool = True,
        basis: Basis = NO_BASIS,
    ) -> Evaluation:
        """``key`` (chain, 2) draws y~; the likelihood's own averages use the rate 1/sqrt(t).
        Without ``statistics`` the gradient alone is computed, as if nothing else were needed.
        ``basis``: that of the statistics "rotated".

        For the layers named in ``deferred``, some of ``deferrable``, neither gradient nor
        statistics are formed: the evaluation holds their ``DeferredCall`` instead."""
        first = next(iter(params.values()))
        self._wanted = self.requests if statistics else frozenset()
        self._numbers = max(1, CHUNK_NUMBERS // len(first))  # of one chain's temporary tensors
        rate = (step + 1).to(first.dtype).rsqrt()
        if self.data_parallel is None:
            found = self._evaluate(
                params, likelihood, batch, key, rate, chain_axis, basis, deferred
            )
        else:
            found = self._in_parallel(
                params, likelihood, batch, key, rate, chain_axis, basis, self.data_parallel
            )
        if self.clip is not None:
            found.gradient = vmap(partial(clipped, limit=self.clip))(found.gradient)
        return found

    def _evaluate(
        self,
        params: Params,
        likelihood: LikelihoodState,
        batch: tuple[Tensor, Tensor],
        key: Tensor,
        rate: Tensor,
        chain_axis: bool,
        basis: Basis,
        deferred: tuple[str, ...] = (),
        part: Part | None = None,
    ) -> Evaluation:
        """All chains on a batch, or on the ``part`` of one that is here."""
        data = 0 if chain_axis else None
        one_chain = partial(self._one_chain, deferred=deferred, part=part)
        axes = (0, 0, data, data, 0, None, 0)
        over_chains = vmap(one_chain, in_dims=axes)
        if len(key) == 1 and chain_axis and not torch.compiler.is_compiling():
            over_chains = partial(_without_axis, one_chain, axes)
        loss, gradient, found, state, calls = over_chains(
            params, likelihood, *batch, key, rate, basis
        )
        handed = {name: DeferredCall(*call) for name, call in calls.items()}
        return Evaluation(loss, gradient, Statistics(**found), state, handed)

    def _in_parallel(
        self,
        params: Params,
        state: LikelihoodState,
        batch: tuple[Tensor, Tensor],
        key: Tensor,
        rate: Tensor,
        chain_axis: bool,
        basis: Basis,
        group: DataParallel,
    ) -> Evaluation:
        """The same when every process evaluates a part of the batch: what single samples say is
        added up. What the likelihood learns from all outputs is settled beforehand, like in
        ``_in_pieces``."""
        x, y = batch
        part = group.part(x.shape[1 if chain_axis else 0])
        own = (x[:, part.rows], y[:, part.rows]) if chain_axis else (x[part.rows], y[part.rows])
        if state:
            data = 0 if chain_axis else None
            outputs = vmap(self.network.call, in_dims=(0, data))(params, own[0])
            everybody = group.add_up(at_its_rows(outputs, part, axis=1))
            update = vmap(self.likelihood.update, in_dims=(0, 0, data, None))
            state = update(state, everybody, y, rate)
        if self.from_layers and self.microbatch is None:
            return self._overlapped(params, state, own, key, chain_axis, basis, part, group)
        here = self._evaluate(params, state, own, key, rate, chain_axis, basis, part=part)
        found = dict(vars(here.statistics))
        samples = at_its_rows(found.pop("samples"), part, axis=1)
        means = pytree.tree_map(part.share, (here.loss, here.gradient, found))
        (loss, gradient, found), samples = group.add_up((means, samples))
        return Evaluation(loss, gradient, Statistics(samples=samples, **found), state)

    def _overlapped(
        self,
        params: Params,
        state: LikelihoodState,
        own: tuple[Tensor, Tensor],
        key: Tensor,
        chain_axis: bool,
        basis: Basis,
        part: Part,
        group: DataParallel,
    ) -> Evaluation:
        """The gradient is on its way while the statistics are computed."""
        data = 0 if chain_axis else None

        def backward(p: Params, s: LikelihoodState, x: Tensor, y: Tensor, k: Tensor) -> Any:
            def settle(outputs: Any) -> Settled:
                return Settled(s, y, self._labels(outputs, y, k, s, part))

            loss, gradient, _, _, tape = self._backward(p, x, settle)
            return loss, gradient, tape

        loss, gradient, tape = vmap(backward, in_dims=(0, 0, data, data, 0))(
            params, state, *own, key
        )
        under_way = group.start(pytree.tree_map(part.share, (loss, gradient)))
        over_chains: Any = vmap(self._moments, in_dims=(0, 0, data, 0, 0, 0, 0))
        moments = over_chains(params, state, own[0], *tape, basis)
        found = group.add_up(pytree.tree_map(part.share, moments))
        loss, gradient = under_way()
        return Evaluation(loss, gradient, Statistics(**found), state)

    def _one_chain(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        rate: Tensor,
        basis: Basis,
        deferred: tuple[str, ...],
        part: Part | None,
    ) -> tuple[Tensor, Params, Moments, LikelihoodState, Deferred]:
        """One chain on its batch; of a ``part`` of one, the likelihood is settled already."""

        def settle(outputs: Any) -> Settled:
            learned = part is not None
            new = state if learned else self.likelihood.update(state, outputs, y, rate)
            return Settled(new, y, self._labels(outputs, y, key, new, part))

        if "samples" in self._wanted:
            return (*self._with_samples(params, x, settle, basis), {})
        if self.microbatch is None or self.microbatch >= len(x):
            return self._one_batch(params, x, settle, basis, deferred)
        return (*self._in_pieces(params, state, x, y, settle, basis), {})

    def _one_batch(
        self,
        params: Params,
        x: Tensor,
        settle: Callable[[Any], Settled],
        basis: Basis,
        deferred: tuple[str, ...] = (),
    ) -> tuple[Tensor, Params, Moments, LikelihoodState, Deferred]:
        loss, gradient, state, calls, tape = self._backward(params, x, settle, deferred)
        found = self._moments(params, state, x, *tape, basis, deferred) if self._wanted else {}
        return loss, gradient, found, state, calls

    def _backward(
        self,
        params: Params,
        x: Tensor,
        settle: Callable[[Any], Settled],
        deferred: tuple[str, ...] = (),
    ) -> tuple[Tensor, Params, LikelihoodState, Deferred, tuple[Any, Any, Tensor]]:
        """Loss and gradient; and what the statistics are made of: every watched call's inputs, the
        gradients of its outputs, and the labels whose gradients count."""
        plan = self._plan_of(x, deferred)
        epsilons = {} if plan is None else plan.epsilons(x.device)
        apart = self._apart(deferred)
        own = {name: p for name, p in params.items() if name not in apart}
        outputs, pullback, inputs = vjp(  # type: ignore[misc]
            lambda p, e: self.network.recorded_call(params | p, e, x), own, epsilons, has_aux=True
        )
        state, y, labels = settle(outputs)
        losses = self.likelihood.log_loss(outputs, y, state)
        # The sum of losses: its output gradients are the per-sample ones, whatever the batch size.
        total, deltas = self._unscaled(pullback, self._output_gradient(outputs, y, state))
        gradient = {name: g / x.shape[0] for name, g in total.items()}
        calls: Deferred = {n: (*inputs[n, 0], *deltas[n, 0]) for n in deferred}
        if self._wanted and self.targets == "model":
            drawn = self._output_gradient(outputs, labels, state)
            _, deltas = self._unscaled(pullback, drawn)
            calls = {n: (*call, *deltas[n, 0]) for n, call in calls.items()}
        return losses.mean(), gradient, state, calls, (inputs, deltas, labels)

    def _moments(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        inputs: Any,
        deltas: Any,
        labels: Tensor,
        basis: Basis,
        deferred: tuple[str, ...] = (),
    ) -> Moments:
        """The statistics of what ``_backward`` left."""
        plan, apart = self._plan_of(x), self._apart(deferred)
        assert plan is not None
        recorded = Recorded(params, inputs, deltas, x, labels, partial(self._sample_loss, state))
        groups = [g for g in self.groups(params) if g.name not in apart]
        return layer_statistics(
            self.network, plan.without(deferred), groups, recorded,
            sharing=self.sharing, numbers=self._numbers, basis=basis,
        )  # fmt: skip

    def _plan_of(self, x: Tensor, deferred: tuple[str, ...] = ()) -> Plan | None:
        return self._plans[self._kind(x)] if self.from_layers or deferred else None

    def _kind(self, x: Tensor) -> Any:
        """What a plan depends on: shapes, and the precision of what layers return."""
        return tuple(x.shape), self.network.autocast

    def _apart(self, deferred: tuple[str, ...]) -> set[str]:
        """Parameters of the layers whose products somebody else forms."""
        return {full for name in deferred for full in self.network.owned[name].values()}

    def _in_pieces(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        y: Tensor,
        settle: Callable[[Any], Settled],
        basis: Basis,
    ) -> tuple[Tensor, Params, Moments, LikelihoodState]:
        """The same for a batch in pieces. What depends on all outputs (the likelihood's averages,
        labels drawn from the model) is settled by a forward pass of its own beforehand."""
        assert self.microbatch is not None
        xs, ys = x.split(self.microbatch), y.split(self.microbatch)
        labels = y
        if state or (self._wanted and self.targets == "model"):
            outputs = joined([self.network.call(params, part) for part in xs])
            state, _, labels = settle(outputs)

        def piece(part: Tensor, y: Tensor, labels: Tensor) -> Any:
            return self._one_batch(params, part, lambda _: Settled(state, y, labels), basis)[:3]

        means = map(piece, xs, ys, labels.split(self.microbatch))
        return (*accumulated(means, [len(part) for part in xs]), state)

    def _labels(
        self, outputs: Any, y: Tensor, key: Tensor, state: LikelihoodState, part: Part | None
    ) -> Tensor:
        """Whose gradients are squared: the data's labels, or some drawn from the model.

        Draws are addressed by a sample's place in the whole minibatch: with a part of it, labels
        are drawn for all places, and those of the part are used."""
        if self.targets == "data" or not self._wanted:
            return y
        if part is None:
            return self.likelihood.sample(outputs, key, state)
        return self.likelihood.sample(at_its_rows(outputs, part), key, state)[part.rows]

    def _unscaled(self, pullback: Any, cotangent: Any) -> Any:
        """Gradients for a cotangent that is scaled where float16 would lose it; back in full
        precision and at their own scale before anything is squared."""
        scale, dtype = self.network.loss_scale, self.network.dtype
        if dtype is None:
            return _first_order(pullback, cotangent)
        found = _first_order(pullback, pytree.tree_map(lambda g: g * scale, cotangent))
        return pytree.tree_map(lambda g: g.to(dtype) / scale, found)

    def _output_gradient(self, outputs: Tensor, y: Tensor, state: LikelihoodState) -> Tensor:
        """d loss_n / d outputs_n for every sample."""
        return grad(lambda o: self.likelihood.log_loss(o, y, state).sum())(outputs)

    def _sample_loss(self, state: LikelihoodState, p: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_loss(self.network.call(p, x), y, state).sum()

    def _with_samples(
        self, params: Params, x: Tensor, settle: Callable[[Any], Settled], basis: Basis
    ) -> tuple[Tensor, Params, Moments, LikelihoodState]:
        """Per-sample gradients of the whole network: any layer, at B times the memory."""
        outputs = self.network.call(params, x)
        state, y, labels = settle(outputs)
        losses = self.likelihood.log_loss(outputs, y, state)
        samples = self._per_sample(params, state, x, y)
        gradient = {name: g.mean(0) for name, g in samples.items()}
        if self.targets == "model":
            samples = self._per_sample(params, state, x, labels)
        asked = [g for g in self.groups(params) if g.requests]
        means = dense_moments(
            lambda part: samples, asked, samples=len(x), chunk=len(x), basis=basis
        )
        return losses.mean(), gradient, means | {"samples": samples}, state

    def _per_sample(self, params: Params, state: LikelihoodState, x: Tensor, y: Tensor) -> Params:
        def loss(p: Params, x_n: Tensor, y_n: Tensor) -> Tensor:
            return self._sample_loss(state, p, x_n[None], y_n[None])

        return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
