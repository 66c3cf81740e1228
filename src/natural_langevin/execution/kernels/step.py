"""A step whose linear layers are updated by a backend, and everything else as ever.

``evaluate_`` is one function to compile: forward, backward, and the general update of all
parameters that belong to no fused layer. It hands each fused layer's (a, delta) to the backend,
which forms the products and writes the layer's new state over the old one. Parameter by parameter
the result is that of ``Dynamics.step``; only the order of summation differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin import random
from natural_langevin.dynamics.overdamped import Dynamics, Info, Rates, State, select
from natural_langevin.execution.kernels.layer import (
    KINDS,
    Backend,
    LayerInputs,
    LayerTask,
    parameter_names,
    prior_numbers,
)

Batch = tuple[Tensor, Tensor]


class FusedStep:
    """One step in the state's own memory. ``inputs(state, ...)`` gives minibatch and rates."""

    def __init__(
        self,
        dynamics: Dynamics,
        tasks: list[LayerTask],
        backend: Backend,
        inputs: Callable[..., tuple[Batch, Rates, Tensor, bool]],
        compile: Callable[[Any], Any],
    ) -> None:
        self.dynamics, self.tasks, self.backend, self.inputs = dynamics, tasks, backend, inputs
        self._deferred = tuple(task.name for task in tasks)
        self._apart = {name for task in tasks for name in task.parameters}
        self._evaluate_ = compile(self.evaluate_)

    def __call__(self, state: State, *where: Any) -> Info:
        info, calls, numbers = self._evaluate_(state, *where)
        for task in self.tasks:
            self.backend.update_(task, task.state(state), calls[task.name], numbers)
        return info

    def evaluate_(self, state: State, *where: Any) -> tuple[Info, dict[str, Any], LayerInputs]:
        batch, rates, num_data, chain_axis = self.inputs(state, *where)
        dynamics = self.dynamics
        evaluation = dynamics.evaluate(state, batch, chain_axis=chain_axis, deferred=self._deferred)
        keep = dynamics.still_running(state, evaluation.loss)
        numbers = torch.stack(
            torch.broadcast_tensors(
                rates.step_size, dynamics.noise_scale(rates, num_data), rates.decay, rates.mean,
                1 / num_data, keep.to(rates.decay.dtype),
            ),
            dim=1,
        )  # fmt: skip
        inputs = LayerInputs(numbers, random.stream(dynamics.noise, state.step).contiguous())
        rest = self._rest(state)
        new = dynamics.update(rest, evaluation, rates, num_data)
        diverged = dynamics.note_diverged(state, keep)
        new = select(keep, new, rest, diverged)
        pytree.tree_map(lambda old, value: old.copy_(value), rest, new)
        calls = {
            task.name: self.backend.arrange(task, evaluation.deferred[task.name])
            for task in self.tasks
        }
        return Info(evaluation.loss, diverged >= 0), calls, inputs

    def _rest(self, state: State) -> State:
        """The part of the state that no fused layer owns: the same tensors."""

        def without(tree: dict[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in tree.items() if k not in self._apart}

        return state._replace(
            params=without(state.params),
            mean=without(state.mean),
            metric={group: without(values) for group, values in state.metric.items()},
        )


def plan(dynamics: Dynamics, state: State, batch: Batch) -> list[LayerTask]:
    """The layers of this network that a backend may update; ``batch`` has no chain axis.

    A layer qualifies when its gradients can be deferred (see ``Gradients.deferrable``), its
    parameters are float32 and all trainable, and its priors are Gaussian or flat; and when
    delta^T a is the gradient of its weight on this batch, whatever the network's structure says.
    """
    kind = KINDS.get(type(dynamics.preconditioner))
    if kind is None or dynamics.preconditioner.damping == "prior":  # a layer takes one number
        return []
    trainable = dynamics.gradients.network.trainable()
    names = dynamics.gradients.deferrable(state.params, batch[0])
    tasks = [_task(dynamics, name, kind, trainable) for name in names]
    found = {task.name: task for task in tasks if task is not None}
    return [found[name] for name in _with_true_gradient(dynamics, state, batch, list(found))]


def _task(
    dynamics: Dynamics, name: str, kind: Any, trainable: dict[str, Tensor]
) -> LayerTask | None:
    module = dynamics.gradients.network.model.get_submodule(name)
    weight, bias = parameter_names(name)
    names = [weight, bias] if module.bias is not None else [weight]
    if any(n not in trainable or trainable[n].dtype != torch.float32 for n in names):
        return None
    chains, device = len(dynamics.temperature), trainable[weight].device
    numbers = [prior_numbers(dynamics.prior[n], chains, device) for n in (weight, names[-1])]
    if any(n is None for n in numbers):
        return None
    return LayerTask(
        name=name,
        kind=kind,
        damping=float(dynamics.preconditioner.damping),
        has_bias=module.bias is not None,
        weight_start=dynamics.starts[weight],
        bias_start=dynamics.starts[names[-1]],
        prior=torch.cat([n for n in numbers if n is not None], dim=1).contiguous(),
    )


def _with_true_gradient(
    dynamics: Dynamics, state: State, batch: Batch, names: list[str]
) -> list[str]:
    """Those layers whose delta^T a / B is the loss's gradient, for one chain and this batch."""
    if not names:
        return []
    one = state._replace(
        params={k: p[:1] for k, p in state.params.items()},
        likelihood={k: v[:1] for k, v in state.likelihood.items()},
    )
    first = replace(dynamics, labels=dynamics.labels[:1])
    whole = first.evaluate(one, batch, chain_axis=False).gradient
    apart = first.evaluate(one, batch, chain_axis=False, deferred=tuple(names)).deferred
    true = []
    for name in names:
        a, delta, _ = apart[name]
        expected = whole[parameter_names(name)[0]]
        error = (delta.mT @ a / a.shape[-2] - expected).norm()
        if error <= 1e-2 * expected.norm() + 1e-12:
            true.append(name)
    return true
