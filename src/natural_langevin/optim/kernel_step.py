"""The step of a vector by the kernels of ``execution``: one pass over memory for every layer.

From operations on the vector a step writes out every intermediate, some sixty times the length of
the vector; C code on a CPU, or Triton's on a GPU, reads and writes each number once. Kernels take a
gradient and statistics that others have formed, so any network's parameters will do: float32, in
memory as they are written down, with dynamics and a metric that the kernels know. Everything is
written over the old state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from natural_langevin import random
from natural_langevin._internal.chains import Units
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics, kernels_of
from natural_langevin.dynamics.rates import Rates
from natural_langevin.execution import graphs
from natural_langevin.execution.kernels import Backend, LayerTask, backend_for
from natural_langevin.execution.kernels.layer import (
    KINDS,
    LayerCall,
    LayerInputs,
    LayerState,
)
from natural_langevin.execution.kernels.step import HostInputs, layer_task, step_numbers
from natural_langevin.optim.vector import VECTOR, Vector
from natural_langevin.statistics import Evaluation


class KernelStep:
    """``backend`` on the parameters of a vector, which ``tasks`` share between them."""

    def __init__(self, backend: Backend, tasks: list[LayerTask], vector: Vector) -> None:
        self._backend, self._tasks, self._vector = backend, tasks, vector
        self._on_host = HostInputs()
        self._known: tuple[list[int], dict[str, Tensor], list[LayerState]] = [], {}, []

    @property
    def on_trial(self) -> bool:
        """Whether its kernels are compiled for this run, and were never seen on this machine."""
        return self._backend.build is not None

    @staticmethod
    def of(
        dynamics: LangevinDynamics,
        params: Mapping[str, Tensor],
        units: Units,
        vector: Vector,
        drawn: Mapping[str, int],
        num_data: float,
    ) -> KernelStep | None:
        """None where no kernel computes this step. ``dynamics``: of the parameters by name, whose
        draws begin at ``drawn``."""
        kind = KINDS.get(type(dynamics.preconditioner))
        if kind is None or "linear" not in kernels_of(dynamics.integrator):
            return None
        alike = all(p.dtype == torch.float32 and p.ndim and p.numel() for p in params.values())
        if not alike or any(not p.is_contiguous() for p in params.values()):
            return None
        pairs = _pairs(params, units if kind == "quasi-diagonal" else {})
        backend = None if pairs is None else backend_for(vector.device)
        if pairs is None or backend is None:
            return None
        damping = dynamics.damping(params, num_data)
        tasks = []
        for names in pairs:
            task = layer_task(
                dynamics, names[0], names, kind, dict(params), damping, given=True
            )  # fmt: skip
            if task is None:
                return None
            tasks.append(replace(task, weight_start=drawn[names[0]], bias_start=drawn[names[-1]]))
        return KernelStep(backend, tasks, vector)

    @property
    def deferrable(self) -> list[frozenset[str]]:
        """The parameters of every task that can do without statistics, given its layer's call."""
        return [frozenset(task.parameters) for task in self._tasks]

    def __call__(
        self,
        dynamics: LangevinDynamics,
        state: State,
        params: list[Tensor],
        evaluation: Evaluation,
        calls: Mapping[str, LayerCall],
        rates: Rates,
        num_data: float,
        keep: Tensor | None,
    ) -> None:
        """One step over ``params`` and ``state``, whose ``evaluation`` is by name; ``calls``, by
        weight, stand for the statistics of their layers."""
        goes_on = torch.ones_like(rates.step_size) if keep is None else keep
        if not graphs.has_graphs(self._vector.device):
            drawn = self._on_host(dynamics, rates, num_data, goes_on, int(state.step))
        else:
            keys = random.stream(dynamics.noise, state.step).contiguous()
            drawn = step_numbers(dynamics, rates, num_data, goes_on), keys
        inputs = LayerInputs(*drawn, rates.kind.adapts, dynamics.fresh(rates.kind))
        theta, states = self._places(params, state)
        for task, own in zip(self._tasks, states, strict=True):
            given = task.found(evaluation, theta, dynamics.weight(num_data))
            call = calls.get(task.parameters[0])
            found = given if call is None else call._replace(given=given)
            self._backend.update_(task, own, found, inputs)

    def _places(
        self, params: list[Tensor], state: State
    ) -> tuple[dict[str, Tensor], list[LayerState]]:
        """The parameters, and every task's part of the state, with a chain axis; made anew where
        something lies elsewhere."""
        vectors = {"mean": state.mean[VECTOR]}
        vectors |= {field: tree[VECTOR] for field, tree in state.metric.items()}
        momentum = getattr(state.own, "momentum", {})
        if momentum:
            vectors["momentum"] = momentum[VECTOR]
        key = [t.data_ptr() for t in (*params, *vectors.values())]
        if key != self._known[0]:
            theta = {k: p[None] for k, p in zip(self._vector.names, params, strict=True)}
            parts = {field: self._vector.named(vector) for field, vector in vectors.items()}
            self._known = key, theta, [_state(task, theta, parts) for task in self._tasks]
        return self._known[1:]


def _state(
    task: LayerTask, theta: dict[str, Tensor], parts: dict[str, dict[str, Tensor]]
) -> LayerState:
    weight, bias = task.parameters[0], task.parameters[-1] if task.has_bias else ""
    second = parts.get("second", parts.get("square", {}))
    momentum = parts.get("momentum", {})
    return LayerState(
        weight=theta[weight],
        weight_mean=parts["mean"][weight],
        weight_second=second.get(weight),
        cross=parts["cross"][weight] if task.has_bias and "cross" in parts else None,
        bias=theta.get(bias),
        bias_mean=parts["mean"].get(bias),
        bias_second=second.get(bias),
        momentum=momentum.get(weight),
        bias_momentum=momentum.get(bias),
    )


def _pairs(params: Mapping[str, Tensor], units: Units) -> list[tuple[str, ...]] | None:
    """A weight and the bias of its units, or a parameter alone; None where units have several
    weights."""
    found: list[tuple[str, ...]] = []
    inner = {w for ws in units.values() for w in ws}
    for name, p in params.items():
        weights = units.get(name, ())
        if len(weights) > 1 or any(params[w].shape[:1] != p.shape for w in weights):
            return None
        if name not in inner:
            found.append((*weights, name))
    return found
