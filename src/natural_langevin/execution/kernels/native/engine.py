"""Runs whole steps of a multilayer perceptron in C, in the state's own memory.

``NativeMLP`` reads what the dynamics' own step reads (state, minibatches, rates, noise streams,
priors) and writes what it would write: the same draws, the same formulas, sums in another order.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal import threads
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import Info, State
from natural_langevin.dynamics.descent import Descent
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.kernels.layer import squares_in
from natural_langevin.execution.kernels.native import settings
from natural_langevin.execution.kernels.native.build import DTYPES, library
from natural_langevin.execution.kernels.native.layout import (
    ACTIVATIONS,
    METRICS,
    Layer,
    Run,
    pointer,
)
from natural_langevin.execution.kernels.native.settings import UnsupportedError
from natural_langevin.execution.kernels.native.trace import (
    LayerSpec,
    describe,
    other_tensors,
    trace,
)

#: A call into the library lasts about so long: between calls Ctrl-C is noticed.
SECONDS_PER_CALL = 0.2
#: Bytes of its own memory beyond which the engine is not used: feature maps of large images, for
#: which torch's convolutions are as quick.
MOST_MEMORY = 1 << 32
#: Row numbers of all chains' permutations that are kept from call to call.
MOST_KEPT = 1 << 26


class NativeMLP:
    """The steps of one network along one stream. ``UnsupportedError``: what it cannot take."""

    name = "native"

    def __init__(
        self,
        dynamics: LangevinDynamics,
        state: State,
        stream: Stream,
        rates: RatesTable,
        num_data: float,
    ) -> None:
        first = next(iter(state.params.values()))
        if first.device.type != "cpu" or first.dtype not in DTYPES:
            raise UnsupportedError(f"{first.dtype} on {first.device.type}")
        self.dynamics, self.stream, self.rates = dynamics, stream, rates
        self.num_data, self.dtype = num_data, first.dtype
        self._check_settings()
        x = stream.example()[0]
        self._row_shape = x.shape[1:]
        self._fixed = other_tensors(dynamics.gradients.network.model, state.params)
        self.specs = specs_of(dynamics, state, self._fixed, x)
        found = library(self.dtype)
        if found is None:
            raise UnsupportedError("there is no library")
        self._library = found
        self._kept: list[Tensor] = []  # memory that the structures point to
        self._run, self._layers = Run(), (Layer * len(self.specs))()
        self._workspace: Tensor | None = None
        self._bound: State | None = None
        self._step_seconds, self._batch = 0.0, 0
        self._describe_layers(x[0].numel())
        self._describe_run()
        if isinstance(dynamics, Descent) and dynamics.origin is not None:
            self._run.dropout = self._per_chain(dynamics.rate)
            self._run.mask_origin = self._keep(dynamics.origin)
        if isinstance(stream, InMemory):
            self._take_stream(stream)
        else:
            self._run.batch = len(x)
        if any(spec.places is not None for spec in self.specs):
            self._refuse_large()
        self._bind(state)

    def run(self, state: State, start: int, count: int) -> Info:
        """Steps ``start`` to ``start + count - 1``, written over ``state``; Info of the last."""
        self._bind(state)
        stop = start + count
        while start < stop:
            several = self.rates.same_stage(start, self._several(stop - start))
            if not isinstance(self.stream, InMemory):
                self.take_batch(*self.stream.batch(start))
            began = time.perf_counter()
            self.call(start, several)
            self._step_seconds = (time.perf_counter() - began) / several
            start += several
            state.step.fill_(start)
        return Info(self._loss.clone(), state.diverged >= 0)

    def one_step(self, state: State, step: int, batch: tuple[Tensor, Tensor] | None) -> Info:
        """One step from ``state``, on a batch of one's own or (None) on the stream's."""
        self._bind(state)
        if batch is not None:
            self.take_batch(*batch)
        self.call(step, 1)
        state.step.fill_(step + 1)
        return Info(self._loss.clone(), state.diverged >= 0)

    def _several(self, wanted: int) -> int:
        """How many steps the next call takes: one until their time is known, then what fits into
        ``SECONDS_PER_CALL``, so that Ctrl-C is heard."""
        if not self._step_seconds or not isinstance(self.stream, InMemory):
            return 1
        return max(1, min(wanted, int(SECONDS_PER_CALL / self._step_seconds)))

    def call(self, start: int, count: int) -> None:
        """Takes ``count`` steps of the state that ``_bind`` points at; the caller counts them."""
        run, size = self._run, self.dtype.itemsize
        row = self._rates.data_ptr() + (start - self.rates.start) * self._rates.stride(0) * size
        run.start, run.count, run.step_size = start, count, row
        run.temperature = self._temperature[self.rates.kind(start).explores]
        run.decay, run.mean_rate = row + run.chains * size, row + (run.chains + 1) * size
        if run.threads != threads.of_engines():
            run.threads, self._workspace = threads.of_engines(), None
        if self._workspace is None:
            needed = self._library.workspace_bytes(ctypes.byref(run), self._layers)
            self._workspace = torch.empty(needed, dtype=torch.uint8)
            run.workspace = self._workspace.data_ptr()
        if self._addresses != tuple(map(pointer, self._data)):
            raise RuntimeError(
                "the memory of x or y was replaced during the run (resize_, set_ or a storage that "
                "was freed): give the run a copy, x.clone()"
            )
        self._library.run_steps(ctypes.byref(run), self._layers)
        row = int(self._wrong_row)
        if row >= 0:
            raise ValueError(
                f"row {row} of the data has an unknown class: y was changed during the run. Give "
                "the run a copy, y.clone()"
            )

    # What is fixed along a run -------------------------------------------------------------------

    def _check_settings(self) -> None:
        gradients = self.dynamics.gradients
        settings.refuse_indirect(gradients)
        self._metric = settings.metric(self.dynamics.preconditioner)
        drawn = self.dynamics.preconditioner.targets == "model"
        self._likelihood = settings.likelihood(gradients.likelihood, drawn=drawn)

    def _refuse_large(self) -> None:
        self._run.threads = threads.of_engines()
        needed = self._library.workspace_bytes(ctypes.byref(self._run), self._layers)
        if needed > MOST_MEMORY:
            raise UnsupportedError(f"{needed / 2**30:.1f} GiB of memory")

    def _describe_layers(self, width: int) -> None:
        """Shapes, activations, priors and damping; ``width``: of an input."""
        dynamics, chains = self.dynamics, len(self.dynamics.temperature)
        shapes: dict[str | None, tuple[int, ...]] = {
            name: tuple(t.shape) for name, t in dynamics.gradients.network.trainable().items()
        }
        shapes |= {name: tuple(t.shape) for name, t in self._fixed.items()}
        damping = dynamics.damping(dynamics.starts, self.num_data)
        unitwise = METRICS[self._metric] == "unit"
        for layer, spec in zip(self._layers, self.specs, strict=True):
            if spec.kind == "convolution" and (unitwise or dynamics.gradients.sharing != "exact"):
                raise UnsupportedError("a unit-wise metric of convolutions, or one by positions")
            describe(layer, spec, shapes.get(spec.weight))
            if layer.inputs != width or (spec.bias and shapes[spec.bias] != (layer.units,)):
                raise UnsupportedError("layers that do not fit")
            width = layer.outputs
            for k, name in _tensors(spec):
                layer.trainable[k] = name in dynamics.starts
                if not layer.trainable[k]:
                    layer.theta[k] = self._keep(self._fixed[name].to(self.dtype))
                    continue
                layer.start[k] = dynamics.starts[name]
                layer.prior[k], numbers, means = settings.prior(
                    dynamics.prior[name], chains, self.dtype
                )
                layer.prior_numbers[k] = self._keep(numbers)
                if means is not None:
                    layer.centre[k] = self._keep(means)
                layer.damping[k] = self._per_chain(damping[name])

    def _describe_run(self) -> None:
        run, dynamics = self._run, self.dynamics
        chains = len(dynamics.temperature)
        self._loss = torch.zeros(chains, dtype=self.dtype)
        self._wrong_row = torch.tensor(-1)
        run.wrong_row = self._wrong_row.data_ptr()
        self._rates = self.rates.values.to(self.dtype).contiguous()
        run.chains, run.layers, run.step_stride = chains, len(self.specs), self._rates.stride(0)
        warm = dynamics.temperature.to(self.dtype)
        #: Where the temperatures are: those to sample at, and those to explore at.
        self._temperature = self._keep(warm), self._keep(torch.zeros_like(warm))
        run.noise_origin, run.label_origin = self._keep(dynamics.noise), self._keep(dynamics.labels)
        run.num_data = self._per_chain(dynamics.weight(self.num_data))
        run.loss = self._loss.data_ptr()
        law = self._likelihood
        run.likelihood, run.variance, run.df = law.number, law.variance, law.df
        run.own = law.own
        if law.scale is not None:
            run.per_scale = self._keep(1 / torch.tensor(law.scale, dtype=self.dtype))
        metric, settles = dynamics.preconditioner, self.rates.settles
        run.metric, run.fresh = self._metric, metric.counts_own_batch(settles=settles)
        run.model_targets = dynamics.preconditioner.targets == "model"
        friction = getattr(dynamics.integrator, "friction", None)
        if friction is not None:
            run.friction = self._per_chain(friction)
            run.baoab = getattr(dynamics.integrator, "integrator", None) == "baoab"

    def _per_chain(self, value: float | Tensor) -> int:
        chains = len(self.dynamics.temperature)
        return self._keep(torch.as_tensor(value, dtype=self.dtype).expand(chains))

    def _keep(self, tensor: Tensor) -> int:
        """A pointer to the tensor's numbers, which stay where they are."""
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    # Data ----------------------------------------------------------------------------------------

    def _take_stream(self, stream: InMemory) -> None:
        if not stream.shuffled:
            raise UnsupportedError("another order of the data than shuffled epochs")
        run = self._run
        run.batch, run.num_rows, run.shuffled = stream.batch_size, stream.num_data, 1
        run.data_origin = self._keep(stream.origin)
        if stream.rows is not None:
            run.rows = self._keep(stream.rows.long())
        if run.chains * run.num_rows <= MOST_KEPT:
            run.orders = self._keep(torch.empty(run.chains, run.num_rows, dtype=torch.int32))
            run.epochs = self._keep(torch.full((run.chains,), -1, dtype=torch.int64))
        self._take_rows(stream.x, stream.y)

    def take_batch(self, x: Tensor, y: Tensor) -> None:
        """The next step's batch: shared by all chains, or with a chain axis."""
        run, rows = self._run, None
        if self.stream.chain_axis:
            chains, size = x.shape[:2]
            x, y = x.flatten(0, 1), y.flatten(0, 1)
            rows = torch.arange(chains * size)
            run.batch, run.rows = size, rows.data_ptr()
        else:
            run.batch = len(x)
        run.shuffled, run.num_rows = 0, run.batch
        if self._batch != run.batch:
            self._batch, self._workspace = run.batch, None
        self._take_rows(x, y, rows)

    def _take_rows(self, x: Tensor, y: Tensor, numbers: Tensor | None = None) -> None:
        if x.dtype != self.dtype:
            raise UnsupportedError(f"inputs of {x.dtype}")
        if x.shape[1:] != self._row_shape or not len(x) == len(y) > 0:
            raise ValueError(
                f"a batch of x {tuple(x.shape)} and y {tuple(y.shape)} does not fit rows of "
                f"{tuple(self._row_shape)}, with which the run began: give rows of one shape, or "
                "compile=False"
            )
        run, outputs = self._run, self._layers[len(self.specs) - 1].outputs
        rows = x.detach().reshape(len(x), -1).contiguous()
        found = settings.targets(self.dynamics.gradients.likelihood, y, outputs, self.dtype)
        run.x, run.targets = rows.data_ptr(), 0 if found.values is None else found.values.shape[1]
        run.classes, run.y, run.offset, run.weight = (pointer(t) for t in found)
        self._data = (rows, numbers, *found)  # kept
        self._addresses = tuple(map(pointer, self._data))

    # State ---------------------------------------------------------------------------------------

    def _bind(self, state: State) -> None:
        """Points at the state's tensors."""
        if state is self._bound:
            return
        momentum = self._momentum(state)
        trees = (state.params, state.mean, state.metric, state.likelihood, momentum)
        leaves = pytree.tree_leaves(trees)
        if not all(leaf.is_contiguous() and leaf.dtype == self.dtype for leaf in leaves):
            raise UnsupportedError("a state whose tensors are not contiguous, or of several dtypes")
        if not set(state.params) <= {name for spec in self.specs for _, name in _tensors(spec)}:
            raise UnsupportedError("parameters that the network does not use")
        second, cross = squares_in(state), state.metric.get("cross", {})
        for layer, spec in zip(self._layers, self.specs, strict=True):
            for k, name in _tensors(spec):
                if name in state.params:
                    layer.theta[k] = state.params[name].data_ptr()
                    layer.mean[k] = pointer(state.mean.get(name))
                    layer.second[k] = pointer(second.get(name))
                    layer.momentum[k] = pointer(momentum.get(name))
            if spec.bias is not None:
                layer.cross = pointer(cross.get(spec.bias, {}).get(spec.weight))
            trained = any(name in state.params for _, name in _tensors(spec))
            if trained and METRICS[self._metric] == "unit" and spec.kind != "append":
                layer.blocks = _block(state, spec).data_ptr()
        self._run.diverged = state.diverged.data_ptr()
        # A Gaussian's "variance" or Student's "squared_scale"; most learn nothing.
        self._run.learned_variance = pointer(next(iter(state.likelihood.values()), None))
        self._bound = state

    def _momentum(self, state: State) -> Mapping[str, Tensor]:
        """What an underdamped integrator carries on; nothing for an overdamped one."""
        if not state.own:
            return {}
        if len(state.own) != 1 or not self._run.friction:
            raise UnsupportedError(f"the integrator {self.dynamics.integrator!r}")
        momentum: Mapping[str, Tensor] = state.own[0]
        return momentum


def _tensors(spec: LayerSpec) -> list[tuple[int, str]]:
    """The layer's tensors by their number: weight 0, bias 1."""
    return [(k, name) for k, name in enumerate((spec.weight, spec.bias)) if name is not None]


def _block(state: State, spec: LayerSpec) -> Tensor:
    """The unit-wise metric of a layer, whose parameters must all be in it."""
    names = [name for _, name in _tensors(spec) if name in state.params]
    found = state.metric["blocks"]
    for name in reversed(names):  # bias first
        found = found.get(name, {}) if isinstance(found, dict) else {}
    if not isinstance(found, Tensor) or spec.weight not in names:
        raise UnsupportedError("a unit-wise metric of some parameters only")
    return found


def specs_of(
    dynamics: LangevinDynamics, state: State, fixed: Mapping[str, Tensor], x: Tensor
) -> list[LayerSpec]:
    """The network's layers, found by a call on a batch like ``x``."""
    network = dynamics.gradients.network
    first = {name: p[0].detach() for name, p in state.params.items()}
    named = {**fixed, **first}
    found = trace(lambda batch: network.call(named, batch), named, x[:3].clone())
    if found is None:
        raise UnsupportedError(
            "a network that is not a chain of linear layers, convolutions, pools and activations "
            f"of these: {', '.join(ACTIVATIONS[1:])}"
        )
    return found
