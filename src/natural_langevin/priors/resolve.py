"""Which parameter has which prior: name patterns, and values per chain."""

from __future__ import annotations

import dataclasses
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
    device: torch.device | str = "cpu",
) -> dict[str, Prior]:
    """The prior of every parameter name. Patterns are fnmatch patterns; the first match wins.

    ``parameters``: names, or a mapping from names to tensors, for priors that depend on a tensor's
    shape (``FanIn``, ``Correlated``). Per-chain values move to ``device`` here, once.

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
        on_device = {
            k: v.to(device) for k, v in one.chain_values().items() if isinstance(v, Tensor)
        }
        patterns[pattern] = dataclasses.replace(one, **on_device) if on_device else one  # type: ignore[type-var]
    resolved = {}
    for name in names:
        match = next((p for pattern, p in patterns.items() if fnmatchcase(name, pattern)), None)
        if match is None:
            raise ValueError(
                f"no prior pattern matches parameter {name!r} (patterns: {list(patterns)}); "
                'add a last pattern "*"'
            )
        known = parameters[name] if isinstance(parameters, Mapping) else None
        resolved[name] = match.for_tensor(known)
    return resolved


def of_chains(prior: Mapping[str, Prior], chains: Tensor) -> dict[str, Prior]:
    """A resolved prior with the values of these chains only."""

    def pick(one: Prior) -> Prior:
        values = {k: v for k, v in one.chain_values().items() if isinstance(v, Tensor) and v.ndim}
        chosen = {k: v[chains.to(v.device)] for k, v in values.items()}
        return dataclasses.replace(one, **chosen) if chosen else one  # type: ignore[type-var]

    return {name: pick(one) for name, one in prior.items()}


def _check_chains(prior: Prior, chains: int) -> None:
    for name, value in prior.chain_values().items():
        if isinstance(value, Tensor) and value.ndim and value.shape[0] != chains:
            raise ValueError(
                f"prior {name} has {value.shape[0]} values for {chains} chains: "
                "give a number or one value per chain"
            )
