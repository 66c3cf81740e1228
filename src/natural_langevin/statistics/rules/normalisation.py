"""Normalisations: y = w x^ + b, elementwise in a feature or a channel.

With x^ the normalised input, G_n[w] = sum_t x^_nt delta_nt and G_n[b] = sum_t delta_nt over the
positions t that share the gain. A unit is a feature: its gain and its shift.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from natural_langevin.statistics.rules.base import Call, SampleGradient, Sum, sums_kernels
from natural_langevin.statistics.rules.rewritten import rewrites


def layer_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """Scale: delta times the normalised input; shift: delta; summed over positions."""
    normalised = F.layer_norm(call.input, module.normalized_shape, eps=module.eps)
    return _by_feature(module, normalised, call.delta)


def rms_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """Scale: delta times the normalised input, summed over positions."""
    normalised = F.rms_norm(call.input, module.normalized_shape, eps=module.eps)
    return _by_feature(module, normalised, call.delta)


def group_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """By channel. Scale: delta times the normalised input; shift: delta."""
    kernel = sums_kernels(call.input, call.delta)
    if kernel is not None:
        found = kernel.channel_sums(call.input, call.delta, module.num_groups, module.eps)
        gain, shift = (Sum(v[:, None].to(call.delta.dtype)) for v in found)
        return {"weight": gain, "bias": shift}
    normalised = F.group_norm(call.input.contiguous(), module.num_groups, eps=module.eps)
    return _by_channel(normalised, call.delta)


def running_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """BatchNorm in eval mode, and InstanceNorm."""
    return _by_channel(_normalised(module, call.input), call.delta)


def _normalised(module: Any, x: Tensor) -> Tensor:
    """By the running averages where there are any, else every channel of a sample by itself."""
    if module.running_mean is None:
        return F.group_norm(x.contiguous(), x.shape[1], eps=module.eps)
    shape = (-1,) + (1,) * (x.ndim - 2)
    mean, variance = module.running_mean.reshape(shape), module.running_var.reshape(shape)
    return (x - mean) * (variance + module.eps).rsqrt()


class _FullPrecision:
    """Contiguous, because torch's own asks for channels-last strides, which vmap cannot answer; and
    in the precision of the gain, as autocast does on GPUs: elsewhere vmap cannot mix the two."""

    def forward(self: Any, input: Tensor) -> Tensor:
        like = input if self.weight is None else self.weight
        return super().forward(input.contiguous().to(like.dtype))  # type: ignore[misc]


@rewrites(nn.LayerNorm)
class LayerNorm(_FullPrecision, nn.LayerNorm): ...


@rewrites(nn.RMSNorm)
class RMSNorm(_FullPrecision, nn.RMSNorm): ...


@rewrites(nn.GroupNorm)
class GroupNorm(_FullPrecision, nn.GroupNorm): ...


class _ChannelNorm:
    """The forward pass from plain operations: F.batch_norm cannot be compiled inside vmap."""

    def forward(self: Any, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        normalised = _normalised(self, input)
        if not self.affine:
            return normalised
        shape = (-1,) + (1,) * (input.ndim - 2)
        return normalised * self.weight.reshape(shape) + self.bias.reshape(shape)


CHANNEL_NORMS = [
    rewrites(kind)(type(kind.__name__, (_ChannelNorm, kind), {}))
    for kind in (
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.SyncBatchNorm,
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.InstanceNorm3d,
    )
]


def _by_feature(module: Any, normalised: Tensor, delta: Tensor) -> dict[str, SampleGradient]:
    shape = module.normalized_shape
    gain, shift = (v.reshape(len(v), -1, *shape) for v in (normalised * delta, delta))
    return {"weight": Sum(gain), "bias": Sum(shift)}


def _by_channel(normalised: Tensor, delta: Tensor) -> dict[str, SampleGradient]:
    """Channels are the second axis: (B, C, ...) -> (B, T, C)."""
    gain, shift = (v.reshape(*v.shape[:2], -1).mT for v in (normalised * delta, delta))
    return {"weight": Sum(gain), "bias": Sum(shift)}
