"""A perceptron's losses and output gradients on a GPU, a launch for each layer and direction.

For chains of linear layers and elementwise activations under ``Categorical``, all of whose layers
kernels move: what ``Gradients`` hands over of such layers (``DeferredCall``), without torch's
operations and without autograd. Everything else goes that way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from natural_langevin._internal.gpu_build import launch
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.kernels.layer import KINDS, LayerTask
from natural_langevin.execution.kernels.native import settings
from natural_langevin.execution.kernels.native.engine import fixed_tensors, specs_of
from natural_langevin.execution.kernels.native.layout import ACTIVATIONS, LIKELIHOODS
from natural_langevin.execution.kernels.native.settings import UnsupportedError
from natural_langevin.execution.kernels.native.trace import LayerSpec
from natural_langevin.execution.kernels.triton_linear import dot_precision
from natural_langevin.execution.kernels.triton_perceptron_kernels import (
    backward_kernel,
    forward_kernel,
    output_kernel,
)
from natural_langevin.execution.stepping import StepData
from natural_langevin.statistics import DeferredCall
from natural_langevin.types import Batch

#: Classes that one tile holds, bytes for activations, and chains of one launch.
MOST_CLASSES, MOST_MEMORY, MOST_CHAINS = 64, 4 << 30, 65_535


class Tile(NamedTuple):
    """Samples and units of a program, inputs at a time, warps, and pipeline stages."""

    samples: int
    units: int
    depth: int
    warps: int = 4
    stages: int = 4


class Tiles(NamedTuple):
    """Of both directions."""

    forward: Tile
    backward: Tile


#: For few chains and for many, chosen on an H200, by rule for everybody: another choice is another
#: order of summation.
FEW = Tiles(Tile(32, 16, 64), Tile(32, 16, 64))
MANY = Tiles(Tile(128, 128, 64, 8, 3), Tile(32, 64, 32, 4, 3))
MANY_FROM = 8


class Passed(NamedTuple):
    """Parts of every chain's mean loss, to be summed: (chain, part); and the layers' calls."""

    losses: Tensor
    calls: dict[str, DeferredCall]


class Layer(NamedTuple):
    """A layer, where its outputs, their slopes and output gradients go, and its task's name. Of the
    last layer only output gradients are kept."""

    spec: LayerSpec
    name: str
    out: Tensor
    slopes: Tensor
    delta: Tensor


def perceptron(
    dynamics: LangevinDynamics, data: StepData, state: State, tasks: list[LayerTask]
) -> Perceptron | None:
    """The passes of this network, or None: then torch's operations are as right."""
    try:
        return Perceptron(dynamics, data, state, tasks)
    except UnsupportedError:
        return None


class Perceptron:
    """Both passes of one network; ``UnsupportedError``: what it cannot take."""

    def __init__(
        self, dynamics: LangevinDynamics, data: StepData, state: State, tasks: list[LayerTask]
    ) -> None:
        settings.refuse_indirect(dynamics.gradients)
        stream = data.stream
        assert isinstance(stream, InMemory)
        metric = dynamics.preconditioner
        if metric.targets == "model" and type(metric) in KINDS:
            raise UnsupportedError("labels drawn from the model")
        if state.anchor or stream.x.dtype != torch.float32 or stream.x is stream.y:
            raise UnsupportedError("control variates, or inputs that are not float32")
        self._specs_of(dynamics, state, stream, tasks)
        self._take_labels(dynamics, stream, state)
        chains, size, x = state.chains, stream.batch_size, stream.x
        widths = [p.shape[1] for p in state.params.values() if p.ndim == 3]
        numbers = chains * size * (3 * sum(widths) + x[0].numel())
        # Within a chain the kernels count in 32 bits.
        if size * max(*widths, x[0].numel()) >= 1 << 31 or chains > MOST_CHAINS:
            raise UnsupportedError("very large minibatches, or very many chains")
        if numbers * x.element_size() > MOST_MEMORY:
            raise UnsupportedError("activations that take gigabytes")
        self._layers = []
        for spec, name in zip(self._specs, self._names, strict=True):
            assert spec.weight is not None
            delta = x.new_empty(chains, size, state.params[spec.weight].shape[1])
            hidden = spec is not self._specs[-1]
            out, slopes = (torch.empty_like(delta) if hidden else delta for _ in range(2))
            self._layers.append(Layer(spec, name, out, slopes, delta))
        self._tiles = MANY if chains >= MANY_FROM else FEW
        self._losses = x.new_empty(chains, -(-size // 16))

    def _specs_of(
        self, dynamics: LangevinDynamics, state: State, stream: InMemory, tasks: list[LayerTask]
    ) -> None:
        """The layers in order, and the names of their tasks: each has one, and no task is left."""
        self._specs = specs_of(dynamics, state, fixed_tensors(dynamics, state), stream.example()[0])
        names = {task.parameters: task.name for task in tasks if not task.given}
        wanted = [(s.weight, s.bias)[: 1 + (s.bias is not None)] for s in self._specs]
        if any(s.kind != "linear" for s in self._specs) or set(wanted) != set(names):
            raise UnsupportedError("layers that others move")
        if len(names) != len(tasks):
            raise UnsupportedError("gradients that are given")
        self._names = [names[w] for w in wanted]  # type: ignore[index]
        width = stream.x[0].numel()
        for spec in self._specs:
            assert spec.weight is not None
            outputs, inputs = state.params[spec.weight].shape[1:]
            if inputs != width:
                raise UnsupportedError("layers that do not fit")
            width = outputs

    def _take_labels(self, dynamics: LangevinDynamics, stream: InMemory, state: State) -> None:
        likelihood = dynamics.gradients.likelihood
        last = self._specs[-1]
        assert last.weight is not None
        classes = state.params[last.weight].shape[1]
        number = settings.likelihood(likelihood, drawn=True).number
        if LIKELIHOODS[number] != "categorical" or not 2 <= classes <= MOST_CLASSES:
            raise UnsupportedError(f"{classes} outputs of {likelihood!r}")
        if last.activation != "identity" or stream.y.ndim != 1 or stream.y.is_floating_point():
            raise UnsupportedError("outputs or labels of another form")

    def __call__(self, state: State, batch: Batch, run: Any = launch) -> Passed:
        """Of ``batch``, which has a chain axis. ``run``: ``gpu_build.launch`` or ``build``."""
        x, labels = batch
        a, calls = x.reshape(*x.shape[:2], -1), {}
        *hidden, last = self._layers
        for layer in hidden:
            calls[layer.name] = DeferredCall(a, layer.delta)
            self._forward(layer, a, state, run)
            a = layer.out
        calls[last.name] = DeferredCall(a, last.delta)
        self._end(last, a, labels, state, run)
        for above, layer in zip(reversed(self._layers), reversed(hidden), strict=False):
            self._backward(above, layer, state, run)
        return Passed(self._losses, calls)

    def _forward(self, layer: Layer, a: Tensor, state: State, run: Any) -> None:
        spec, tile = layer.spec, self._tiles.forward
        chains, samples, inputs = a.shape
        units = layer.out.shape[2]
        first, second = spec.parameters
        run(
            forward_kernel, (-(-samples // tile.samples) * -(-units // tile.units), chains), a,
            *_weights(spec, state), layer.out, layer.slopes, samples, inputs, units, a.stride(0),
            ACTIVATION=ACTIVATIONS.index(spec.activation), FIRST=first, SECOND=second,
            HAS_BIAS=spec.bias is not None, PRECISION=dot_precision(), BLOCK_B=tile.samples,
            BLOCK_O=tile.units, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _end(self, layer: Layer, a: Tensor, labels: Tensor, state: State, run: Any) -> None:
        spec, tile = layer.spec, FEW.forward
        chains, samples, inputs = a.shape
        classes = layer.out.shape[2]
        run(
            output_kernel, (self._losses.shape[1], chains), a, *_weights(spec, state), labels,
            layer.delta, self._losses, samples, inputs, classes, a.stride(0),
            HAS_BIAS=spec.bias is not None, PRECISION=dot_precision(), BLOCK_B=16,
            BLOCK_O=max(16, triton.next_power_of_2(classes)), DEPTH=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _backward(self, above: Layer, layer: Layer, state: State, run: Any) -> None:
        tile = self._tiles.backward
        chains, samples, units = above.delta.shape
        inputs = layer.delta.shape[2]
        run(
            backward_kernel, (-(-samples // tile.samples) * -(-inputs // tile.units), chains),
            above.delta, _weights(above.spec, state)[0], layer.slopes, layer.delta, samples,
            inputs, units, PRECISION=dot_precision(), BLOCK_B=tile.samples, BLOCK_I=tile.units,
            DEPTH=min(tile.depth, max(16, triton.next_power_of_2(units))), num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip


def _weights(spec: LayerSpec, state: State) -> tuple[Tensor, Tensor]:
    """A layer's weight and bias; without one, a pointer that no kernel follows."""
    assert spec.weight is not None
    weight = state.params[spec.weight]
    return weight, weight if spec.bias is None else state.params[spec.bias]
