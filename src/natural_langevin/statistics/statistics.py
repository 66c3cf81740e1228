"""The statistics of one chain's batch, every parameter's from where the plan says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from natural_langevin.statistics import samples
from natural_langevin.statistics.capture import Network, Params
from natural_langevin.statistics.moments import Moments, Sharing, dense_moments, layer_moments
from natural_langevin.statistics.plan import Axis, Plan
from natural_langevin.statistics.rules import Call, SampleGradient, Units
from natural_langevin.statistics.tape import CallKey, is_real

Tensors = dict[CallKey, list[Tensor]]


class Recorded(NamedTuple):
    """What the forward and the backward pass left behind."""

    params: Params
    inputs: Tensors  # of every watched call
    deltas: Tensors  # the gradients of its outputs
    x: Tensor
    y: Tensor  # the labels whose gradients count: the data's, or drawn from the model
    loss: Callable[[Params, Tensor, Tensor], Tensor]  # of a batch, summed


def layer_statistics(
    network: Network,
    plan: Plan,
    units: Units,
    recorded: Recorded,
    *,
    sharing: Sharing,
    numbers: int,
) -> Moments:
    """Second moments and bias rows; temporary tensors take about ``numbers`` numbers."""
    params, size = recorded.params, len(recorded.x)
    gradients = ruled_gradients(network, plan, recorded)
    found = [layer_moments(gradients, units, samples=size, sharing=sharing, numbers=numbers)]

    def add(source: tuple[samples.Dense, int], names: set[str]) -> None:
        own = {b: ws for b, ws in units.items() if all(k in names for k in (b, *ws))}
        chunk = max(1, numbers // source[1])
        found.append(dense_moments(source[0], own, samples=size, chunk=chunk))

    for name in plan.replayed:
        source = samples.replayed(network, plan, name, params, recorded.inputs, recorded.deltas)
        add(source, set(network.owned[name].values()) - plan.whole)
    if plan.whole:
        source = samples.whole(recorded.loss, params, plan.whole, recorded.x, recorded.y)
        add(source, set(plan.whole))
    # A layer that the forward pass never calls has no gradient, hence zeros.
    second = {name: torch.zeros_like(p) for name, p in params.items()}
    cross = {b: {w: second[w] for w in ws} for b, ws in units.items()}
    for moments in found:
        second |= moments.second
        cross |= moments.cross
    return Moments(second, cross)


def ruled_gradients(
    network: Network, plan: Plan, recorded: Recorded
) -> dict[str, list[SampleGradient]]:
    """By full name, what the rules make of every call. A shared weight collects several layers'."""
    gradients: dict[str, list[SampleGradient]] = {}
    for name in plan.ruled:
        module, rule = network.model.get_submodule(name), network.rules[name]
        for call, repeat in _calls(network, plan, name, recorded):
            found = rule.gradients(module, call)
            for own, full in network.owned[name].items():
                if full not in plan.whole:
                    gradients.setdefault(full, []).append(found[own].folded(repeat))
    return gradients


def _calls(
    network: Network, plan: Plan, name: str, recorded: Recorded
) -> Iterator[tuple[Call, int]]:
    """The calls of a layer with the samples first, and how many rows each sample has."""

    def first(axes: Sequence[Axis | None], tensors: list[Tensor]) -> tuple[Tensor, ...]:
        return tuple(t if a is None else a.first(t) for a, t in zip(axes, tensors, strict=True))

    for key in plan.traces:
        if key[0] == name:
            inputs = first(plan.inputs[key], recorded.inputs[key])
            if network.dtype is not None:  # full precision before anything is squared
                inputs = tuple(a.to(network.dtype) if is_real(a) else a for a in inputs)
            deltas = first(plan.outputs[key], recorded.deltas[key])
            yield Call(inputs, deltas), plan.outputs[key][0].repeat
