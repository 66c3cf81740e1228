"""Which parameter has which prior: name patterns, and values per chain."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from natural_langevin.priors.base import Prior

PriorLike = Prior | Mapping[str, Prior]


def resolve(
    prior: PriorLike,
    parameters: Iterable[str] | Mapping[str, Tensor],
    chains: int,
    *,
    device: torch.device | str | None = None,
) -> dict[str, Prior]:
    """The prior of every parameter name. Patterns are fnmatch patterns; the first match wins.

    ``parameters``: names, or a mapping from names to tensors, for priors that depend on a tensor's
    shape (``FanIn``, ``Correlated``, means of every weight). Tensors of a prior move to ``device``
    here, once (None: to their parameter's); means of every weight become (1, *shape) or
    (chain, *shape).

    >>> from natural_langevin.priors import Flat, Gaussian
    >>> rules = {"*.bias": Gaussian(1.0), "*": Flat()}
    >>> resolve(rules, ["0.weight", "0.bias"], chains=1)
    {'0.weight': Flat(), '0.bias': Gaussian(variance=1.0, mean=0.0)}
    """
    names = list(parameters)
    patterns = dict(prior) if isinstance(prior, Mapping) else {"*": prior}
    for pattern, one in patterns.items():
        if not isinstance(one, Prior):
            raise TypeError(
                f"prior for {pattern!r} must be a Prior, got {one!r}: "
                "give priors.Gaussian(variance=0.1), for example"
            )
        _check_chains(one, chains)
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"prior pattern {pattern!r} matches no parameter; the names are {names}"
            )
    resolved = {}
    for name in names:
        match = next((p for pattern, p in patterns.items() if fnmatchcase(name, pattern)), None)
        if match is None:
            raise ValueError(
                f"no prior pattern matches parameter {name!r} (patterns: {list(patterns)}); "
                'add a last pattern "*"'
            )
        known = parameters[name] if isinstance(parameters, Mapping) else None
        if known is not None and device is not None and known.device != torch.device(device):
            known = torch.empty_like(known, device=device)  # its shape and place are what counts
        moved = _moved(match, device if known is None else known.device)
        resolved[name] = _with_placed_mean(name, moved.for_tensor(known), known, chains)
    return resolved


def _moved(prior: Prior, device: torch.device | str | None) -> Prior:
    """The prior with its values per chain and per weight on a device; None: as they are."""
    values = prior.chain_values().items()
    moved = {k: v.to(device) for k, v in values if isinstance(v, Tensor)}
    return dataclasses.replace(prior, **moved) if moved else prior  # type: ignore[type-var]


def chainwise(prior: Prior) -> dict[str, Tensor]:
    """The settings of a resolved prior that differ by chain: (chain,) or (chain, *shape) each."""
    values = prior.chain_values().items()
    return {k: v for k, v in values if isinstance(v, Tensor) and v.ndim and not _is_shared(v)}


def of_chains(prior: Mapping[str, Prior], chains: Tensor) -> dict[str, Prior]:
    """A resolved prior with the values of these chains only."""

    def pick(one: Prior) -> Prior:
        chosen = {k: v[chains.to(v.device)] for k, v in chainwise(one).items()}
        return dataclasses.replace(one, **chosen) if chosen else one  # type: ignore[type-var]

    return {name: pick(one) for name, one in prior.items()}


def _is_shared(value: Tensor) -> bool:
    """Whether values of every weight are those of all chains: (1, *shape)."""
    return value.ndim > 1 and len(value) == 1


def _check_chains(prior: Prior, chains: int) -> None:
    for name, value in prior.chain_values().items():
        if name == "mean" or not isinstance(value, Tensor) or not value.ndim:
            continue  # a mean may also be of every weight: see ``_with_placed_mean``
        if value.shape[0] != chains:
            raise ValueError(
                f"prior {name} has {value.shape[0]} values for {chains} chains: "
                "give a number or one value per chain"
            )


def _with_placed_mean(name: str, prior: Prior, parameter: Tensor | None, chains: int) -> Prior:
    """The prior with its mean as a number, (chain,), (1, *shape) or (chain, *shape)."""
    mean = prior.chain_values().get("mean")
    if not isinstance(mean, Tensor) or not mean.ndim:
        return prior
    shape = None if parameter is None else tuple(parameter.shape)
    of_chains, of_weights = mean.shape == (chains,), mean.shape == shape
    if of_chains and shape is not None and math.prod(shape) == chains > 1:
        ones = (1,) * len(shape)
        raise ValueError(
            f"mean has {chains} values for {chains} chains and for the {chains} weights of "
            f"{name!r}: give mean.reshape{(1, *shape)} if they belong to the weights, "
            f"mean.reshape{(-1, *ones)}.expand{(chains, *shape)} if they belong to the chains"
        )
    if of_chains and not of_weights:
        return prior
    if of_weights:
        mean = mean[None]
    if shape is not None and mean.ndim == len(shape) + 2 and len(mean) == 1:
        mean = mean[0]  # ``around`` of a state dict whose tensors have a chain axis
    fits = mean.ndim > 1 and len(mean) in (1, chains)
    if not fits or (shape is not None and mean.shape[1:] != shape):
        of = "a parameter" if shape is None else f"{name!r} of shape {shape}"
        raise ValueError(
            f"a prior's mean of shape {tuple(mean.shape)} does not fit {of} with {chains} chains: "
            "give a number, one value per chain, or a tensor of the parameter's shape, with a "
            "chain axis or without; priors.around(model) has one for every parameter"
        )
    if parameter is not None:
        mean = mean.to(parameter.dtype)
    return dataclasses.replace(prior, mean=mean)  # type: ignore[type-var]
