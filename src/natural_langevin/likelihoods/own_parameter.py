"""A likelihood's own parameter, sampled with the network: a noise level or a dispersion.

A likelihood that has a prior in place of a number names it in ``own_parameter``. The network then
has one more weight, u = ln value (``likelihood.log_sigma``), and its outputs one more column, u of
every sample:

    (B, ..., D)  ->  (B, ..., D + 1),    outputs[..., -1] = u.

Metric, dynamics, prior, draws and files treat u as any other weight, and the likelihood reads the
column. Networks returned to users do not have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin.likelihoods.base import Likelihood
from natural_langevin.priors import Prior, PriorLike
from natural_langevin.priors.constrained import PositivePrior

#: The name of the layer that appends the column.
LAYER = "likelihood"


class OwnParameter(nn.Module):
    """Appends u to every row of outputs; a network of one output per sample gives (B,) or (B, 1).

    >>> OwnParameter("sigma", torch.zeros(2, 3))(torch.ones(4)).tolist()[0]
    [1.0, 0.0]
    """

    def __init__(self, name: str, like: Tensor) -> None:
        super().__init__()
        self.register_parameter(f"log_{name}", nn.Parameter(like.new_zeros(1)))

    def forward(self, outputs: Tensor) -> Tensor:
        rows = outputs[:, None] if outputs.ndim == 1 else outputs
        (u,) = self.parameters(recurse=False)
        return torch.cat([rows, u.expand(*rows.shape[:-1], 1)], -1)


def weight_name(likelihood: Likelihood) -> str | None:
    """The name of u among a network's weights; None of a likelihood that samples nothing."""
    own = likelihood.own_parameter
    return None if own is None else f"{LAYER}.log_{own[0]}"


def attach(model: nn.Module, likelihood: Likelihood) -> None:
    """Gives ``model``, a private copy, the likelihood's own weight and column. Idempotent."""
    own = likelihood.own_parameter
    if own is None or isinstance(model._modules.get(LAYER), OwnParameter):
        return
    if hasattr(model, LAYER):
        raise ValueError(
            f"the model has an attribute {LAYER!r}, where {type(likelihood).__name__}({own[0]}="
            f"{own[1]!r}) keeps its {own[0]}: give it another name"
        )
    like = next(p for p in model.parameters() if p.is_floating_point())
    model.add_module(LAYER, OwnParameter(own[0], like.detach()))
    if not (isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward):
        model.register_forward_hook(_append)  # a Sequential calls its last layer itself


def detach(model: nn.Module) -> nn.Module:
    """The model as it was before ``attach``."""
    if isinstance(model._modules.get(LAYER), OwnParameter):
        del model._modules[LAYER]
        for key in [k for k, hook in model._forward_hooks.items() if hook is _append]:
            del model._forward_hooks[key]
    return model


def with_own(prior: PriorLike, likelihood: Likelihood) -> PriorLike:
    """The weights' prior, and that of the likelihood's own weight."""
    own, name = likelihood.own_parameter, weight_name(likelihood)
    if own is None or name is None:
        return prior
    return {name: own[1]} | (dict(prior) if isinstance(prior, Mapping) else {"*": prior})


def split(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The network's own outputs, and u, which broadcasts against them."""
    return outputs[..., :-1], outputs[..., -1:]


def check_positive(name: str, value: Any, word: str, *, remedy: str = "") -> None:
    """Refuses what is none of: a positive number, ``word``, a prior of a positive number that is
    the same for all chains."""
    if isinstance(value, str):
        good = value == word
    elif isinstance(value, PositivePrior):
        good = not any(isinstance(v, Tensor) and v.ndim for v in value.chain_values().values())
    elif isinstance(value, Tensor | Sequence) and len(torch.as_tensor(value).reshape(-1)) > 1:
        raise ValueError(
            f"{name} must be one number, got {value!r}: give every component of a target a size of "
            "its own in likelihoods.Scaled(likelihood, scale)"
        )
    else:
        good = not isinstance(value, Prior) and math.isfinite(value) and value > 0
    if not good:
        raise ValueError(
            f'{name} must be a positive number or "{word}", got {value!r}; or a prior of a '
            f"positive number that all chains share, such as priors.HalfNormal(1.0){remedy}"
        )


def _append(module: nn.Module, args: Any, output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model gives a {type(output).__name__}, and a likelihood whose noise is sampled "
            "adds a column to one tensor: wrap the model in a module that returns it"
        )
    found: Tensor = module.get_submodule(LAYER)(output)
    return found
