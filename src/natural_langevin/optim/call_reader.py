"""Inputs and output gradients of every layer call of a pass.

Most of it was recorded as it happened. A layer that torch computes in one kernel (attention, a
recurrent net) is run again, from plain operations, to find the same of its inner maps.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vjp
from torch.utils import _pytree as pytree

from natural_langevin.optim.capture import Pass, Record
from natural_langevin.optim.network_copy import NetworkCopy
from natural_langevin.statistics import vectorised
from natural_langevin.statistics.plan import Plan
from natural_langevin.statistics.tape import Tape, Tensors, is_real


@dataclass(frozen=True)
class CallReader:
    """Reads the calls that ``plan`` names, in the precision of ``like``.

    ``opaque``: the layers of one kernel. ``drawn``: gradients are those of labels drawn from the
    model."""

    network: NetworkCopy
    plan: Plan
    opaque: Collection[str]
    like: Tensor
    drawn: bool

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
            deltas[key] = self._deltas(record, [shape for shape, _ in trace.outputs])
        planned = {key[0] for key in self.plan.traces} - set(self.opaque)
        surplus = {k for k in one.calls if k not in inputs and k[0] in planned}
        if surplus:
            raise ValueError(_unexpected(next(iter(surplus))[0]))
        return inputs, deltas

    def _deltas(self, record: Record, shapes: list[torch.Size]) -> list[Tensor]:
        """In full precision; zero for an output that the loss does not depend on."""
        known = record.drawn if self.drawn else record.deltas
        return [
            self.like.new_zeros(shape) if d is None else d.to(self.like.dtype)
            for d, shape in zip(known, shapes, strict=True)
        ]

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

        def outputs(epsilons: Tensors) -> tuple[list[list[Tensor]], Tensors]:
            found = []
            with self.network.taping(Tape(epsilons)) as tape:
                for record in records:
                    args, kwargs = record.arguments(f"layer {name!r}", self.like.dtype)
                    with vectorised(self.like):
                        result = functional_call(module, own, args, kwargs)
                    found.append([leaf for leaf in pytree.tree_leaves(result) if is_real(leaf)])
            return found, tape.inputs

        made, pullback, seen = vjp(outputs, {k: every[k] for k in keys}, has_aux=True)  # type: ignore[misc]
        cotangents = [
            self._deltas(record, [o.shape for o in outs])
            for record, outs in zip(records, made, strict=True)
        ]
        (pulled,) = pullback(cotangents)
        return seen, pulled


def _unexpected(name: str) -> str:
    return (
        f"layer {name!r} was not called as in the rehearsal of this batch's shape: does the "
        "network choose its layers by the values of its inputs, or call them without gradients, "
        "as torch.utils.checkpoint does (use use_reentrant=False there)? Use "
        "preconditioners.RMSProp() or Euclidean() for such a network"
    )
