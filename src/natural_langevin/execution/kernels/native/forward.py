"""Outputs of many networks in C, for predictions and held-out scores.

The network is recognised as the engine's is (see ``trace``), and the first outputs of every shape
of inputs are compared with the network's own. What is no chain of linear layers, or disagrees, is
evaluated the general way, by whoever asks.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin._internal import threads
from natural_langevin._internal.chains import Params
from natural_langevin.execution.kernels.native.build import DTYPES, library_at_hand
from natural_langevin.execution.kernels.native.layout import Layer, Run
from natural_langevin.execution.kernels.native.trace import (
    LayerSpec,
    describe,
    other_tensors,
    trace,
)

log = logging.getLogger("natural_langevin")

Call = Callable[[Params, Tensor], Any]

#: Inputs on which a network is watched and compared.
FEW = 16
#: Of a layer and a sample: more are the BLAS's own ground, and operator calls no matter.
MOST_PRODUCTS = {"linear": 1 << 16, "convolution": 1 << 21}


class NativeOutputs:
    """Outputs of networks of one model, whatever their weights."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        #: The layers of inputs of this shape and dtype, and the shape of an output; None: others
        #: serve.
        self._known: dict[Any, tuple[list[LayerSpec], torch.Size] | None] = {}

    def __call__(
        self, call: Call, params: Params, x: Tensor, *, own: bool = False
    ) -> Tensor | None:
        """Outputs (network, B, ...) of networks (network, *shape) for the inputs ``x`` (B, ...), or
        (network, B, ...) where every network has its ``own``; None: the general way serves.

        ``call(params, x)``: the model's own outputs with one network's ``params``."""
        first = next(iter(params.values()))
        if not _readable(first, x) or not first.shape[0] or not x.numel():
            return None
        one = x[0] if own else x
        key = one.shape[1:], x.dtype
        if key not in self._known:
            specs = self._traced(call, params, x, own)
            known = None if specs is None else self._recognised(specs, call, params, x, own)
            self._known[key] = known
        found = self._known[key]
        if found is None:
            return None
        specs, shape = found
        return self._computed(specs, params, x, own).reshape(first.shape[0], one.shape[0], *shape)

    def _traced(self, call: Call, params: Params, x: Tensor, own: bool) -> list[LayerSpec] | None:
        named = other_tensors(self._model, params) | {name: p[0] for name, p in params.items()}
        some = (x[0] if own else x)[:FEW]
        specs = trace(lambda batch: call(named, batch), named, some.clone())
        return specs if specs is not None and _fit(specs, named, some) else None

    def _recognised(
        self, specs: list[LayerSpec], call: Call, params: Params, x: Tensor, own: bool
    ) -> tuple[list[LayerSpec], torch.Size] | None:
        """What is known of such inputs: by the first network's outputs and the last one's."""
        shape = torch.Size()
        for network in (0, -1):
            some = (x[network] if own else x)[:FEW]
            with torch.no_grad():
                wanted = call({name: p[network] for name, p in params.items()}, some.clone())
            only = {name: p[[network]] for name, p in params.items()}
            found = self._computed(specs, only, some[None] if own else some, own)[0]
            if len(wanted) != len(some) or wanted.numel() != found.numel():
                return None
            error = (found - wanted.reshape(found.shape)).abs().amax()
            rounding = 1e3 * torch.finfo(x.dtype).eps * wanted.abs().amax()
            if not error <= rounding and bool(torch.isfinite(wanted).all()):
                log.warning("native outputs disagree with the network's own: not used")
                return None
            shape = wanted.shape[1:]
        return specs, shape

    def _computed(self, specs: list[LayerSpec], params: Params, x: Tensor, own: bool) -> Tensor:
        """(network, B, output)."""
        count, batch = len(next(iter(params.values()))), x.shape[1] if own else len(x)
        named = other_tensors(self._model, params) | params
        run, layers, kept = Run(), (Layer * len(specs))(), [x.detach().contiguous()]
        for layer, spec in zip(layers, specs, strict=True):
            weight = None if spec.weight is None else named[spec.weight]
            shape = None if weight is None else weight.shape[spec.weight in params :]
            describe(layer, spec, shape)
            for k, name in enumerate((spec.weight, spec.bias)):
                if name is None:
                    continue
                kept.append(named[name].detach().contiguous())
                layer.theta[k], layer.trainable[k] = kept[-1].data_ptr(), name in params
        outputs = torch.empty(count, batch, layers[len(specs) - 1].outputs, dtype=x.dtype)
        run.chains, run.layers, run.batch = count, len(specs), batch
        run.threads, run.x = threads.of_engines(), kept[0].data_ptr()
        native = library_at_hand(x.dtype)
        assert native is not None
        needed = native.forward_bytes(ctypes.byref(run), layers)
        workspace = torch.empty(needed, dtype=torch.uint8)
        run.workspace = workspace.data_ptr()
        native.network_outputs(ctypes.byref(run), layers, int(own), outputs.data_ptr())
        return outputs


def _fit(specs: list[LayerSpec], named: Params, x: Tensor) -> bool:
    """Whether every layer takes what the one before it gives, and none is wide."""
    width = x[0].numel()
    for spec in specs:
        layer = Layer()
        tensors = [named[name] for name in (spec.weight, spec.bias) if name is not None]
        describe(layer, spec, tensors[0].shape if tensors else None)
        if layer.inputs != width or any(tensor.dtype != x.dtype for tensor in tensors):
            return False
        if spec.weight and layer.unit_inputs * layer.outputs > MOST_PRODUCTS[spec.kind]:
            return False
        if spec.bias is not None and tensors[-1].shape != (layer.units,):
            return False
        width = layer.outputs
    return True


def _readable(first: Tensor, x: Tensor) -> bool:
    """Whether the library finds these tensors, and nobody wants their derivatives."""
    return (
        x.device.type == "cpu" == first.device.type
        and x.dtype == first.dtype
        and x.dtype in DTYPES
        and torch._C._functorch.peek_interpreter_stack() is None  # inside, tensors have no memory
        and not (torch.is_grad_enabled() and (x.requires_grad or first.requires_grad))
        and library_at_hand(x.dtype) is not None
    )
