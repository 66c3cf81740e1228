"""Convolutions, transposed or not, in one, two and three dimensions.

A convolution is a linear map of the patches around every output position, so its positions t are
the output's pixels: G_n[W] = sum_t delta_nt patch_nt^T within every group. A unit is an output
channel: its filter and its bias. Patches are made a few samples at a time, never for a whole batch.

A transposed convolution swaps the roles: G_n[W] = sum_t a_nt patch_nt(delta)^T, with t over the
pixels of the *input*. The first axis of its weight is the input channel, which has no bias, so its
weight has no bias row: the metric is diagonal there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin._internal.chains import Units
from natural_langevin.statistics.rules.base import (
    Call,
    Outer,
    SampleGradient,
    Sum,
    sums_kernels,
)
from natural_langevin.statistics.rules.rewritten import rewrites


def convolution_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """nn.Conv1d, nn.Conv2d, nn.Conv3d: any stride, padding (mode), dilation and groups."""
    delta = _by_group(call.delta.flatten(2), module.groups)
    weight = Outer(call.input, delta, tuple(module.weight.shape), partial(_conv_patches, module))
    return {"weight": weight, "bias": Sum(call.delta.flatten(2).mT)}


def transposed_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """nn.ConvTranspose1d, 2d, 3d."""
    a = _by_group(call.input.flatten(2), module.groups)
    size = tuple(call.input.shape[2:])
    unfold = partial(_transposed_patches, module, size)
    weight = Outer(call.delta, a, tuple(module.weight.shape), unfold)
    return {"weight": weight, "bias": Sum(call.delta.flatten(2).mT)}


def by_kernel(module: Any, like: Tensor) -> bool:
    """Whether ``Outer.square_sums`` takes a convolution of inputs like these."""
    return module.weight.ndim < 5 and sums_kernels(like) is not None


def no_units(module: nn.Module) -> Units:
    """For layers whose bias feeds no unit with weights of its own."""
    return {}


def _conv_patches(module: Any, x: Tensor) -> Tensor:
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    return patches(padded, module.kernel_size, module.stride, module.dilation, module.groups)


def _transposed_patches(module: Any, size: Sequence[int], delta: Tensor) -> Tensor:
    """Output pixel i stride - padding + k dilation is where input pixel i meets weight k."""
    sides = [p for p in reversed(module.padding) for _ in range(2)]
    return patches(
        F.pad(delta, sides), module.kernel_size, module.stride, module.dilation, module.groups, size
    )


def patches(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    size: Sequence[int] | None = None,
) -> Tensor:
    """(n, C, *pixels) -> a view (n, group, C / group, *kernel, *positions), cropped to ``size``."""
    spatial = len(kernel)
    for axis in range(spatial):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        x = x.unfold(2 + axis, span, stride[axis])[..., :: dilation[axis]]
        if size is not None:
            x = x.narrow(2 + axis, 0, size[axis])
    front = [0, 1, 2, *range(3 + spatial, 3 + 2 * spatial), *range(3, 3 + spatial)]
    return x.unflatten(1, (groups, -1)).permute(front)


def _by_group(value: Tensor, groups: int) -> Tensor:
    """(B, C, T) -> (B, group, T, C / group)."""
    return value.unflatten(1, (groups, -1)).mT


class _ContiguousPool:
    """torch's own sets strides by hand for channels-last inputs, which has no batching rule."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.contiguous())  # type: ignore[misc]


for _kind in (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d):
    rewrites(_kind)(type(_kind.__name__, (_ContiguousPool, _kind), {}))
