"""Given weights: a network, a state dict, or one of either for every chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin._internal.chains import Params

Weights = nn.Module | Mapping[str, Tensor]


def weights_of(given: Weights | Sequence[Weights]) -> Params:
    """Copies of the given weights by name: (1, *shape) of one network, (chain, *shape) of a list.
    Of a module its trainable parameters, of a mapping all that it holds."""
    several = list(given) if isinstance(given, Sequence) else [given]
    if not several or isinstance(given, str):
        raise ValueError(f"expected a network, a state dict, or a list of them, got {given!r}")
    found = [_named(one) for one in several]
    for place, one in enumerate(found[1:], 1):
        first = found[0]
        if one.keys() != first.keys() or any(one[k].shape != v.shape for k, v in first.items()):
            raise ValueError(
                f"the weights of chains 0 and {place} have different names or shapes: "
                f"{_shapes(first)} and {_shapes(one)}"
            )
    return {k: torch.stack([one[k].detach() for one in found]) for k in found[0]}


def _named(given: Any) -> Mapping[str, Tensor]:
    if isinstance(given, nn.Module):
        return {k: p for k, p in given.named_parameters() if p.requires_grad}
    if isinstance(given, Mapping) and all(isinstance(v, Tensor) for v in given.values()):
        return given
    raise TypeError(
        "weights are given as a network, or as a mapping from parameter names to tensors such as "
        f"model.state_dict(), got {type(given).__name__}"
    )


def _shapes(named: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in list(named.items())[:4]}
