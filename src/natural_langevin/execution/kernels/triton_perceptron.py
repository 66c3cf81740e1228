"""A perceptron's losses and output gradients on a GPU, a launch for each layer and direction.

For chains of linear layers and elementwise activations under ``Categorical``, all of whose layers
kernels move: what ``Gradients`` hands over of such layers (``DeferredCall``), without torch's
operations and without autograd. Everything else goes that way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from natural_langevin._internal.chains import Batch
from natural_langevin._internal.gpu_build import Launch, launch
from natural_langevin._internal.gpu_kernels import dot_precision
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.kernels.layer import MANY_FROM, LayerTask
from natural_langevin.execution.kernels.native import settings
from natural_langevin.execution.kernels.native.layout import ACTIVATIONS, LIKELIHOODS
from natural_langevin.execution.kernels.native.settings import UnsupportedError
from natural_langevin.execution.kernels.perceptron_layers import PerceptronLayer, perceptron_layers
from natural_langevin.execution.kernels.triton_perceptron_kernels import (
    backward_kernel,
    forward_kernel,
    output_kernel,
)
from natural_langevin.execution.stepping import StepData
from natural_langevin.statistics import DeferredCall

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
    """Of both directions, and of the last layer, whose units are all in one tile."""

    forward: Tile
    backward: Tile
    last: Tile = Tile(16, 16, 64)


#: For few chains and for many, chosen on an H200, by rule for everybody: another choice is another
#: order of summation.
FEW = Tiles(Tile(32, 16, 64), Tile(32, 16, 64))
MANY = Tiles(Tile(128, 128, 64, 8, 3), Tile(32, 64, 32, 4, 3))
#: The fewest inputs at a time that a product of tiles takes, and bytes that kernels need beside
#: their tiles.
LEAST_DEPTH, BESIDE = 16, 1024


def tiles_for(chains: int, classes: int, memory: float) -> Tiles:
    """For so many chains and classes, on a device that gives a program ``memory`` bytes."""
    found = MANY if chains >= MANY_FROM else FEW
    last = found.last._replace(units=max(16, triton.next_power_of_2(classes)))
    return Tiles(*(_within(tile, memory) for tile in found._replace(last=last)))


def _within(tile: Tile, memory: float) -> Tile:
    """``tile`` with so few inputs at a time that those of all its stages fit. They are summed in
    the same order."""
    while tile.depth > LEAST_DEPTH:
        stage = 4 * tile.depth * (tile.samples + tile.units)
        if tile.stages * stage + BESIDE <= memory:
            break
        tile = tile._replace(depth=tile.depth // 2)
    return tile


def shared_memory(device: torch.device) -> float:
    """Bytes that the tiles of one program may take; in Triton's interpreter, any number."""
    if device.type != "cuda":
        return math.inf
    about = torch.cuda.get_device_properties(device)
    return float(getattr(about, "shared_memory_per_block_optin", about.shared_memory_per_block))


class Passed(NamedTuple):
    """Parts of every chain's mean loss, to be summed: (chain, part); and the layers' calls."""

    losses: Tensor
    calls: dict[str, DeferredCall]


class Layer(NamedTuple):
    """A layer, where its outputs, their slopes and output gradients go, and its task's name. Of the
    last layer only output gradients are kept."""

    own: PerceptronLayer
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
        stream = data.stream
        assert isinstance(stream, InMemory)
        if state.anchor or stream.x is stream.y:
            raise UnsupportedError("control variates, or inputs that are their own outcomes")
        layers = perceptron_layers(dynamics, state, stream)
        names = _task_names(layers, tasks)
        _check_labels(dynamics, stream, layers[-1])
        chains, size, x = state.chains, stream.batch_size, stream.x
        widths = [layer.outputs for layer in layers]
        numbers = chains * size * (3 * sum(widths) + x[0].numel())
        # Within a chain the kernels count in 32 bits.
        if size * max(*widths, x[0].numel()) >= 1 << 31 or chains > MOST_CHAINS:
            raise UnsupportedError("very large minibatches, or very many chains")
        if numbers * x.element_size() > MOST_MEMORY:
            raise UnsupportedError("activations that take gigabytes")
        self._layers = []
        for own, name in zip(layers, names, strict=True):
            delta = x.new_empty(chains, size, own.outputs)
            hidden = own is not layers[-1]
            out, slopes = (torch.empty_like(delta) if hidden else delta for _ in range(2))
            self._layers.append(Layer(own, name, out, slopes, delta))
        self._tiles = tiles_for(chains, widths[-1], shared_memory(x.device))
        self._losses = x.new_empty(chains, -(-size // self._tiles.last.samples))

    def __call__(self, state: State, batch: Batch, run: Launch = launch) -> Passed:
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

    def _forward(self, layer: Layer, a: Tensor, state: State, run: Launch) -> None:
        own, tile = layer.own, self._tiles.forward
        chains, samples, inputs = a.shape
        units = layer.out.shape[2]
        first, second = own.parameters
        run(
            forward_kernel, (-(-samples // tile.samples) * -(-units // tile.units), chains), a,
            *_weights(own, state), layer.out, layer.slopes, samples, inputs, units, a.stride(0),
            ACTIVATION=ACTIVATIONS.index(own.activation), FIRST=first, SECOND=second,
            HAS_BIAS=own.has_bias, PRECISION=dot_precision(), BLOCK_B=tile.samples,
            BLOCK_O=tile.units, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _end(self, layer: Layer, a: Tensor, labels: Tensor, state: State, run: Launch) -> None:
        own, tile = layer.own, self._tiles.last
        chains, samples, inputs = a.shape
        run(
            output_kernel, (self._losses.shape[1], chains), a, *_weights(own, state), labels,
            layer.delta, self._losses, samples, inputs, own.outputs, a.stride(0),
            HAS_BIAS=own.has_bias, PRECISION=dot_precision(), BLOCK_B=tile.samples,
            BLOCK_O=tile.units, DEPTH=tile.depth, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _backward(self, above: Layer, layer: Layer, state: State, run: Launch) -> None:
        tile = self._tiles.backward
        chains, samples, units = above.delta.shape
        inputs = layer.delta.shape[2]
        run(
            backward_kernel, (-(-samples // tile.samples) * -(-inputs // tile.units), chains),
            above.delta, _weights(above.own, state)[0], layer.slopes, layer.delta, samples,
            inputs, units, PRECISION=dot_precision(), BLOCK_B=tile.samples, BLOCK_I=tile.units,
            DEPTH=min(tile.depth, max(16, triton.next_power_of_2(units))), num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip


def _task_names(layers: list[PerceptronLayer], tasks: list[LayerTask]) -> list[str]:
    """The names of the layers' tasks: each has one, and no task is left."""
    names = {task.parameters: task.name for task in tasks if not task.given}
    if {layer.names for layer in layers} != set(names):
        raise UnsupportedError("layers that others move")
    if len(names) != len(tasks):
        raise UnsupportedError("gradients that are given")
    return [names[layer.names] for layer in layers]


def _check_labels(dynamics: LangevinDynamics, stream: InMemory, last: PerceptronLayer) -> None:
    likelihood = dynamics.gradients.likelihood
    number = settings.likelihood(likelihood, drawn=True).number
    if LIKELIHOODS[number] != "categorical" or not 2 <= last.outputs <= MOST_CLASSES:
        raise UnsupportedError(f"{last.outputs} outputs of {likelihood!r}")
    if last.activation != "identity" or stream.y.ndim != 1 or stream.y.is_floating_point():
        raise UnsupportedError("outputs or labels of another form")


def _weights(layer: PerceptronLayer, state: State) -> tuple[Tensor, Tensor]:
    """A layer's weight and bias; without one, a pointer that no kernel follows."""
    return state.params[layer.names[0]], state.params[layer.names[-1]]
