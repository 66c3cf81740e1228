"""Gradients: model + batch -> loss, mean gradient and Fisher statistics, for all chains at once.

For every chain, with per-sample loss l_n:

    gradient = mean_n d l_n / d theta                      what Algorithm 1 calls g
    statistics                                             what was asked for: see ``requests``

With ``targets="model"`` the statistics come from labels y~ drawn from the model (the Fisher matrix
proper); the gradient always comes from the data.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from natural_langevin._internal import cuda_graphs
from natural_langevin._internal.chains import Params
from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods import State as LikelihoodState
from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.data_parallel import DataParallel, at_its_rows
from natural_langevin.statistics.in_turn import in_turn, one_by_one, one_of, replayed
from natural_langevin.statistics.moments import NO_BASIS, Sharing, chunk_numbers
from natural_langevin.statistics.one_chain import OneChain, clipped, from_layers, kind_of
from natural_langevin.statistics.plan import Plan, make_plan
from natural_langevin.statistics.requests import (
    Basis,
    DeferredCall,
    Evaluation,
    Request,
    Requests,
    Statistics,
    check_requests,
    grouped,
)

#: Graphs of one chain's passes, by what they are to do; of batches of ever new shapes, the first.
Recordings = dict[Any, cuda_graphs.RecordedFunction]
MOST_RECORDINGS = 8


def _without_axis(function: Any, axes: tuple[int | None, ...], *values: Any) -> Any:
    """``vmap`` of one: eagerly, the transformation costs more than the arithmetic."""
    found = function(*one_of(0, axes, values))
    return pytree.tree_map(lambda t: t[None], found)


class _Asked(NamedTuple):
    """What chains are evaluated at: all of them on a batch, or on the part of one that is here."""

    params: Params
    state: LikelihoodState
    batch: tuple[Tensor, Tensor]
    key: Tensor
    rate: Tensor
    basis: Basis
    chain_axis: bool

    @property
    def data(self) -> int | None:
        """The chain axis of the batch, for ``vmap``."""
        return 0 if self.chain_axis else None


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
        self._plans: dict[Any, Plan] = {}  # by ``kind_of`` the inputs
        self._others: dict[Any, Gradients] = {}
        #: Parameters whose layers have rules that failed their check.
        self.distrusted: frozenset[str] = frozenset()
        #: Kinds of inputs on which the network has passed its checks: it has them once.
        self.checked: set[Any] = set()
        self._watching = from_layers(self.requests)
        if self.requests - {"samples"}:  # the hooks' owners tell which parameters are a unit
            network.install_hooks()
        self._units = network.units()  # once: it walks over all layers

    def __getstate__(self) -> dict[str, Any]:
        """Without the plans, which a copy makes anew: torch's descriptions of trees are in them."""
        return self.__dict__ | {"_plans": {}, "_others": {}, "checked": set()}

    def requesting(
        self, requests: Requests, targets: Literal["data", "model"], sharing: Sharing
    ) -> Gradients:
        """The same gradients in this process with other statistics: one object, whose passes are
        planned and traced once."""
        key = requests, targets, sharing
        if key not in self._others:
            self._others[key] = Gradients(
                self.network, self.likelihood, requests=requests, targets=targets,
                sharing=sharing, microbatch=self.microbatch, clip=self.clip,
            )  # fmt: skip
        return self._others[key]

    def prepare(self, params: Params, x: Tensor) -> None:
        """Learns how the network treats a batch like ``x`` (no chain axis). Idempotent."""
        if not self._watching:
            return
        if self.data_parallel is not None:
            x = x[self.data_parallel.part(len(x)).rows]
        first = {name: value[0] for name, value in params.items()}
        for part in x.split(self.microbatch or len(x)):
            kind = kind_of(self.network, part)
            if kind not in self._plans:
                self._plans[kind] = make_plan(self.network, first, part, self.distrusted)

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
        return self._plans[kind_of(self.network, x)].single_linear_calls(self.network)

    @property
    def summed(self) -> frozenset[str]:
        """Parameters whose gradients are added up with their squares, on some batch."""
        return frozenset().union(*(plan.summed for plan in self._plans.values()))

    def distrust(self, names: set[str]) -> bool:
        """From now on these parameters' statistics come from the whole network, sample by sample.

        False where they did already."""
        known = self.distrusted.union(*(plan.whole for plan in self._plans.values()))
        self.distrusted |= names
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
        loss_dtype: torch.dtype | None = None,
        recordings: Recordings | None = None,
    ) -> Evaluation:
        """``key`` (chain, 2) draws y~; the likelihood's own averages use the rate 1/sqrt(t).
        Without ``statistics`` the gradient alone is computed, as if nothing else were needed.
        ``basis``: that of the statistics "rotated". ``loss_dtype``: in which losses are averaged.
        ``recordings``: where a GPU keeps the graphs of one chain, if chains are taken in turn.

        For the layers named in ``deferred``, some of ``deferrable``, neither gradient nor
        statistics are formed: the evaluation holds their ``DeferredCall`` instead."""
        first = next(iter(params.values()))
        # A likelihood that learns nothing has no use for the rate: three launches of a GPU less.
        rate = (step + 1).to(first.dtype).rsqrt() if likelihood else step
        one = self._one_chain(params, self.requests if statistics else frozenset(), deferred)
        one.loss_dtype = loss_dtype
        asked = _Asked(params, likelihood, batch, key, rate, basis, chain_axis)
        if self.data_parallel is None:
            found = self._evaluate(one, asked, recordings)
        else:
            found = self._in_parallel(one, asked, self.data_parallel)
        if self.clip is not None:
            found.gradient = vmap(partial(clipped, limit=self.clip))(found.gradient)
        return found

    def in_turn(self, params: Params, x: Tensor) -> bool:
        """Whether chains are taken one after the other on a batch ``x`` (no chain axis)."""
        several = len(next(iter(params.values()))) > 1 and self.data_parallel is None
        return several and one_by_one(self.network.model, params, x)

    def _one_chain(self, params: Params, requests: Requests, deferred: tuple[str, ...]) -> OneChain:
        first = next(iter(params.values()))
        shapes = {k: p.shape[1:] for k, p in params.items()}
        return OneChain(
            self.network, self.likelihood, requests,
            groups=grouped(shapes, self._units, requests) if requests else [],
            plans=self._plans, targets=self.targets, sharing=self.sharing,
            microbatch=self.microbatch, deferred=deferred,
            numbers=max(1, chunk_numbers(first.device) // len(first)),  # of one chain
        )  # fmt: skip

    def _evaluate(
        self, one: OneChain, asked: _Asked, recordings: Recordings | None = None
    ) -> Evaluation:
        params, state, batch, key, rate, basis, chain_axis = asked
        axes = (0, 0, asked.data, asked.data, 0, None, 0)
        over_chains = vmap(one.evaluate, in_dims=axes)
        if torch.compiler.is_compiling():
            pass
        elif len(key) == 1:
            over_chains = partial(_without_axis, one.evaluate, axes)
        elif one_by_one(self.network.model, params, batch[0][0] if chain_axis else batch[0]):
            one.numbers = chunk_numbers(key.device)
            over_chains = partial(in_turn, one.evaluate, len(key), axes)
            shapes = tuple(part.shape for part in batch)
            what = one.requests, one.deferred, one.loss_dtype, axes, shapes
            if recordings is not None and len(recordings) < MOST_RECORDINGS:
                recordings.setdefault(what, cuda_graphs.RecordedFunction("a chain's passes"))
            if recordings and what in recordings and cuda_graphs.recordable(key):
                over_chains = partial(replayed, one.evaluate, recordings[what], len(key), axes)
        loss, gradient, found, state, calls = over_chains(params, state, *batch, key, rate, basis)
        handed = {name: DeferredCall(*call) for name, call in calls.items()}
        return Evaluation(loss, gradient, Statistics(**found), state, handed)

    def _in_parallel(self, one: OneChain, asked: _Asked, group: DataParallel) -> Evaluation:
        """The same when every process evaluates a part of the batch: what single samples say is
        added up. What the likelihood learns from all outputs is settled beforehand, like in
        ``OneChain``."""
        (x, y), state, axis = asked.batch, asked.state, 1 if asked.chain_axis else 0
        part = group.part(x.shape[axis])
        own = (x[:, part.rows], y[:, part.rows]) if axis else (x[part.rows], y[part.rows])
        if state:
            outputs = vmap(self.network.call, in_dims=(0, asked.data))(asked.params, own[0])
            everybody = group.add_up(at_its_rows(outputs, part, axis=1))
            update = vmap(self.likelihood.update, in_dims=(0, 0, asked.data, None))
            state = update(state, everybody, y, asked.rate)
        one.part, asked = part, asked._replace(batch=own, state=state)
        here = self._evaluate(one, asked)
        found = dict(vars(here.statistics))
        samples = at_its_rows(found.pop("samples"), part, axis=1)
        means = pytree.tree_map(part.share, (here.loss, here.gradient, found))
        (loss, gradient, found), samples = group.add_up((means, samples))
        return Evaluation(loss, gradient, Statistics(samples=samples, **found), state)
