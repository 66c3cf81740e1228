"""Dropout: the likelihood of a parameter must be one number, so a loop must switch it off."""

from __future__ import annotations

from torch import nn


def refuse_dropout(model: nn.Module) -> None:
    """An error where a layer would drop something out now."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rate = module.p
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            rate = module.dropout
        else:
            continue
        if module.training and rate > 0:
            raise ValueError(
                f"dropout in layer {name!r} is active (p={rate}), but the likelihood needs a "
                "deterministic network, and sampling replaces dropout. Switch it off with "
                "natural_langevin.optim.without_dropout(model)"
            )


def without_dropout(model: nn.Module) -> nn.Module:
    """Sets the rate of every dropout layer to 0, in place, and returns the model."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    return model
