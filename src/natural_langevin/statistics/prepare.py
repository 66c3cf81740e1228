"""Preparing a private copy of a model: a deterministic, vectorisable forward pass, or a refusal.

What cannot be sampled is refused here with the reason and the remedy, before anything is computed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from natural_langevin.statistics.rules import restore_layers, rewrite_layers

log = logging.getLogger("natural_langevin")


def plain_copy(model: nn.Module) -> nn.Module:
    """A private copy, without the wrappers of ``torch.compile``: the step is compiled as a whole.

    Parameters keep the names they have in the model that was compiled. What a forward pass has left
    in attributes is copied without the graph that it belongs to, which cannot be."""
    refuse_model(model)
    _refuse_computed_weights(model)
    left = [v for module in model.modules() for v in vars(module).values()]
    computed = {id(v): v.detach().clone() for v in left if isinstance(v, Tensor) and not v.is_leaf}
    model = copy.deepcopy(_original(model), computed)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if _original(child) is not child:
                setattr(parent, name, _original(child))
    return model


def _refuse_computed_weights(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for weight, value in vars(module).items():
            sources = {f"{weight}_orig", f"{weight}_g"}  # of pruning and norms of the older kind
            if isinstance(value, Tensor) and not sources.isdisjoint(module._parameters):
                raise ValueError(
                    f"{weight!r} of layer {name!r} ({type(module).__name__}) is computed by a hook "
                    "before every call, which cannot be vectorised over chains: after pruning call "
                    "torch.nn.utils.prune.remove, and take weight_norm and spectral_norm from "
                    "torch.nn.utils.parametrizations"
                )


def _original(module: nn.Module) -> nn.Module:
    """What a compiled wrapper wraps. By name: importing the wrapper's class takes seconds."""
    wrapped = module._modules.get("_orig_mod")
    if type(module).__name__ == "OptimizedModule" and wrapped is not None:
        return wrapped
    return module


def refuse_model(model: nn.Module) -> None:
    """What cannot even be copied or called as a function of its parameters."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"{type(model).__name__} is compiled by torch.jit, which hides its parameters: give "
            "the nn.Module it was made from"
        )
    if isinstance(model, nn.DataParallel):
        raise TypeError(
            "the model is wrapped in DataParallel, which no chain can be run through: give "
            "model.module, the network in it"
        )
    for name, p in (*model.named_parameters(), *model.named_buffers()):
        if p.is_meta:
            raise ValueError(
                f"{name!r} is on the meta device, where tensors have a shape and no values: load "
                'its weights first, or allocate them with model.to_empty(device="cpu") and '
                "initialise them"
            )
        if is_lazy(p):
            raise ValueError(
                f"parameter {name!r} of a lazy module has no shape yet: call the model once on a "
                "batch of inputs before giving it to the sampler"
            )
        if p.is_quantized:
            raise TypeError(_quantised(name))
        if p.requires_grad and p.dtype.is_complex:
            raise TypeError(
                f"parameter {name!r} is complex ({p.dtype}): its noise and its metric are not "
                "defined here. Store the real and the imaginary part as two real parameters, and "
                "combine them with torch.complex(...) in the forward pass"
            )
    for name, module in model.named_modules():
        if ".quantized." in f"{type(module).__module__}.":
            raise TypeError(_quantised(name))


def _quantised(name: str) -> str:
    return (
        f"{name!r} is quantised: integers have no gradient and no Gaussian noise. Sample the "
        "floating-point model, and quantise the networks of the posterior afterwards"
    )


def check_hooks(model: nn.Module) -> None:
    """Refuses backward hooks of a user's layers and mentions those of parameters: gradients are
    torch.func's, which calls none of them, and what they return is the gradient of no density."""
    layers = [n for n, m in model.named_modules() if m._backward_hooks or m._backward_pre_hooks]
    if layers:
        raise ValueError(
            f"layers {layers[:4]} have backward hooks, which a run cannot call, and gradients "
            "that they change belong to no posterior. Remove them (handle.remove()), or sample "
            "in your own training loop with natural_langevin.optim.NaturalLangevin, where they "
            "work; forward hooks may stay"
        )
    names = [name for name, p in model.named_parameters() if p._backward_hooks]
    if names:
        log.warning(
            "parameters %s have gradient hooks, which a run does not call: weights that they hold "
            "are sampled like all others. Freeze a tensor with requires_grad_(False), and apply a "
            "mask in the forward pass (torch.nn.utils.parametrize)",
            names[:4],
        )


def dropout_rates(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """The layers that have a dropout rate, by name, and the attribute that holds it."""
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd):
            yield name, module, "p"
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            yield name, module, "dropout"


def prepare_model(model: nn.Module, level: int = logging.INFO) -> None:
    """Makes a private copy's forward pass deterministic, or refuses what cannot be; ``level``: at
    which that is logged."""
    refuse_layers(model)
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            module.eval()
            log.log(level, "dropout layer %r is switched off: sampling replaces it", name)
        if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
            if module.training:
                log.log(level, "dropout in layer %r is switched off: sampling replaces it", name)
            module.dropout = 0.0
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # no fused fast path, which calls none of its layers
    rewrite_layers(model)


def refuse_layers(model: nn.Module) -> None:
    """Refuses layers, as they are now, with which the outputs have no likelihood."""
    for name, module in model.named_modules():
        _refuse_layer(f"layer {name!r} ({type(module).__name__})", module)


def _refuse_layer(what: str, module: nn.Module) -> None:
    if isinstance(module, _BatchNorm):
        if module.training:
            raise ValueError(
                f"{what} is in training mode: its output for one sample depends on the others, so "
                "the likelihood has no per-sample form. Call model.eval() first, or use GroupNorm "
                "or LayerNorm"
            )
        if module.running_mean is None:
            raise ValueError(
                f"{what} has no running statistics, so its output for one sample depends on the "
                "others even in eval mode. Use track_running_stats=True, GroupNorm or LayerNorm"
            )
    if isinstance(module, _InstanceNorm) and module.training and module.running_mean is not None:
        raise ValueError(
            f"{what} updates its running statistics in training mode. Call model.eval() first, or "
            "use track_running_stats=False"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.weight.requires_grad:
        if module.sparse:
            raise ValueError(
                f"{what} uses sparse gradients, but noise moves every row at every step. Use "
                "sparse=False, or freeze the table with requires_grad_(False)"
            )
        if module.max_norm is not None or module.scale_grad_by_freq:
            raise ValueError(
                f"{what} changes its own table or its gradient (max_norm, scale_grad_by_freq), so "
                "what it follows is not the gradient of a likelihood. Leave these options off; a "
                "prior of small variance keeps rows short"
            )


def with_parameters(model: nn.Module, params: Mapping[str, Tensor]) -> nn.Module:
    """A copy to hand out, as it was before ``prepare_model``, with these values."""
    model = copy.deepcopy(model)
    restore_layers(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in params:
                parameter.copy_(params[name])
    return model
