"""A traced layer as the ``struct Layer`` that the library reads: its kind, sizes and activation."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

from natural_langevin.execution.kernels.native.layout import ACTIVATIONS, KINDS, Layer
from natural_langevin.execution.kernels.native.trace import LayerSpec


def describe(layer: Layer, spec: LayerSpec, weight: Sequence[int] | None) -> None:
    """``weight``: the weight's shape, of one network. A table stays where ``spec`` has it."""
    layer.kind = KINDS.index(spec.kind)
    layer.activation = ACTIVATIONS.index(spec.activation)
    layer.parameter = (ctypes.c_double * 2)(*spec.parameters)
    layer.positions = 1
    if weight is not None:
        layer.units, layer.unit_inputs = weight[0], math.prod(weight[1:])
    layer.inputs = layer.unit_inputs
    if spec.kind == "append":
        layer.units, layer.unit_inputs, layer.inputs = 1, 1, spec.inputs
        layer.outputs = layer.inputs + layer.units
        return
    if spec.places is not None:
        rows, columns = spec.places.table.shape
        layer.table, layer.inputs = spec.places.table.data_ptr(), spec.places.inputs
        layer.share = spec.places.share
        if weight is None:
            layer.units, layer.unit_inputs = rows, columns
        else:
            layer.positions = rows
    layer.outputs = layer.units * layer.positions
