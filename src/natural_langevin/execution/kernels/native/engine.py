"""Runs whole steps of a multilayer perceptron in C, in the state's own memory.

``NativeMLP`` reads what ``Dynamics.step`` reads (state, minibatches, rates, noise streams, priors)
and writes what it would write: the same draws, the same formulas, sums in another order. ``agrees``
takes one step both ways from a copy of the real state and compares.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics import Dynamics, Info, Rates, State
from natural_langevin.execution.kernels.native import settings
from natural_langevin.execution.kernels.native.build import DTYPES, library
from natural_langevin.execution.kernels.native.layout import ACTIVATIONS, Layer, Run
from natural_langevin.execution.kernels.native.settings import Unsupported
from natural_langevin.execution.kernels.native.trace import LinearSpec, trace

Batch = tuple[Tensor, Tensor]

#: A call into the library lasts about so long: between calls Ctrl-C is noticed.
SECONDS_PER_CALL = 0.2


class NativeMLP:
    """The steps of one network along one stream. Raises ``Unsupported`` for what it cannot take."""

    def __init__(
        self, dynamics: Dynamics, state: State, stream: Stream, rates: Tensor, num_data: float
    ) -> None:
        first = next(iter(state.params.values()))
        if first.device.type != "cpu" or first.dtype not in DTYPES:
            raise Unsupported(f"{first.dtype} on {first.device.type}")
        self.dynamics, self.stream, self.dtype = dynamics, stream, first.dtype
        gradients = dynamics.gradients
        if gradients.microbatch is not None or gradients.peers is not None:
            raise Unsupported("minibatches in pieces")
        if gradients.clip is not None or gradients.network.dtype is not None:
            raise Unsupported("clipped gradients or reduced precision")
        self._metric, self._second = settings.metric(dynamics.preconditioner)
        self._likelihood = settings.likelihood(gradients.likelihood)
        x = stream.example()[0]
        self._fixed = _fixed_tensors(gradients.network.model, state.params)
        self.specs = _specs(dynamics, state, self._fixed, x)
        found = library(self.dtype)
        if found is None:
            raise Unsupported("there is no library")
        self._library = found
        self._kept: list[Tensor] = []  # memory that the structures point to
        self._rates = self._keep(rates.to(self.dtype))
        self._run, self._layers = Run(), (Layer * len(self.specs))()
        self._shape_layers(x)
        self._describe_layers(num_data)
        self._describe_run(num_data)
        self._bound: State | None = None
        self._step_seconds = 0.0
        if isinstance(stream, InMemory):
            self._take_stream(stream)

    def run(self, state: State, start: int, count: int, batch: Batch | None = None) -> Info:
        """``count`` steps, written over ``state``, which has seen ``start``.

        A ``batch`` is shared by all chains, for one step; without, the stream's own rows."""
        self._bind(state)
        if batch is not None:
            self._take_batch(*batch)
        stop = start + count
        while start < stop:
            several = self._several(stop - start)
            began = time.perf_counter()
            self._call(start, several)
            self._step_seconds = (time.perf_counter() - began) / several
            start += several
            state.step.fill_(start)
        return Info(self._loss.clone(), state.diverged >= 0)

    def _several(self, wanted: int) -> int:
        """Steps of the next call; the first is for measuring."""
        if not self._step_seconds:
            return 1
        return max(1, min(wanted, int(SECONDS_PER_CALL / self._step_seconds)))

    def _call(self, start: int, count: int) -> None:
        run, size = self._run, self.dtype.itemsize
        row = self._rates.data_ptr() + start * self._rates.stride(0) * size
        run.start, run.count, run.step_size = start, count, row
        run.decay, run.mean_rate = row + run.chains * size, row + (run.chains + 1) * size
        if run.threads != torch.get_num_threads():
            run.threads = torch.get_num_threads()
            self._workspace = None
        if self._workspace is None:
            needed = self._library.workspace_bytes(ctypes.byref(run), self._layers)
            self._workspace = torch.empty(needed, dtype=torch.uint8)
            run.workspace = self._workspace.data_ptr()
        self._library.run_steps(ctypes.byref(run), self._layers)

    def _keep(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return tensor

    def _shape_layers(self, x: Tensor) -> None:
        width = x[0].numel()
        for layer, spec in zip(self._layers, self.specs, strict=True):
            outputs, inputs = self._shape(spec.weight)[-2:]
            if inputs != width:
                raise Unsupported("layers that do not fit")
            layer.inputs, layer.outputs = inputs, outputs
            layer.activation = ACTIVATIONS.index(spec.activation)
            layer.parameter = (ctypes.c_double * 2)(*spec.parameters)
            width = outputs

    def _shape(self, name: str) -> tuple[int, ...]:
        if name in self._fixed:
            return tuple(self._fixed[name].shape)
        return tuple(self.dynamics.gradients.network.trainable()[name].shape)

    def _describe_layers(self, num_data: float) -> None:
        dynamics, chains = self.dynamics, len(self.dynamics.temperature)
        damping = _damping(dynamics, num_data)
        for layer, spec in zip(self._layers, self.specs, strict=True):
            for k, name in enumerate((spec.weight, spec.bias)):
                if name is None:
                    continue
                layer.trainable[k] = name in dynamics.starts
                if not layer.trainable[k]:
                    layer.theta[k] = self._keep(self._fixed[name]).data_ptr()
                    continue
                size = int(torch.Size(self._shape(name)).numel())
                kind, numbers = settings.prior(dynamics.prior[name], size, chains, self.dtype)
                own = torch.as_tensor(damping[name], dtype=self.dtype).expand(chains)
                layer.start[k], layer.prior[k] = dynamics.starts[name], kind
                layer.prior_numbers[k] = self._keep(numbers).data_ptr()
                layer.damping[k] = self._keep(own).data_ptr()

    def _describe_run(self, num_data: float) -> None:
        run, dynamics = self._run, self.dynamics
        self._loss = torch.zeros(len(dynamics.temperature), dtype=self.dtype)
        self._workspace: Tensor | None = None
        run.chains, run.layers = len(dynamics.temperature), len(self.specs)
        run.step_stride = self._rates.stride(0)
        run.temperature = self._keep(dynamics.temperature.to(self.dtype)).data_ptr()
        run.noise_origin = self._keep(dynamics.noise).data_ptr()
        run.label_origin = self._keep(dynamics.labels).data_ptr()
        run.num_data, run.loss = num_data, self._loss.data_ptr()
        run.likelihood, run.variance = self._likelihood
        run.metric = self._metric
        run.fresh = getattr(dynamics.preconditioner, "fresh", True)

    def _take_stream(self, stream: InMemory) -> None:
        run = self._run
        run.batch, run.num_rows, run.shuffled = stream.batch_size, stream.num_data, 1
        run.data_origin = self._keep(stream._origin).data_ptr()
        if stream.rows is not None:
            run.rows = self._keep(stream.rows.long()).data_ptr()
        self._data = self._take_rows(stream.x, stream.y)

    def _take_batch(self, x: Tensor, y: Tensor) -> None:
        run = self._run
        if run.batch != len(x):
            self._workspace = None
        run.batch = run.num_rows = len(x)
        run.shuffled = 0
        self._data = self._take_rows(x, y)

    def _take_rows(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, ...]:
        if x.dtype != self.dtype:
            raise Unsupported(f"inputs of {x.dtype}")
        run, outputs = self._run, self._layers[len(self.specs) - 1].outputs
        rows = x.detach().reshape(len(x), -1).contiguous()
        found = settings.targets(self.dynamics.gradients.likelihood, y, outputs, self.dtype)
        run.x, run.targets = rows.data_ptr(), outputs
        run.classes, run.y, run.offset = (_pointer(t) for t in found)
        return rows, *found

    def _bind(self, state: State) -> None:
        """Points at the state's tensors."""
        if state is self._bound:
            return
        self._check(state)
        metric = state.metric
        second = metric.get(self._second, {}) if self._second else {}
        for layer, spec in zip(self._layers, self.specs, strict=True):
            for k, name in enumerate((spec.weight, spec.bias)):
                if name in state.params:
                    layer.theta[k] = state.params[name].data_ptr()
                    layer.mean[k] = _pointer(state.mean.get(name))
                    layer.second[k] = _pointer(second.get(name))
            layer.cross = _pointer(metric.get("cross", {}).get(spec.bias, {}).get(spec.weight))
        self._run.diverged = state.diverged.data_ptr()
        self._run.learned_variance = _pointer(state.likelihood.get("variance"))
        self._bound = state

    def _check(self, state: State) -> None:
        leaves = pytree.tree_leaves((state.params, state.mean, state.metric, state.likelihood))
        if not all(leaf.is_contiguous() and leaf.dtype == self.dtype for leaf in leaves):
            raise Unsupported("a state whose tensors are not contiguous or of several dtypes")
        used = {n for spec in self.specs for n in (spec.weight, spec.bias) if n}
        if not set(state.params) <= used:
            raise Unsupported("parameters that the network does not use")


def agrees(native: NativeMLP, state: State, step: int) -> bool:
    """Whether one native step from ``state`` is the reference's, up to rounding."""
    reference, stream = native.dynamics, native.stream
    copy = pytree.tree_map(torch.clone, state)
    row = native._rates[step]
    rates = Rates(row[:-2], row[-2], row[-1])
    count = torch.tensor(native._run.num_data, dtype=native.dtype)
    batch = stream.batch(step) if isinstance(stream, InMemory) else stream.example()
    chain_axis = isinstance(stream, InMemory)
    expected, info = reference.step(state, batch, rates, count, chain_axis=chain_axis)
    found = native.run(copy, step, 1, None if chain_axis else batch)
    if not torch.equal(info.diverged, found.diverged):
        return False
    changed = (copy.params, copy.mean, copy.metric, copy.likelihood, found.loss)
    wanted = (
        expected.params, expected.mean, expected.metric, expected.likelihood, info.loss,
    )  # fmt: skip
    before = (state.params, state.mean, state.metric, state.likelihood, torch.zeros_like(info.loss))
    trees = [pytree.tree_leaves(tree) for tree in (changed, wanted, before)]
    return all(_close(*leaves) for leaves in zip(*trees, strict=True))


def _close(found: Tensor, wanted: Tensor, before: Tensor) -> bool:
    """An error that is small against how far the step went, chain by chain."""
    found, wanted, before = (t.reshape(len(t), -1).double() for t in (found, wanted, before))
    rounding = 64 * torch.finfo(torch.float32).eps  # the noise is float32 in any case
    error, moved = (found - wanted).norm(dim=1), (wanted - before).norm(dim=1)
    within = error <= 1e-2 * moved + rounding * wanted.norm(dim=1) + 1e-12
    return bool((within | ~torch.isfinite(moved)).all())


def _damping(dynamics: Dynamics, num_data: float) -> Mapping[str, float | Tensor]:
    """epsilon of every parameter."""
    if hasattr(dynamics, "damping"):
        return dynamics.damping(dynamics.starts, num_data)
    return dict.fromkeys(dynamics.starts, getattr(dynamics.preconditioner, "damping", 0.0))


def _fixed_tensors(model: torch.nn.Module, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in named.items() if name not in params}


def _specs(
    dynamics: Dynamics, state: State, fixed: Mapping[str, Tensor], x: Tensor
) -> list[LinearSpec]:
    network = dynamics.gradients.network
    first = {name: p[0].detach() for name, p in state.params.items()}
    named = {**fixed, **first}
    found = trace(lambda batch: network.call(named, batch), named, x[:3].clone())
    if found is None:
        raise Unsupported("a network that is no chain of linear layers")
    return found


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


__all__: list[Any] = ["NativeMLP", "Unsupported", "agrees"]
