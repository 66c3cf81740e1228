"""Hands the steps of a run over to the kernel, in the state's own memory, many per launch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal.gpu_build import Launch, build, launch
from natural_langevin._internal.gpu_kernels import dot_precision
from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.kernels.layer import KIND_NUMBER, KINDS, LayerState, LayerTask
from natural_langevin.execution.kernels.native import settings
from natural_langevin.execution.kernels.native.layout import ACTIVATIONS, LIKELIHOODS, NUMBERED
from natural_langevin.execution.kernels.native.settings import UnsupportedError
from natural_langevin.execution.kernels.perceptron_layers import PerceptronLayer, perceptron_layers
from natural_langevin.execution.kernels.step import layer_task
from natural_langevin.execution.kernels.whole_steps.triton_kernel import steps_kernel

#: The widest layer, the most layers and the largest minibatch.
MOST_UNITS, MOST_LAYERS, MOST_SAMPLES = 64, 3, 1024
#: Steps of one launch.
MOST_STEPS = 1000
#: Row numbers of all chains' permutations that are made at once, where an epoch has fewer.
MOST_ROWS = 1 << 22
#: Likelihoods that the kernel knows.
KNOWN = ("categorical", "bernoulli", "gaussian")


class Shape(NamedTuple):
    """Samples of a tile, the warps of a program, and registers of a thread at most (None: as many
    as the compiler likes)."""

    samples: int
    warps: int
    registers: int | None = None


#: For networks whose layers are all narrow, and others.
NARROW, WIDE = Shape(32, 4), Shape(32, 8)


class WholeSteps:
    """The steps of one network along one stream. ``UnsupportedError``: what it cannot take."""

    name = "whole triton steps"

    def __init__(
        self,
        dynamics: LangevinDynamics,
        state: State,
        stream: InMemory,
        rates: RatesTable,
        num_data: float,
    ) -> None:
        self.dynamics, self.stream, self.rates, self.num_data = dynamics, stream, rates, num_data
        if not stream.shuffled or not 1 <= stream.batch_size <= MOST_SAMPLES:
            raise UnsupportedError("another order of the data, or very large minibatches")
        x = stream.x
        if state.params[next(iter(state.params))].device != x.device:
            raise UnsupportedError(f"inputs on {x.device}")
        layers = perceptron_layers(dynamics, state, stream)
        self._tasks = _tasks(dynamics, layers, num_data)
        used = {name for task in self._tasks for name in task.parameters}
        if set(state.params) != used:
            raise UnsupportedError("parameters that the network does not use")
        self._x = x.detach().reshape(len(x), -1).contiguous()
        self._sizes = _sizes(layers)
        self._options = _network_options(layers, self._sizes)
        self._take_likelihood(layers[-1].outputs)
        self._take_integrator()
        self._loss = torch.zeros(state.chains, device=x.device)
        self._table = rates.values.to(torch.float32).contiguous()
        # T / beta: the kernels divide by N.
        temperature = dynamics.temperature / dynamics.weight(1.0)
        self._temperature = temperature.to(torch.float32).contiguous()
        self._order, self._epochs = torch.empty(0), range(0)
        self._bound: State | None = None
        self._buffers: list[Any] = []

    def run(self, state: State, start: int, count: int) -> Info:
        """Steps ``start`` to ``start + count - 1``, written over ``state``; Info of the last."""
        self._bind(state)
        stop = start + count
        while start < stop:
            several = self.rates.same_stage(start, min(stop - start, MOST_STEPS))
            several = min(several, self._ordered(start))
            self._launch(state, start, several)
            start += several
        state.step.fill_(start)
        return Info(self._loss.clone(), state.diverged >= 0)

    def build(self, state: State) -> None:
        """Compiles the kernel; nothing runs (see ``gpu_build``)."""
        self._bind(state)
        self._ordered(int(state.step))
        self._launch(state, int(state.step), 1, build)

    def _launch(self, state: State, start: int, count: int, run: Launch = launch) -> None:
        """One launch."""
        stream, size = self.stream, self.stream.batch_size
        share = 0.0 if self.rates.kind(start).explores else self._share
        shape, metric = self.shape, self.dynamics.preconditioner
        run(
            steps_kernel, (state.chains,), self._x, self._y, self._order, self._table,
            self._temperature, self.dynamics.noise, state.diverged, self._loss,
            state.likelihood.get("variance", self._loss), *self._buffers, *self._sizes,
            state.chains, start, count, self.rates.start, self._epochs.start,
            self._order.stride(0), stream.num_data, stream.batches_per_epoch, size,
            self._targets, float(self._sizes[3]), float(self.num_data), share, self._kept,
            self._variance, int(metric.counts_own_batch(settles=self.rates.settles)),
            METRIC=self._metric, HAS_MEAN=bool(state.mean), PRECISION=dot_precision(),
            TILES=-(-size // shape.samples), TILE=shape.samples, num_warps=shape.warps,
            num_stages=1, maxnreg=shape.registers, **self._options,
        )  # fmt: skip

    @property
    def shape(self) -> Shape:
        """Tiles and warps, by the network alone: another choice is another order of summation."""
        wide = self._options["LAYERS"] == MOST_LAYERS
        return WIDE if wide else NARROW

    def _ordered(self, start: int) -> int:
        """Has the order of the data at hand from this step on; for how many steps."""
        stream = self.stream
        batches, rows = stream.batches_per_epoch, stream.num_data
        epoch = start // batches
        if epoch not in self._epochs:
            last = (self.rates.start + len(self.rates) - 1) // batches
            several = max(1, min(last + 1 - epoch, MOST_ROWS // (len(stream.origin) * rows)))
            self._epochs = range(epoch, epoch + several)
            numbers = torch.arange(epoch, epoch + several, device=stream.origin.device)
            self._order = stream.orders(numbers).to(torch.int32)  # (chain, epoch, row)
        return self._epochs.stop * batches - start

    def _take_likelihood(self, outputs: int) -> None:
        likelihood = self.dynamics.gradients.likelihood
        law = settings.likelihood(likelihood, drawn=True)
        self._variance = law.variance
        if LIKELIHOODS[law.number] not in KNOWN or law.scale is not None:
            raise UnsupportedError(f"the likelihood {likelihood!r}")
        found = settings.targets(likelihood, self.stream.y, outputs, torch.float32)
        if found.classes is not None and outputs == 1:
            raise UnsupportedError("a single class")
        self._y = found.values if found.classes is None else found.classes.to(torch.int32)
        self._targets = 0 if found.values is None else found.values.shape[1]
        self._metric = KIND_NUMBER[self._tasks[0].kind]
        self._options["LIKELIHOOD"] = law.number
        self._options["LEARNS"] = bool(getattr(likelihood, "learns_width", False))

    def _take_integrator(self) -> None:
        """The share h of the noise, and how much of the momentum is kept."""
        if "mlp" not in self.dynamics.kernels:
            raise UnsupportedError(f"the integrator {self.dynamics.integrator!r}")
        self._share, self._kept, self._options["SCHEME"] = self.dynamics.integrator.kernel_update

    def _bind(self, state: State) -> None:
        """Points at the state's tensors; where there is none, at one that nobody follows."""
        if state is self._bound:
            return
        trees = (state.params, state.mean, state.metric, state.likelihood, state.own)
        leaves = pytree.tree_leaves(trees)
        if not all(t.is_contiguous() and t.dtype == torch.float32 for t in leaves):
            raise UnsupportedError("a state whose tensors are not contiguous, or of several dtypes")
        layers = [_buffers(task, task.state(state), self._metric) for task in self._tasks]
        first, last = layers[0], layers[-1]
        middle = layers[1] if len(layers) == MOST_LAYERS else last
        self._buffers = [*first, *middle, *last]
        self._bound = state


def _tasks(
    dynamics: LangevinDynamics, layers: list[PerceptronLayer], num_data: float
) -> list[LayerTask]:
    """What the kernel is told of every layer: metric, damping, prior, place in the noise."""
    kind = KINDS.get(type(dynamics.preconditioner))
    if kind is None or len(layers) > MOST_LAYERS:
        raise UnsupportedError(f"the metric {dynamics.preconditioner!r}, or {len(layers)} layers")
    trainable = dynamics.gradients.network.trainable()
    damping = dynamics.damping(dynamics.prior, num_data)
    found = []
    for layer in layers:
        task = layer_task(dynamics, layer.names[0], layer.names, kind, trainable, damping)
        if task is None:
            raise UnsupportedError("a prior that is not Gaussian, or another dtype than float32")
        found.append(task)
    return found


def _sizes(layers: list[PerceptronLayer]) -> tuple[int, int, int, int, int]:
    """Inputs; units of the first, the second and the last layer; inputs of the last."""
    if any(max(layer.outputs, layer.inputs) > MOST_UNITS for layer in layers):
        raise UnsupportedError("layers that are too wide")
    one, two, *_ = *(layer.outputs for layer in layers[:-1]), 0, 0
    return layers[0].inputs, one, two, layers[-1].outputs, layers[-1].inputs


def _padded(width: int) -> int:
    return next(size for size in (16, 32, MOST_UNITS) if width <= size)


def _network_options(layers: list[PerceptronLayer], sizes: tuple[int, ...]) -> dict[str, Any]:
    """The kernel's constants that describe the network."""
    inputs, units, two, outputs, last = sizes
    numbers = {layer.parameters for layer in layers if layer.activation in NUMBERED}
    if len(numbers) > 1:
        raise UnsupportedError("activations of one kind with several parameters")
    first, second = numbers.pop() if numbers else (0.0, 0.0)
    widths = inputs, units, last
    by_place = [layers[0], layers[1 % len(layers)], layers[-1]]
    return {
        "LAYERS": len(layers), "WIDTH": _padded(inputs), "H1": _padded(units), "H2": _padded(two),
        "H3": _padded(last), "OUTPUTS": 1 if outputs == 1 else _padded(outputs),
        "FIRST": first, "SECOND": second,
        **{f"ACT{k}": ACTIVATIONS.index(one.activation) for k, one in enumerate(by_place, 1)},
        **{f"BIAS{k}": one.has_bias for k, one in enumerate(by_place, 1)},
        **{f"FREE{k}": width < _padded(width) for k, width in enumerate(widths, 1)},
    }  # fmt: skip


def _buffers(task: LayerTask, own: LayerState, metric: int) -> list[Any]:
    """A layer's arguments, in the kernel's order."""
    needed = [own.weight_second] if metric else []
    needed += [own.bias_second] if metric and task.has_bias else []
    needed += [own.cross] if metric == KIND_NUMBER["quasi-diagonal"] and task.has_bias else []
    if any(tensor is None for tensor in needed):
        raise UnsupportedError("a metric without this layer")
    tensors: list[Tensor | None] = [
        own.weight, own.weight_mean, own.weight_second, own.cross, own.momentum, own.bias,
        own.bias_mean, own.bias_second, own.bias_momentum,
    ]  # fmt: skip
    pointers = [own.weight if t is None else t for t in tensors]
    damping = task.damping.contiguous()
    return [*pointers, task.prior, damping, task.weight_start, task.bias_start]
