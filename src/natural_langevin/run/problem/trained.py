"""A trained network as the start: which weights are sampled, and the scale of their prior."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from natural_langevin._internal.given_weights import weights_of
from natural_langevin.priors import Prior, around, mean_squares

log = logging.getLogger("natural_langevin")


def last_layer(model: nn.Module) -> str:
    """The name of the last layer with parameters of its own, in the order of the modules."""
    names = [name for name, m in model.named_modules() if [*m.parameters(recurse=False)]]
    if not names:
        raise ValueError("the model has no parameters: there is nothing to sample")
    return names[-1]


#: Names of the weights that the peft package adds to a network, and of the layers it trains beside.
ADAPTERS = ("*lora_*", "*ia3_*", "*adapter_*", "*prompt_embeddings*", "*modules_to_save.*")


def chosen(model: nn.Module, parameters: str | Iterable[str]) -> nn.Module:
    """A copy in which those parameters alone are trainable: "last", "all", "adapters", or name
    patterns."""
    kinds = '"last", "all", "adapters" or patterns of parameter names'
    if not isinstance(parameters, Iterable):
        raise TypeError(f"parameters must be {kinds}, got {parameters!r}")
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    if patterns == ["last"]:
        name = last_layer(model)
        patterns = [f"{name}.*" if name else "*"]
    elif patterns == ["all"]:
        patterns = ["*"]
    model = copy.deepcopy(model)
    names = [name for name, _ in model.named_parameters()]
    if patterns == ["adapters"]:
        patterns = [p for p in ADAPTERS if any(fnmatchcase(name, p) for name in names)]
        if not patterns:
            raise ValueError(
                f'parameters="adapters": no name is one of an adapter of the peft package, '
                f"{', '.join(ADAPTERS)}; the names are {names[:8]}"
            )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            layer = any(name.startswith(f"{pattern}.") for name in names)
            raise ValueError(
                f"parameters must be {kinds}, got {pattern!r}, which matches none of {names}"
                + (f": {pattern + '.*'!r} is all of that layer" if layer else "")
            )
    for name, p in model.named_parameters():
        p.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
    fix_running_statistics(model)
    return model


def fix_running_statistics(model: nn.Module) -> None:
    """Puts layers with running statistics, BatchNorm above all, into evaluation mode, and says so:
    with the statistics of training they are affine, and their weights are like any others."""
    known = [
        (name, module)
        for name, module in model.named_modules()
        if module.training and getattr(module, "running_mean", None) is not None
    ]
    for _, module in known:
        module.eval()
    if known:
        log.info(
            "%d layers with running statistics (%s, ...) are in evaluation mode and keep the "
            "statistics of training", len(known), known[0][0],
        )  # fmt: skip


def size(params: Mapping[str, Tensor]) -> float:
    """s of the prior N(0, 2 s / fan_in) whose variance is that of these weights (chain, out, ...):
    the mean of theta^2 fan_in / 2, biases and gains left out."""
    weights = [p[0].double() for p in params.values() if p.ndim > 2]
    terms = [(w.square() * w[0].numel() / 2).flatten() for w in weights]
    return float(torch.cat(terms).mean().clamp_min(1e-6)) if terms else 1.0


def prior_scale(model: nn.Module) -> float | None:
    """Where some weights are fixed: s of the prior whose variance is that of the others, as they
    were trained. None where all are sampled."""
    if all(p.requires_grad for p in model.parameters()):
        return None
    found = size({k: p.detach()[None] for k, p in model.named_parameters() if p.requires_grad})
    log.info(
        "the prior variance is that of the trained weights: rows that the frozen weights were "
        "trained on cannot select another. To select it, give held_out=(x, y), rows they have "
        "not seen"
    )
    return found


def anchored(model: nn.Module) -> dict[str, Prior]:
    """N(w*, s^2) around every weight that is sampled, s^2 the mean square of its tensor's."""
    sizes = mean_squares(weights_of(model))
    return around(model, variance={k: float(s[0]) for k, s in sizes.items()})
