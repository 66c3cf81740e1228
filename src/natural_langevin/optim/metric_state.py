"""The metric as an optimizer keeps it: tensors by parameter, instead of one tree.

A preconditioner's metric is a tree of tensors (chain, *shape): ``metric["second"][name]``,
``metric["cross"][bias][weight]``, ``metric["fisher"][""]``. ``torch.optim`` keeps a dict of tensors
per parameter. ``MetricLayout`` maps one to the other: every tensor goes to the parameter that its
path ends in (a weight belongs to one bias at most), or to the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from natural_langevin.preconditioners import Metric, Preconditioner
from natural_langevin.types import Params

Path = tuple[str, ...]


class MetricLayout:
    """Where the tensors of a metric are kept, and which parameters belong together."""

    def __init__(
        self,
        preconditioner: Preconditioner,
        shapes: Mapping[str, torch.Size],
        units: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._preconditioner, self._units, self._first = preconditioner, units, next(iter(shapes))
        # On the meta device: the shape of the tree, and the refusal of a network too large for it.
        params = {k: torch.empty(1, *shape, device="meta") for k, shape in shapes.items()}
        tree = preconditioner.init(params, dict(units))
        self._kinds, self._paths = tuple(tree), list(_paths(tree))
        self.blocks = self._connected(list(shapes))

    def _connected(self, names: list[str]) -> list[tuple[str, ...]]:
        """Parameters that the metric couples are updated together; others one by one."""
        couples = self._preconditioner.couples
        if couples == "all":
            return [tuple(names)]
        units = self._units if couples == "units" else {}
        inner = {w for ws in units.values() for w in ws}
        return [(k, *units.get(k, ())) for k in names if k not in inner]

    def init(self, block: Params) -> Metric:
        """The metric of a block before the first update."""
        units = {b: ws for b, ws in self._units.items() if b in block}
        return self._preconditioner.init(block, units)

    def read(self, state: Mapping[str, dict[str, Any]], names: Iterable[str]) -> Metric:
        """The metric of a block, from ``state[name]``."""
        metric: Metric = {kind: {} for kind in self._kinds}  # a block may have none of a kind
        for path, owner in self._of(names):
            tree = metric
            for step in path[:-1]:
                tree = tree.setdefault(step, {})
            tree[path[-1]] = state[owner][path[0]][None]
        return metric

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
