"""Statistics of a layer as soon as the backward pass knows the gradients of its outputs.

Then neither these nor its inputs are kept until the pass has ended. What adds up the squares of
per-sample gradients may add up the gradients themselves: their mean is the minibatch's gradient,
and the backward pass need not form it a second time.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from natural_langevin.statistics.capture import Network
from natural_langevin.statistics.moments import Moments, merge
from natural_langevin.statistics.plan import Plan
from natural_langevin.statistics.statistics import LayerStatistics, ruled_layers
from natural_langevin.statistics.tape import CallKey, Tensors


class OnTheWay:
    """The statistics of one backward pass.

    ``plan``: of all calls that are recorded; ``kept``: layers whose inputs and output gradients
    are wanted in the end."""

    def __init__(self, network: Network, plan: Plan, kept: Collection[str]) -> None:
        self._dtype, self._scale, self._traces = network.dtype, network.loss_scale, plan.traces
        self.deltas: Tensors = {}
        self.moments: Moments = {}
        sets = ruled_layers(network, plan.without(kept))
        self._waiting = {name: layers for layers in sets for name in layers}
        self._missing = {
            (k, i) for k, trace in plan.traces.items() for i in range(len(trace.outputs))
        }

    def begin(self, statistics: LayerStatistics) -> None:
        """Before the backward pass: ``statistics`` of what ``recorded`` holds by then."""
        self._statistics = statistics

    def arrived(self, key: CallKey, index: int, delta: Tensor) -> None:
        """The gradient of a call's output: in full precision, and at its own scale, before anything
        is squared."""
        delta = delta if self._dtype is None else delta.to(self._dtype)
        delta = delta if self._scale == 1.0 else delta / self._scale
        self.deltas.setdefault(key, [delta] * len(self._traces[key].outputs))[index] = delta
        self._missing.discard((key, index))
        layers = self._waiting.get(key[0], [])
        if layers and not any(k[0] in layers for k, _ in self._missing):
            self._form(layers)

    def _form(self, layers: list[str]) -> None:
        merge(self.moments, self._statistics.ruled(layers))
        for name in layers:
            del self._waiting[name]
        recorded = self._statistics.recorded
        for key in [k for k in self._traces if k[0] in layers]:
            del recorded.inputs[key], recorded.deltas[key]

    def end(self) -> Moments:
        """All of them. Outputs that no loss depends on have a gradient of zero."""
        like = next(iter(self._statistics.recorded.params.values()))
        for key, index in sorted(self._missing):
            self.arrived(key, index, like.new_zeros(self._traces[key].outputs[index][0]))
        merge(self.moments, self._statistics.others())
        return self.moments
