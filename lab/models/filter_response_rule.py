"""The gradients of one sample in a filter response norm, for the metrics that ask for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lab.models import residual
from lab.models.residual import by_channel
from natural_langevin.statistics.rules import RULES
from natural_langevin.statistics.rules.base import Call, Rule, SampleGradient, Sum, own_units
from natural_langevin.statistics.rules.rewritten import CallRecorder, RewrittenLayer, rewrites


@rewrites(residual.FilterResponseNorm)
class FilterResponseNorm(RewrittenLayer, residual.FilterResponseNorm):
    """Which pixels are below the threshold depends on the parameters, of which a rule knows
    nothing: both arguments of the maximum are on tape."""

    def forward(self, x: Tensor) -> Tensor:
        """As in the original, with both arguments recorded."""
        tap = CallRecorder(self)
        if tap.tape is None:
            return super().forward(x)
        y = tap.add(x, self.affine(x))
        threshold = tap.add(None, by_channel(self.threshold, x).expand_as(y))
        tap.close()
        return torch.clamp(y, min=threshold)


def filter_response_gradients(module: Any, call: Call) -> dict[str, SampleGradient]:
    """Gradients of the affine map, and of the threshold at every pixel."""
    x, (delta, below) = call.input, call.deltas
    scale = module.scale(x)
    normalised = x * scale.reshape(scale.shape + (1,) * (x.ndim - 2))
    # Channels are the second axis: (B, C, ...) -> (B, T, C).
    gain, shift, threshold = (
        Sum(v.reshape(*v.shape[:2], -1).mT) for v in (normalised * delta, delta, below)
    )
    return {"weight": gain, "bias": shift, "threshold": threshold}


RULES[FilterResponseNorm] = Rule(filter_response_gradients, own_units)
