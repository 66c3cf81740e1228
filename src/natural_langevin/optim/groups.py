"""Parameter groups: which parameters are sampled, each group with its own lr and temperature.

A group is what ``torch.optim`` takes, ``{"params": [...], "lr": 1e-3}``. Here ``params`` may also
be a pattern of names ("*.bias"), or several, and a group may bring its own ``prior``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn


class Names:
    """The trainable parameters of a model, by name, in the model's own order."""

    def __init__(self, model: nn.Module) -> None:
        self.params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._names = {id(p): name for name, p in self.params.items()}

    def of(self, parameter: Tensor) -> str:
        if id(parameter) not in self._names:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is not a trainable parameter of "
                "the model: set requires_grad_(True) before the optimizer is made, and take the "
                "parameters from model.parameters()"
            )
        return self._names[id(parameter)]

    def chosen(self, params: Any) -> list[nn.Parameter]:
        """A tensor, a pattern of names, or several of these."""
        if isinstance(params, Tensor | str):
            params = [params]
        found: dict[str, nn.Parameter] = {}
        for one in params:
            for name in self._matching(one) if isinstance(one, str) else [self.of(one)]:
                found[name] = self.params[name]
        return list(found.values())

    def _matching(self, pattern: str) -> list[str]:
        names = [name for name in self.params if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(
                f"pattern {pattern!r} matches no trainable parameter; the names are "
                f"{list(self.params)}"
            )
        return names


def as_groups(params: Any, names: Names) -> list[dict[str, Any]]:
    """What the user gave as ``params=``: None, tensors, patterns, or dicts of these."""
    if params is None:
        return [{"params": list(names.params.values())}]
    if isinstance(params, Tensor | str | Mapping):
        params = [params]
    given = list(params) if isinstance(params, Iterable) else [params]
    if not given:
        raise ValueError("params is empty: leave it out to sample all trainable parameters")
    if not all(isinstance(one, Mapping) for one in given):
        return [{"params": names.chosen(given)}]
    groups: list[dict[str, Any]] = []
    taken: set[int] = set()
    for one in given:  # by pattern, the first match wins, as for priors
        chosen = [p for p in names.chosen(one["params"]) if id(p) not in taken]
        if not chosen:
            raise ValueError(f"earlier groups have taken all parameters of {one['params']!r}")
        taken |= {id(p) for p in chosen}
        groups.append({**one, "params": chosen})
    return groups
