"""A trained network as the start: which of its weights are sampled, and its last layer alone.

Where only the last layer is sampled, everything before it is a fixed function of the inputs: it is
computed once, and the run sees its features. The draws are those of the whole network's run.

``sampler`` is a ``Langevin``, whose own module imports this one.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin.data.signature import Signature
from natural_langevin.sampling import recipe
from natural_langevin.sampling.preparation import ORDERED, in_tensors

log = logging.getLogger("natural_langevin")

#: Rows that go through the network at once.
ROWS = 1000


def last_layer(model: nn.Module) -> str:
    """The name of the last layer with parameters of its own, in the order of the modules."""
    names = [name for name, m in model.named_modules() if [*m.parameters(recurse=False)]]
    if not names:
        raise ValueError("the model has no parameters: there is nothing to sample")
    return names[-1]


def chosen(model: nn.Module, parameters: str | Iterable[str]) -> nn.Module:
    """A copy in which those parameters alone are trainable: "last", "all", or name patterns."""
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    if patterns == ["last"]:
        name = last_layer(model)
        patterns = [f"{name}.*" if name else "*"]
    elif patterns == ["all"]:
        patterns = ["*"]
    model = copy.deepcopy(model)
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f'parameters must be "last", "all" or patterns of parameter names, got '
                f"{pattern!r}, which matches none of {names}"
            )
    for name, p in model.named_parameters():
        p.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
    return model


def size(params: Mapping[str, Tensor]) -> float:
    """s of the prior N(0, 2 s / fan_in) whose variance is that of these weights (chain, out, ...):
    the mean of theta^2 fan_in / 2, biases and gains left out."""
    weights = [p[0].double() for p in params.values() if p.ndim > 2]
    terms = [(w.square() * w[0].numel() / 2).flatten() for w in weights]
    return float(torch.cat(terms).mean().clamp_min(1e-6)) if terms else 1.0


class Head(nn.Module):
    """The last layer alone, its parameters under the names that they have in the network."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        place: nn.Module = self
        *above, own = name.split(".")
        for part in above:
            place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.add_module(own, copy.deepcopy(model.get_submodule(name)))
        self._name = name

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs from the features before its last layer."""
        found: Tensor = self.get_submodule(self._name)(x)
        return found


def split_off(model: nn.Module, signature: Signature, x: Tensor) -> tuple[Head, Tensor] | None:
    """The last layer, and what goes into it for the inputs ``x``; None where more than that layer
    is sampled, or it is not the end of the network."""
    name = last_layer(model)
    sampled = [n for n, p in model.named_parameters() if p.requires_grad]
    if not name or not all(n.startswith(f"{name}.") for n in sampled):
        return None
    head = Head(model, name)
    try:
        few, outputs = _features(model, name, signature, x[:4])
        with torch.no_grad():
            torch.testing.assert_close(head(few), outputs)
        return head, torch.cat([_features(model, name, signature, p)[0] for p in x.split(ROWS)])
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        log.info("the last layer is not sampled apart: %s", str(error).strip().split("\n")[0])
        return None


def _features(
    model: nn.Module, name: str, signature: Signature, x: Tensor
) -> tuple[Tensor, Tensor]:
    """What goes into the layer, in its only call, and the network's outputs."""
    seen: list[Tensor] = []
    layer = model.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda module, args: seen.append(*args))
    try:
        with torch.no_grad():
            outputs = signature.call(lambda args, kwargs: model(*args, **kwargs), x.clone())
    finally:
        handle.remove()
    (features,) = seen
    if len(features) != len(x):
        raise ValueError(f"layer {name!r} sees {len(features)} rows of {len(x)} samples")
    return features, outputs


def set_scale(sampler: Any) -> None:
    """Where some weights are fixed and nobody says the prior: its variance is that of the others,
    as they were trained."""
    if not sampler._scale_open or all(p.requires_grad for p in sampler.model.parameters()):
        return
    prior = recipe.prior(size(sampler.init().params))
    sampler._options["prior"], sampler._scale_open = prior, False
    sampler._set_prior(prior)
    log.info(
        "the prior's variance is that of the trained weights: rows that the fixed weights "
        "were trained on cannot choose it. Give held_out=(x, y), rows they have not seen"
    )


def head_alone(sampler: Any, data: Any) -> tuple[Any, Any] | None:
    """The last layer's own sampler, and its data, where nothing else is sampled."""
    if sampler._options is None or isinstance(data, ORDERED):
        return None
    x, y = in_tensors(sampler, data)
    found = split_off(sampler.model, sampler.signature, x.to(sampler.device))
    if found is None:
        return None
    inner = type(sampler)(found[0], sampler.likelihood, **sampler._options)
    inner._owner = sampler
    if sampler.held_out is not None:
        x_out, y_out = sampler.held_out
        again = split_off(sampler.model, sampler.signature, x_out.to(sampler.device))
        assert again is not None
        inner.held_out = again[1], y_out
    return inner, (found[1], y)


def adopt(sampler: Any, inner: Any) -> None:
    """Takes over what the last layer's own sampler has chosen in its run."""
    sampler._settled, sampler._prior = inner._settled, inner._prior
    sampler.dynamics = inner.dynamics
    sampler._dynamics = dataclasses.replace(
        sampler._dynamics, prior=inner._dynamics.prior, integrator=inner.dynamics
    )
