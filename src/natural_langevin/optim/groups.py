"""Parameter groups: which parameters are sampled, each group with its own lr and temperature.

A group is what ``torch.optim`` takes, ``{"params": [...], "lr": 1e-3}``. Here ``params`` may also
be a pattern of names ("*.bias"), or several, and a group may bring its own ``prior``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin import schedules
from natural_langevin._internal.chains import Units
from natural_langevin.preconditioners import Preconditioner

log = logging.getLogger("natural_langevin")


class Names:
    """The trainable parameters of a model, by name, in the model's own order."""

    def __init__(self, model: nn.Module) -> None:
        self.params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._names = {id(p): name for name, p in self.params.items()}
        self._frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}

    def warn_of_thawed(self) -> None:
        """Says, once, that a parameter was frozen at first, has a gradient and is not sampled."""
        thawed = [name for name, p in self._frozen.items() if p.grad is not None]
        if thawed:
            log.warning(
                "parameter %r was frozen when the optimizer was made, so it is not sampled and "
                "stays as it is: make a new optimizer after requires_grad_(True)", thawed[0],
            )  # fmt: skip
            self._frozen = {}

    def of(self, parameter: Tensor) -> str:
        """The name of a parameter of the model."""
        if not isinstance(parameter, Tensor):
            raise TypeError(
                f"params must be parameters, patterns of names or groups, got {parameter!r}"
            )
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


#: What other optimizers take in a group, and who says the same here.
_IGNORED = {
    "weight_decay": "the prior pulls weights in: prior=priors.Gaussian(1 / (N weight_decay))",
    "momentum": "the dynamics have none",
    "dampening": "the dynamics have no momentum",
    "nesterov": "the dynamics have no momentum",
    "betas": "the preconditioner has its own rates: preconditioners.DiagonalFisher(decay=...)",
    "alpha": "the preconditioner has its own rates: preconditioners.RMSProp(decay=...)",
    "eps": "the preconditioner has its own: preconditioners.DiagonalFisher(damping=...)",
    "amsgrad": "choose a preconditioner",
    "maximize": "the loss is -ln p: give its negative",
}
_KNOWN = {"params", "lr", "temperature", "prior", "step", "learned", "param_names"}


def refuse_ignored(group: Mapping[str, Any]) -> None:
    """Refuses options that have no effect; entries made by schedulers are allowed."""
    for name, remedy in _IGNORED.items():
        if group.get(name) not in (None, 0, False):
            raise ValueError(f"{name}={group[name]!r} in a group has no effect here: {remedy}")
    unknown = [k for k in group if k not in _KNOWN and not k.endswith(("_lr", "_momentum"))]
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0]!r} in a group: it may have lr, temperature and prior"
        )


def check_number(name: str, value: Any) -> None:
    """A rate of a group, checked where it enters."""
    if callable(value):
        raise TypeError(f"{name} of a group must be a number, got {value!r}: use a lr_scheduler")
    schedules.tabulate(float(value), 0, 1, name=name, chains=1)


def common_settings(
    groups: list[dict[str, Any]], block: Mapping[str, nn.Parameter], preconditioner: Any
) -> tuple[float, float]:
    """lr and temperature of parameters that the metric couples."""
    group_of = {id(p): group for group in groups for p in group["params"]}
    own = [group_of[id(p)] for p in block.values()]
    found = {(float(group["lr"]), float(group["temperature"])) for group in own}
    if len(found) > 1:
        raise ValueError(
            f"{', '.join(map(repr, block))} are coupled by {preconditioner!r} but have different "
            f"(lr, temperature): {sorted(found)}. Put them into one group, or use DiagonalFisher()"
        )
    return found.pop()


def connected(
    preconditioner: Preconditioner, shapes: Mapping[str, torch.Size], units: Units
) -> list[tuple[str, ...]]:
    """Parameters that the metric couples, which must have the same rates; others one by one. An
    error where the metric does not fit a network of these shapes."""
    preconditioner.init(
        {k: torch.empty(1, *shape, device="meta") for k, shape in shapes.items()}, units
    )
    if preconditioner.couples == "all":
        return [tuple(shapes)]
    coupled = units if preconditioner.couples == "units" else {}
    inner = {w for ws in coupled.values() for w in ws}
    return [(k, *coupled.get(k, ())) for k in shapes if k not in inner]
