"""Convolutions, transposed or not, in one, two and three dimensions.

A convolution is a linear map of the patches around every output position, so its positions t are
the output's pixels: G_n[W] = sum_t delta_nt patch_nt^T within every group. A unit is an output
channel: its filter and its bias. Patches are made a few samples at a time, never for a whole batch.

A transposed convolution swaps the roles: G_n[W] = sum_t a_nt patch_nt(delta)^T, with t over the
pixels of the *input*. The first axis of its weight is the input channel, which has no bias, so its
weight has no bias row: the metric is diagonal there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from natural_langevin._internal.chains import Units
from natural_langevin.statistics.rules.base import Call, Outer, Patches, SampleGradient, Sum
from natural_langevin.statistics.rules.rewritten import rewrites


def convolution_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """nn.Conv1d, nn.Conv2d, nn.Conv3d: any stride, padding (mode), dilation and groups."""
    delta = _by_group(call.delta.flatten(2), module.groups)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    patches = Patches(
        tuple(module._reversed_padding_repeated_twice), mode, tuple(module.kernel_size),
        tuple(module.stride), tuple(module.dilation), module.groups,
    )  # fmt: skip
    weight = Outer(call.input, delta, tuple(module.weight.shape), patches)
    return {"weight": weight, "bias": Sum(call.delta.flatten(2).mT)}


def transposed_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """nn.ConvTranspose1d, 2d, 3d: input pixel i meets weight k where output pixel
    i stride - padding + k dilation is."""
    a = _by_group(call.input.flatten(2), module.groups)
    patches = Patches(
        tuple(p for p in reversed(module.padding) for _ in range(2)), "constant",
        tuple(module.kernel_size), tuple(module.stride), tuple(module.dilation), module.groups,
        tuple(call.input.shape[2:]),
    )  # fmt: skip
    weight = Outer(call.delta, a, tuple(module.weight.shape), patches)
    return {"weight": weight, "bias": Sum(call.delta.flatten(2).mT)}


def no_units(module: nn.Module) -> Units:
    """For layers whose bias feeds no unit with weights of its own."""
    return {}


def _by_group(value: Tensor, groups: int) -> Tensor:
    """(B, C, T) -> (B, group, T, C / group)."""
    return value.unflatten(1, (groups, -1)).mT


class _ContiguousPool:
    """torch's own sets strides by hand for channels-last inputs, which has no batching rule."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.contiguous())  # type: ignore[misc]


for _kind in (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d):
    rewrites(_kind)(type(_kind.__name__, (_ContiguousPool, _kind), {}))
