"""A perceptron's layers in order, for the kernels on a GPU that also take its forward and backward
pass; and what neither of them (``whole_steps``, ``triton_perceptron``) takes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from natural_langevin.data.streams import InMemory
from natural_langevin.dynamics.base import State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.execution.kernels.native.engine import specs_of
from natural_langevin.execution.kernels.native.settings import UnsupportedError, refuse_indirect
from natural_langevin.execution.kernels.native.trace import other_tensors


class PerceptronLayer(NamedTuple):
    """f(W a + b): W is (``outputs``, ``inputs``)."""

    names: tuple[str, ...]  # of the weight and, if it has one, of the bias
    outputs: int
    inputs: int
    activation: str  # of ``native.layout.ACTIVATIONS``
    parameters: tuple[float, float]  # of the activation

    @property
    def has_bias(self) -> bool:
        """Whether it has a bias."""
        return len(self.names) == 2


def perceptron_layers(
    dynamics: LangevinDynamics, state: State, stream: InMemory
) -> list[PerceptronLayer]:
    """The layers, all of them linear and trained, each as wide as the one before it is high.
    ``UnsupportedError``: another network, or gradients that are not a whole batch's of its own
    labels."""
    refuse_indirect(dynamics.gradients)
    if dynamics.gradients.targets == "model":
        raise UnsupportedError("labels drawn from the model")
    if stream.x.dtype != torch.float32:
        raise UnsupportedError(f"inputs of {stream.x.dtype}")
    found, width = [], stream.x[0].numel()
    fixed = other_tensors(dynamics.gradients.network.model, state.params)
    for spec in specs_of(dynamics, state, fixed, stream.example()[0]):
        if spec.weight is None or spec.kind != "linear":
            raise UnsupportedError("convolutions and pools")
        names = (spec.weight,) if spec.bias is None else (spec.weight, spec.bias)
        if not set(names) <= set(state.params):
            raise UnsupportedError("frozen parameters")
        outputs, inputs = state.params[spec.weight].shape[1:]
        if inputs != width:
            raise UnsupportedError("layers that do not fit")
        found.append(PerceptronLayer(names, outputs, inputs, spec.activation, spec.parameters))
        width = outputs
    return found
