"""Normalisations: y = w x^ + b, elementwise in a feature or a channel.

With x^ the normalised input, G_n[w] = sum_t x^_nt delta_nt and G_n[b] = sum_t delta_nt over the
positions t that share the gain. A unit is a feature: its gain and its shift.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from natural_langevin.gradients.rules.base import Call, SampleGradient, Sum


def layer_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    normalised = F.layer_norm(call.input, module.normalized_shape, eps=module.eps)
    return _by_feature(module, normalised, call.delta)


def rms_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    normalised = F.rms_norm(call.input, module.normalized_shape, eps=module.eps)
    return _by_feature(module, normalised, call.delta)


def group_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    normalised = F.group_norm(call.input, module.num_groups, eps=module.eps)
    return _by_channel(normalised, call.delta)


def running_norm_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """InstanceNorm, and BatchNorm in eval mode: by running averages where there are any."""
    if module.running_mean is None:
        return _by_channel(F.instance_norm(call.input, eps=module.eps), call.delta)
    normalised = F.batch_norm(
        call.input, module.running_mean, module.running_var, training=False, eps=module.eps
    )
    return _by_channel(normalised, call.delta)


def _by_feature(module: Any, normalised: Tensor, delta: Tensor) -> dict[str, SampleGradient]:
    shape = module.normalized_shape
    gain, shift = (v.reshape(len(v), -1, *shape) for v in (normalised * delta, delta))
    return {"weight": Sum(gain), "bias": Sum(shift)}


def _by_channel(normalised: Tensor, delta: Tensor) -> dict[str, SampleGradient]:
    """Channels are the second axis: (B, C, ...) -> (B, T, C)."""
    gain, shift = (v.reshape(*v.shape[:2], -1).mT for v in (normalised * delta, delta))
    return {"weight": Sum(gain), "bias": Sum(shift)}
