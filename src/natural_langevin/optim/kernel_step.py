"""The step by the kernels of ``execution``: one pass over memory for every layer.

From operations a step writes out every intermediate, some sixty times as many numbers as there are
parameters; C code on a CPU, or Triton's on a GPU, reads and writes each number once. Kernels take a
gradient and statistics that others have formed, so any network's parameters will do: float32, in
memory as they are written down, with dynamics and a metric that the kernels know. Everything is
written over the old state.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from natural_langevin._internal import cuda_graphs
from natural_langevin._internal.chains import Params, Units
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics, kernels_of
from natural_langevin.dynamics.rates import Rates
from natural_langevin.execution.kernels import Backend, LayerTask, backend_for
from natural_langevin.execution.kernels.layer import (
    KINDS,
    LayerCall,
    LayerInputs,
    LayerState,
)
from natural_langevin.execution.kernels.step import DrawnInputs, layer_task
from natural_langevin.statistics import Evaluation


class KernelStep:
    """``backend`` on parameters ``names``, which ``tasks`` share between them."""

    def __init__(self, backend: Backend, tasks: list[LayerTask], names: list[str]) -> None:
        self._backend, self._tasks, self._names = backend, tasks, names
        self._drawn = DrawnInputs()
        self._known: tuple[list[int], tuple[Any, ...], Params, list[LayerState]] = [], (), {}, []

    @property
    def on_trial(self) -> bool:
        """Whether its kernels are compiled for this run, and were never seen on this machine."""
        return self._backend.build is not None

    @staticmethod
    def of(
        dynamics: LangevinDynamics,
        params: Mapping[str, Tensor],
        units: Units,
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
        backend = None if pairs is None else backend_for(next(iter(params.values())).device)
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
        return KernelStep(backend, tasks, list(params))

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
        at = state.step if cuda_graphs.has_graphs(rates.step_size.device) else int(state.step)
        drawn = self._drawn(dynamics, rates, num_data, goes_on, at)
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
        key = [p.data_ptr() for p in params]
        trees = state.mean, state.metric, state.own
        if key != self._known[0] or any(map(operator.is_not, trees, self._known[1])):
            theta = {k: p[None] for k, p in zip(self._names, params, strict=True)}
            named = state._replace(params=theta)
            self._known = key, trees, theta, [task.state(named) for task in self._tasks]
        return self._known[2:]


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
