"""Preparing a private copy of a model: a deterministic forward pass, or a refusal with a remedy."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from natural_langevin.gradients.rules import rewrite_layers


def prepare_model(model: nn.Module, log: Any) -> None:
    """Makes a private copy's forward pass deterministic, or refuses what cannot be."""
    rewrite_layers(model)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) is in training mode: its output for one "
                "sample depends on the others, so the likelihood has no per-sample form. Call "
                "model.eval() first, or use GroupNorm or LayerNorm"
            )
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            module.eval()
            log.info("dropout layer %r is switched off: sampling replaces it", name)
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
            module.dropout = 0.0
            log.info("dropout inside layer %r is switched off: sampling replaces it", name)
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # no fused fast path, which calls none of its layers
