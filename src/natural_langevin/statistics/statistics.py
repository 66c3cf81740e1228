"""The statistics of one chain's batch, every parameter's from where the plan says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin.statistics import samples
from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.moments import (
    Averaging,
    Moments,
    dense_moments,
    layer_moments,
    merge,
)
from natural_langevin.statistics.plan import Axis, Plan
from natural_langevin.statistics.requests import Group
from natural_langevin.statistics.rules import Call, SampleGradient
from natural_langevin.statistics.tape import CallKey, Tensors, is_real


class Recorded(NamedTuple):
    """What the forward and the backward pass left behind."""

    params: Params
    inputs: Tensors  # of every watched call
    deltas: Tensors  # the gradients of its outputs
    x: Tensor
    y: Tensor  # the labels whose gradients count: the data's, or drawn from the model
    loss: Callable[[Params, Tensor, Tensor], Tensor]  # of a batch, summed
    scale: Tensor | None = None  # what ``deltas`` are multiplied by, call by call: one copy at once

    def output_gradients(self, key: CallKey) -> list[Tensor]:
        """The gradients of a call's outputs, at their scale."""
        found = self.deltas[key]
        return found if self.scale is None else [d * self.scale for d in found]


@dataclass(frozen=True)
class LayerStatistics:
    """What ``groups`` ask for, layer by layer."""

    network: Network
    plan: Plan
    groups: Sequence[Group]
    recorded: Recorded
    how: Averaging

    def every(self) -> Moments:
        """Of all layers."""
        result: Moments = {}
        for layers in ruled_layers(self.network, self.plan):
            merge(result, self.ruled(layers))
        merge(result, self.others())
        return result

    def ruled(self, layers: Sequence[str]) -> Moments:
        """Of some of the ``ruled_layers``."""
        shapes = {k: p.shape for k, p in self.recorded.params.items()}
        gradients = layer_gradients(self.network, self.plan, self.recorded, layers)
        return layer_moments(gradients, self.groups, shapes, self.how)

    def others(self) -> Moments:
        """Of all that has no rule."""
        network, plan, recorded = self.network, self.plan, self.recorded
        params = recorded.params
        result: Moments = {}

        def add(source: tuple[samples.Dense, int], names: Collection[str]) -> None:
            own = [g for g in self.groups if g.name in names]
            merge(result, dense_moments(source[0], own, self.how, source[1]))

        for name in plan.replayed:
            own = {key: recorded.output_gradients(key) for key in plan.traces if key[0] == name}
            source = samples.replayed(network, plan, name, params, recorded.inputs, own)
            add(source, set(network.owned[name].values()) - plan.whole)
        if plan.whole:
            source = samples.whole(recorded.loss, params, plan.whole, recorded.x, recorded.y)
            add(source, plan.whole)
        called = (p for n in (*plan.ruled, *plan.replayed) for p in network.owned[n].values())
        used = {*plan.whole, *called}
        # A layer that the forward pass never calls has no gradient, hence zeros.
        unused = [g for g in self.groups if not used & set(g.names)]
        if unused:
            nothing = {k: params[k].new_zeros(1, *params[k].shape) for g in unused for k in g.names}
            alone = self.how._replace(samples=1, divisor=1)
            merge(result, dense_moments(lambda part: nothing, unused, alone, 1))
        return result


def layer_gradients(
    network: Network, plan: Plan, recorded: Recorded, layers: Sequence[str]
) -> dict[str, list[SampleGradient]]:
    """By full name, what the rules make of every call of these layers. A parameter that they share
    collects the gradients of them all."""
    gradients: dict[str, list[SampleGradient]] = {}
    for name in layers:
        module, rule = network.model.get_submodule(name), network.rules[name]
        for call, repeat in _calls(network, plan, name, recorded):
            found = rule.gradients(module, call)
            for own, full in network.owned[name].items():
                if full not in plan.whole:
                    gradients.setdefault(full, []).append(found[own].folded(repeat))
    return gradients


def ruled_layers(network: Network, plan: Plan) -> list[list[str]]:
    """The layers that have rules; those that share a parameter go together."""
    groups: list[list[str]] = []
    for name in plan.ruled:
        own = [*network.owned[name].values()]
        shared = [
            g for g in groups if [p for n in g for p in network.owned[n].values() if p in own]
        ]
        groups = [g for g in groups if g not in shared]
        groups.append([n for g in shared for n in g] + [name])
    return groups


def _calls(
    network: Network, plan: Plan, name: str, recorded: Recorded
) -> Iterator[tuple[Call, int]]:
    """The calls of a layer with the samples first, and how many rows each sample has."""

    def first(axes: Sequence[Axis | None], tensors: list[Tensor]) -> tuple[Tensor, ...]:
        return tuple(t if a is None else a.first(t) for a, t in zip(axes, tensors, strict=True))

    for key in plan.traces:
        if key[0] == name:
            inputs = first(plan.inputs[key], plan.spread(key, recorded.inputs[key]))
            if network.dtype is not None:  # full precision before anything is squared
                inputs = tuple(a.to(network.dtype) if is_real(a) else a for a in inputs)
            deltas = first(plan.outputs[key], recorded.output_gradients(key))
            yield Call(inputs, deltas), plan.outputs[key][0].repeat
