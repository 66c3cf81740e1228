"""The metric as an optimizer keeps it: tensors by parameter, instead of one tree.

A preconditioner's metric is a tree of tensors (chain, *shape): ``metric["second"][name]``,
``metric["cross"][bias][weight]``, ``metric["fisher"][""]``. ``torch.optim`` keeps a dict of tensors
per parameter. ``MetricLayout`` maps the one to the other: a tensor goes to the parameter that its
path ends in (a weight belongs to one bias at most), or to the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from natural_langevin.preconditioners import Metric, Preconditioner

Path = tuple[str, ...]


def refuse_large(
    preconditioner: Preconditioner,
    shapes: Mapping[str, torch.Size],
    units: Mapping[str, tuple[str, ...]],
) -> None:
    """An error where the metric does not fit a network of these shapes."""
    _tree(preconditioner, shapes, units)


def _tree(
    preconditioner: Preconditioner,
    shapes: Mapping[str, torch.Size],
    units: Mapping[str, tuple[str, ...]],
) -> Metric:
    """The metric of such parameters, on the meta device."""
    params = {k: torch.empty(1, *shape, device="meta") for k, shape in shapes.items()}
    return preconditioner.init(params, dict(units))


def connected(
    preconditioner: Preconditioner, names: list[str], units: Mapping[str, tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Parameters that the metric couples, which must have the same rates; others one by one."""
    if preconditioner.couples == "all":
        return [tuple(names)]
    coupled = units if preconditioner.couples == "units" else {}
    inner = {w for ws in coupled.values() for w in ws}
    return [(k, *coupled.get(k, ())) for k in names if k not in inner]


class MetricLayout:
    """Where the tensors of a metric are kept."""

    def __init__(
        self,
        preconditioner: Preconditioner,
        shapes: Mapping[str, torch.Size],
        units: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._first = next(iter(shapes))
        self._paths = list(_paths(_tree(preconditioner, shapes, units)))

    def write(
        self, state: Mapping[str, dict[str, Any]], names: Iterable[str], metric: Metric
    ) -> None:
        """Puts a metric's tensors into the state of the parameters that own them."""
        for path, owner in self._of(names):
            value: Any = metric
            for step in path:
                value = value[step]
            state[owner][path[0]] = value[0]

    def _of(self, names: Iterable[str]) -> list[tuple[Path, str]]:
        own = set(names)
        every = [(p, p[-1] if p[-1] in own or p[-1] else self._first) for p in self._paths]
        return [(path, owner) for path, owner in every if owner in own]


def _paths(tree: Any) -> Iterable[Path]:
    for key, value in tree.items():
        if isinstance(value, Tensor):
            yield (key,)
        else:
            yield from ((key, *rest) for rest in _paths(value))
