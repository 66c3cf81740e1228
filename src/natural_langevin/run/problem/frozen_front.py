"""Frozen first layers: computed once for every row; the run uses their features.

If only the last layers are sampled, everything before the first sampled layer is a fixed function
of the inputs. The draws are those of the whole network, at the cost of the last layers.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from natural_langevin._internal.messages import first_line
from natural_langevin.data.signature import Signature
from natural_langevin.run.problem.problem import Problem
from natural_langevin.statistics import Network, plain_copy

log = logging.getLogger("natural_langevin")

#: Rows that go through the network at once, and numbers that features may be.
ROWS, MOST = 1000, 2**28
#: Rows on which the layers are held against the network, and sizes of the weights then added.
FEW, SCALES = 16, (0.1, 1.0, 10.0)


class Back(nn.Module):
    """Layers of a network one after the other, with parameters named as they are there."""

    def __init__(self, model: nn.Module, layers: list[str]) -> None:
        super().__init__()
        copied: dict[int, Any] = {}  # weights that layers share stay shared
        for name in layers:
            place: nn.Module = self
            *above, own = name.split(".")
            for part in above:
                if part not in dict(place.named_children()):
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.add_module(own, copy.deepcopy(model.get_submodule(name), copied))
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs from what goes into the first of the layers."""
        for name in self.layers:
            x = self.get_submodule(name)(x)
        return x


def sampled_layers(model: nn.Module) -> list[str]:
    """From the first module that is sampled to the end of the sequence it stands in; nothing where
    that is all of the network.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Flatten(0))
    >>> _ = net[0].requires_grad_(False)
    >>> sampled_layers(net)
    ['2', '3']
    """
    sampled = [name.split(".")[:-1] for name, p in model.named_parameters() if p.requires_grad]
    common: list[str] = []
    for parts in zip(*sampled, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    around = model.get_submodule(".".join(common))
    if isinstance(around, nn.Sequential):
        own = [any(p.requires_grad for p in layer.parameters()) for layer in around].index(True)
    elif common and isinstance(model.get_submodule(".".join(common[:-1])), nn.Sequential):
        *common, last = common
        around = model.get_submodule(".".join(common))
        own = list(around._modules).index(last)
    else:
        return [".".join(common)] if common else []
    if not common and own == 0:
        return []
    # Not named_children, which names a module once that stands in several places.
    return [".".join([*common, name]) for name in around._modules][own:]


def split_off(model: nn.Module, signature: Signature, x: Tensor) -> tuple[Back, Tensor] | None:
    """The layers that are sampled, and what goes into them for the inputs ``x``; None where they
    are not the end of the network, see other things too, or there is nothing before them."""
    layers = sampled_layers(model)
    if not layers or not len(x):
        return None
    try:
        back = Back(model, layers)
        few = _features(model, layers[0], signature, x[:FEW])
        if few.numel() // len(few) * len(x) > MOST:
            return None
        _compare(model, back, signature, x[:FEW], few)
        parts = [_features(model, layers[0], signature, part) for part in x.split(ROWS)]
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        log.info("the frozen part of the network is computed in every step: %s", first_line(error))
        return None
    return back, torch.cat(parts)


def _compare(
    model: nn.Module, back: Back, signature: Signature, x: Tensor, features: Tensor
) -> None:
    """Refuses layers from whose inputs the network's outputs do not follow: with the weights that
    they have, and with others, since what is done to their outputs may not show at the start."""
    sampled = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if {name for name, p in back.named_parameters() if p.requires_grad} != set(sampled):
        raise ValueError("parameters of the layers have other names in the network")
    if not torch.equal(_features(model, back.layers[0], signature, x), features):
        raise ValueError("the input of the layers is random")
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, *SCALES):
        params = {
            name: p + scale * torch.randn(p.shape, generator=generator).to(p)
            for name, p in sampled.items()
        }

        def whole(
            args: tuple[Any, ...], kwargs: dict[str, Any], params: dict[str, Tensor] = params
        ) -> Any:
            return functional_call(model, params, args, kwargs)

        with torch.no_grad():
            outputs = signature.call(whole, x.clone())
            found = functional_call(back, params, (features,))
        torch.testing.assert_close(found, outputs, equal_nan=True)


def _features(model: nn.Module, name: str, signature: Signature, x: Tensor) -> Tensor:
    """What goes into the layer, in its only call."""
    seen: list[Tensor] = []
    layer = model.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda module, args: seen.append(*args))
    try:
        with torch.no_grad():
            signature.call(lambda args, kwargs: model(*args, **kwargs), x.clone())
    finally:
        handle.remove()
    (features,) = seen
    if len(features) != len(x):
        raise ValueError(f"layer {name!r} sees {len(features)} rows of {len(x)} samples")
    return features


def without_front(problem: Problem) -> Problem:
    """The problem of the layers behind the fixed ones, on the features that these see; the same
    problem where there are no such layers."""
    fixed = not all(p.requires_grad for p in problem.template.parameters())
    if not fixed or not problem.in_memory or problem.network.autocast is not None:
        return problem
    x, y, _ = problem.rows()
    found = split_off(problem.template, problem.signature, x.to(problem.device))
    if found is None:
        return problem
    back, features = found
    held_out = None
    if problem.held_out is not None:
        x_out, y_out = problem.held_out
        again = split_off(problem.template, problem.signature, x_out.to(problem.device))
        if again is None:
            return problem
        held_out = again[1], y_out
    log.info("everything before layer %s is frozen, and computed once", back.layers[0])
    likelihood = problem.likelihood
    signature = Signature(back, discrete=likelihood.discrete, raw=likelihood.raw_outputs)
    return dataclasses.replace(
        problem, network=Network(plain_copy(back), signature=signature), template=back,
        signature=signature, data=(features, y), held_out=held_out, origin=problem,
    )  # fmt: skip
