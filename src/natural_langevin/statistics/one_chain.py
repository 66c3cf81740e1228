"""One chain on its minibatch: loss, gradient and statistics, in one backward pass.

The gradient is the mean over the batch of d l_n / d theta; statistics are means over the same
samples, of the data's labels or of labels drawn from the model. ``gradients`` runs it for all
chains at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params
from natural_langevin._internal.gpu_kernels import transformations
from natural_langevin._internal.light_autograd import autograd_grad, vjp
from natural_langevin.likelihoods import Likelihood
from natural_langevin.likelihoods import State as LikelihoodState
from natural_langevin.statistics import samples as per_sample
from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.data_parallel import Part, at_its_rows
from natural_langevin.statistics.moments import Averaging, Moments, Sharing, dense_moments
from natural_langevin.statistics.on_the_way import OnTheWay
from natural_langevin.statistics.plan import Plan
from natural_langevin.statistics.requests import Basis, BatchTargets, Group, Requests
from natural_langevin.statistics.statistics import LayerStatistics, Recorded
from natural_langevin.statistics.tape import Tape, Tensors


def accumulated(means: Iterable[Any], sizes: list[int]) -> Any:
    """The mean over a minibatch in pieces, from trees of each one's means, which are asked for one
    after the other: pieces of n_1, n_2, ... samples are weighted by n_i / sum n."""
    total: Any = None
    for tree, size in zip(means, sizes, strict=True):
        weight = size / sum(sizes)
        share = pytree.tree_map(lambda mean, w=weight: mean * w, tree)
        total = share if total is None else pytree.tree_map(torch.add, total, share)
    return total


def joined(parts: list[Any]) -> Any:
    """Outputs of all pieces as those of one batch."""
    return pytree.tree_map(lambda *leaves: torch.cat(leaves), *parts)


def clipped(gradient: dict[str, Tensor], limit: float) -> dict[str, Tensor]:
    """One chain's gradient, scaled down to norm ``limit`` where it is longer."""
    norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
    scale = (limit / norm.clamp_min(1e-30)).clamp_max(1.0)
    return {name: g * scale for name, g in gradient.items()}


Deferred = dict[str, tuple[Tensor, ...]]  # a, delta, and delta of drawn labels where they differ


def from_layers(requests: Requests) -> bool:
    """Whether statistics come from the layers' calls: some are wanted, and none of them is
    per-sample gradients of the whole network, from which all others would follow."""
    return bool(requests) and "samples" not in requests


def kind_of(network: Network, x: Tensor) -> Any:
    """What a plan depends on: shapes, and the precision of what layers return."""
    return tuple(x.shape), network.autocast


@dataclass(eq=False)
class OneChain:
    """The pass over a batch, or over the ``part`` of one that is here, for which the likelihood is
    settled already.

    ``groups``: what ``requests`` ask of every parameter. ``plans``: how the network treats batches,
    by ``kind_of`` them. ``numbers``: how many a temporary tensor may hold. Of the layers named in
    ``deferred`` neither gradient nor statistics are formed: their calls are handed out."""

    network: Network
    likelihood: Likelihood
    requests: Requests
    groups: list[Group]
    plans: Mapping[Any, Plan]
    targets: Literal["data", "model"]
    sharing: Sharing
    microbatch: int | None
    numbers: int
    deferred: tuple[str, ...] = ()
    part: Part | None = None
    loss_dtype: torch.dtype | None = None  # of the mean loss; None: that of the outputs

    def evaluate(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        rate: Tensor,
        basis: Basis,
    ) -> tuple[Tensor, Params, Moments, LikelihoodState, Deferred]:
        """``key`` draws labels; the likelihood's own averages move at ``rate``."""

        def settle(outputs: Any) -> BatchTargets:
            learned = self.part is not None
            new = state if learned else self.likelihood.update(state, outputs, y, rate)
            return BatchTargets(new, y, self.labels(outputs, y, key, new))

        if "samples" in self.requests:
            return (*self._with_samples(params, x, settle, basis), {})
        if self.microbatch is None or self.microbatch >= len(x):
            return self._one_batch(params, x, settle, basis)
        return (*self._in_pieces(params, state, x, y, settle, basis), {})

    def _one_batch(
        self, params: Params, x: Tensor, settle: Callable[[Any], BatchTargets], basis: Basis
    ) -> tuple[Tensor, Params, Moments, LikelihoodState, Deferred]:
        if from_layers(self.requests) and self.targets == "data" and _at_once(x):
            return self._on_the_way(params, x, settle, basis)
        loss, gradient, state, calls, recorded = self.backward(params, x, settle)
        found = self._statistics(recorded, basis).every() if self.requests else {}
        gradient |= found.pop("first", {})
        return loss, {n: gradient[n] for n in params if n in gradient}, found, state, calls

    def backward(
        self, params: Params, x: Tensor, settle: Callable[[Any], BatchTargets]
    ) -> tuple[Tensor, Params, LikelihoodState, Deferred, Recorded]:
        """Loss and gradient, and what the statistics are made of. Its graph is gone with it."""
        watched = from_layers(self.requests) or self.deferred
        epsilons = self._plan(x).epsilons(x.device) if watched else {}
        apart = self._apart() | self._summed(x)
        own = {name: p for name, p in params.items() if name not in apart}

        def taped(p: Params, e: Tensors) -> tuple[Any, Tensors]:
            tape = Tape(e)
            return self.network.recorded_call(params | p, tape, x), tape.inputs

        outputs, pullback, inputs = vjp(taped, own, epsilons, has_aux=True)
        state, y, labels = settle(outputs)
        # The sum of losses: its output gradients are the per-sample ones, whatever the batch size.
        cotangent, losses = self.likelihood.output_gradient(outputs, y, state)
        total, deltas = self._unscaled(pullback, cotangent)
        gradient = {name: g / x.shape[0] for name, g in total.items()}
        calls: Deferred = {n: (*inputs[n, 0], *deltas[n, 0]) for n in self.deferred}
        if self.requests and self.targets == "model":
            drawn, _ = self.likelihood.output_gradient(outputs, labels, state)
            _, deltas = self._unscaled(pullback, drawn)
            calls = {n: (*call, *deltas[n, 0]) for n, call in calls.items()}
        loss = partial(self._sample_loss, state)
        recorded = Recorded(params, inputs, deltas, x, labels, loss)
        return losses.mean(dtype=self.loss_dtype), gradient, state, calls, recorded

    def _statistics(self, recorded: Recorded, basis: Basis) -> LayerStatistics:
        """The statistics of what a pass leaves."""
        plan, groups = self._plan(recorded.x).without(self.deferred), self._formed(recorded.x)
        how = Averaging(len(recorded.x), self.sharing, self.numbers, basis)
        return LayerStatistics(self.network, plan, groups, recorded, how)

    def _on_the_way(
        self, params: Params, x: Tensor, settle: Callable[[Any], BatchTargets], basis: Basis
    ) -> tuple[Tensor, Params, Moments, LikelihoodState, Deferred]:
        """The same where torch's tape runs alone: statistics while the backward pass goes on."""
        plan, scale = self._plan(x), self.network.loss_scale
        apart = self._apart() | self._summed(x)
        way = OnTheWay(self.network, plan, self.deferred)
        tape = Tape(plan.epsilons(x.device), way.arrived)
        own = {n: p.detach() for n, p in params.items() if n not in apart}
        with torch.enable_grad():
            for p in own.values():
                p.requires_grad_()
            outputs, spec = pytree.tree_flatten(self.network.recorded_call(params | own, tape, x))
        known = pytree.tree_unflatten([o.detach() for o in outputs], spec)
        state, y, labels = settle(known)
        loss = partial(self._sample_loss, state)
        recorded = Recorded(params, tape.inputs, way.deltas, x, labels, loss)
        way.begin(self._statistics(recorded, basis))
        cotangent, losses = self.likelihood.output_gradient(known, y, state)
        pairs = zip(outputs, pytree.tree_leaves(cotangent), strict=True)
        ends = {o: g if scale == 1.0 else g * scale for o, g in pairs if o.requires_grad}
        leaves = [*own.values(), *tape.leaves.values()]
        found: list[Tensor | None] = [None] * len(leaves)
        if ends:
            found = [*autograd_grad([*ends], leaves, [*ends.values()], allow_unused=True)]
        for place, delta in zip(tape.leaves, found[len(own) :], strict=True):
            if delta is not None:
                way.arrived(*place, delta)
        moments, count = way.end(), x.shape[0] * scale
        means = {
            n: torch.zeros_like(p) if g is None else g / count
            for (n, p), g in zip(own.items(), found, strict=False)
        }
        means |= moments.pop("first", {})
        gradient = {n: means[n] for n in params if n in means}
        calls: Deferred = {n: (*tape.inputs[n, 0], *way.deltas[n, 0]) for n in self.deferred}
        return losses.mean(dtype=self.loss_dtype), gradient, moments, state, calls

    def _plan(self, x: Tensor) -> Plan:
        return self.plans[kind_of(self.network, x)]

    def _apart(self) -> set[str]:
        """Parameters of the layers whose products somebody else forms."""
        return {full for name in self.deferred for full in self.network.owned[name].values()}

    def _summed(self, x: Tensor) -> set[str]:
        """Parameters whose gradients are added up with their squares: of the data's labels."""
        exact = self.sharing == "exact" and self.targets == "data"
        if not exact or not from_layers(self.requests):
            return set()
        squared = {n for g in self.groups if "second" in g.requests for n in g.names}
        return squared & self._plan(x).summed - self._apart()

    def _formed(self, x: Tensor) -> list[Group]:
        """What is asked of the layers that nobody else forms."""
        summed, apart = self._summed(x), self._apart()
        return [
            g._replace(requests=g.requests | {"first"}) if g.name in summed else g
            for g in self.groups
            if g.name not in apart
        ]

    def _in_pieces(
        self,
        params: Params,
        state: LikelihoodState,
        x: Tensor,
        y: Tensor,
        settle: Callable[[Any], BatchTargets],
        basis: Basis,
    ) -> tuple[Tensor, Params, Moments, LikelihoodState]:
        """The same for a batch in pieces. What depends on all outputs (the likelihood's averages,
        labels drawn from the model) is settled by a forward pass of its own beforehand."""
        assert self.microbatch is not None
        xs, ys = x.split(self.microbatch), y.split(self.microbatch)
        labels = y
        if state or (self.requests and self.targets == "model"):
            outputs = joined([self.network.call(params, part) for part in xs])
            state, _, labels = settle(outputs)

        def piece(part: Tensor, y: Tensor, labels: Tensor) -> Any:
            known = BatchTargets(state, y, labels)
            return self._one_batch(params, part, lambda _: known, basis)[:3]

        means = map(piece, xs, ys, labels.split(self.microbatch))
        return (*accumulated(means, [len(part) for part in xs]), state)

    def labels(self, outputs: Any, y: Tensor, key: Tensor, state: LikelihoodState) -> Tensor:
        """Whose gradients are squared: the data's labels, or some drawn from the model.

        Draws are addressed by a sample's place in the whole minibatch: with a part of it, labels
        are drawn for all places, and those of the part are used."""
        if self.targets == "data" or not self.requests:
            return y
        if self.part is None:
            return self.likelihood.sample(outputs, key, state)
        return self.likelihood.sample(at_its_rows(outputs, self.part), key, state)[self.part.rows]

    def _unscaled(self, pullback: Any, cotangent: Any) -> Any:
        """Gradients for a cotangent that is scaled where float16 would lose it; back in full
        precision and at their own scale before anything is squared."""
        scale, dtype = self.network.loss_scale, self.network.dtype
        if dtype is None:
            return _first_order(pullback, cotangent)
        found = _first_order(pullback, pytree.tree_map(lambda g: g * scale, cotangent))
        return pytree.tree_map(lambda g: g.to(dtype) / scale, found)

    def _sample_loss(self, state: LikelihoodState, p: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_loss(self.network.call(p, x), y, state).sum()

    def _with_samples(
        self, params: Params, x: Tensor, settle: Callable[[Any], BatchTargets], basis: Basis
    ) -> tuple[Tensor, Params, Moments, LikelihoodState]:
        """Per-sample gradients of the whole network: any layer, at B times the memory."""
        outputs = self.network.call(params, x)
        state, y, labels = settle(outputs)
        losses = self.likelihood.log_loss(outputs, y, state)
        samples = self._per_sample(params, state, x, y)
        gradient = {name: g.mean(0) for name, g in samples.items()}
        if self.targets == "model":
            samples = self._per_sample(params, state, x, labels)
        asked = [g for g in self.groups if g.requests]
        how = Averaging(len(x), numbers=len(x), basis=basis)
        means = dense_moments(lambda part: samples, asked, how, 1)
        return losses.mean(dtype=self.loss_dtype), gradient, means | {"samples": samples}, state

    def _per_sample(self, params: Params, state: LikelihoodState, x: Tensor, y: Tensor) -> Params:
        loss = partial(self._sample_loss, state)
        dense, _ = per_sample.whole(loss, params, frozenset(params), x, y)
        return dense(slice(0, len(x)))


def _first_order(pullback: Any, cotangent: Any) -> Any:
    """Without a graph of the gradient itself, which nobody differentiates: torch then takes its
    one-kernel formulas (of SiLU, say) rather than those made of differentiable pieces."""
    if torch.compiler.is_compiling():  # which fuses the pieces anyway
        return pullback(cotangent)
    with torch.no_grad():
        return pullback(cotangent)


def _at_once(x: Tensor) -> bool:
    """Whether statistics are formed while the backward pass goes on: on a GPU, where torch's tape
    runs alone. A CPU takes 4 % longer so: what the pass goes on with has left the cache."""
    return x.is_cuda and not (torch.compiler.is_compiling() or transformations())
