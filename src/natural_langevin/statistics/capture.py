"""``Capture``: a model as a pure function of its parameters that records its layers' calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from natural_langevin._internal.chains import Params, Units
from natural_langevin.data.signature import Signature
from natural_langevin.statistics.rules import RULES, Rule, own_units
from natural_langevin.statistics.rules.rewritten import RewrittenLayer
from natural_langevin.statistics.tape import Tape, is_real
from natural_langevin.statistics.vectorised import vectorised


class ParameterSlots:
    """Where a network keeps its parameters: every (module, attribute) once, whatever its names.

    ``functional_call`` finds tied weights by itself, but where one submodule has two names it
    puts back the second time what it had put in the first, and the parameter is lost."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        first = {id(p): name for name, p in model.named_parameters()}
        self._first = {
            f"{path}.{attribute}".lstrip("."): first[id(p)]
            for path, module in model.named_modules()
            for attribute, p in module.named_parameters(recurse=False, remove_duplicate=False)
        }

    def call(self, params: Params, args: Any, kwargs: Any = None) -> Any:
        """The network with ``params``, by the first name of each, at every place."""
        filled = {place: params[name] for place, name in self._first.items() if name in params}
        return functional_call(self._model, filled, args, kwargs, tie_weights=False)


# Hooks are functions with the network as an argument: a closure could not be pickled, and on a copy
# of the network it would go on watching the old one.


def _watch(
    network: Network, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> Any:
    tape = network.tape
    return None if tape is None else tape.watch(name, (args, kwargs), output)


def _tape_of(network: Network, name: str) -> tuple[Tape | None, str]:
    return network.tape, name


class Network:
    """A private copy of a model: hooks stay on it for good."""

    def __init__(
        self,
        model: nn.Module,
        *,
        autocast: torch.dtype | None = None,
        signature: Signature | None = None,
    ) -> None:
        """With ``autocast`` the forward pass runs in that precision where torch.autocast does so;
        parameters, outputs and all gradients that are squared keep the model's own.
        ``signature``: how it is called, where that is not on one tensor, or gives none."""
        self.model, self.autocast = model, autocast
        self.signature = signature or Signature(model)
        self.rules: dict[str, Rule] = {}  # of the layers that have one
        self.owned: dict[str, dict[str, str]] = {}  # layer -> own name -> full name, trainable
        self.tape: Tape | None = None
        self.slots = ParameterSlots(model)

    def trainable(self) -> Params:
        """Parameters with ``requires_grad``, detached, by name (a tied one once)."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    def install_hooks(self) -> None:
        """Watches every layer that has its own trainable parameters. Idempotent."""
        if self.owned:
            return
        for name, module in self.model.named_modules():
            own = self._names(module, recurse=False)
            if not own:
                continue
            self.owned[name] = own
            # A forward that somebody replaced is not what the rule knows.
            if type(module) in RULES and "forward" not in vars(module):
                self.rules[name] = RULES[type(module)]
            if isinstance(module, RewrittenLayer):
                module.tape_of = partial(_tape_of, self, name)
                continue
            # First of all hooks: a user's own hook may change the output afterwards.
            module.register_forward_hook(
                partial(_watch, self, name), with_kwargs=True, prepend=True
            )

    def names_within(self, name: str) -> dict[str, str]:
        """All trainable parameters inside a layer: their names there, and their full names."""
        return self._names(self.model.get_submodule(name), recurse=True)

    def alone(self, name: str) -> bool:
        """Whether no other layer has any of this layer's parameters."""
        owners = [p for own in self.owned.values() for p in own.values()]
        return all(owners.count(p) == 1 for p in self.owned[name].values())

    def _names(self, module: nn.Module, *, recurse: bool) -> dict[str, str]:
        full = {id(p): name for name, p in self.model.named_parameters() if p.requires_grad}
        inside = module.named_parameters(recurse=recurse)
        return {name: full[id(p)] for name, p in inside if id(p) in full}

    def call(self, params: Params, x: Tensor, *, once: bool = False) -> Any:
        """The outputs, to be differentiated ``once`` at most; recorded where a tape is running."""
        if self.dtype is None:
            with vectorised(x, once=once):
                return self.signature.call(partial(self.slots.call, params), x)
        with vectorised(x, once=once), self.reduced(x):
            outputs = self.signature.call(partial(self.slots.call, params), x)
        return pytree.tree_map(lambda o: o.to(self.dtype) if is_real(o) else o, outputs)

    @property
    def dtype(self) -> torch.dtype | None:
        """The precision of parameters and squares, where the forward pass has another one."""
        return None if self.autocast is None else next(self.model.parameters()).dtype

    @property
    def loss_scale(self) -> float:
        """A power of two. Float16 has no numbers below 6e-8; output gradients of a sample are at
        most of order one and are summed, not averaged, so a modest factor is enough."""
        return 16.0 if self.autocast == torch.float16 else 1.0

    def reduced(self, x: Tensor) -> torch.autocast:
        """The autocast context of a forward pass."""
        # No cache of converted weights: it would outlive the transformation they belong to.
        return torch.autocast(x.device.type, dtype=self.autocast, cache_enabled=False)

    @contextmanager
    def taping(self, tape: Tape) -> Iterator[Tape]:
        """The tape is taken off in any case: tensors that the network held on to would outlive the
        transformation (vmap, vjp) they belong to."""
        self.tape = tape
        try:
            yield tape
        finally:
            self.tape = None

    def recorded_call(self, params: Params, tape: Tape, x: Tensor) -> Any:
        """Outputs, to be differentiated once. With nothing to record layers may take their quickest
        way."""
        self.tape = tape if tape.epsilons else None
        try:
            return self.call(params, x, once=True)
        finally:
            self.tape = None

    def units(self) -> Units:
        """For every trainable bias, the full names of its units' trainable weights; and for a
        weight whose rows are units without one, ``{weight: ()}``.

        A frozen bias is no direction of the posterior, so its units have no bias row. A weight
        that several layers share belongs to the first of their biases."""
        units: Units = {}
        rows: list[str] = []
        taken: set[str] = set()
        for name, own in self.owned.items():
            module = self.model.get_submodule(name)
            pairs = self.rules[name].units(module) if name in self.rules else own_units(module)
            for bias, weights in pairs.items():
                full = tuple(own[w] for w in weights if w in own and own[w] not in taken)
                if bias in own and full and own[bias] not in units:
                    units[own[bias]] = full
                    taken |= {own[bias], *full}
                elif name in self.rules:
                    rows += [own[w] for w in weights or (bias,) if w in own]
        alone = (w for w in rows if w not in taken and self.model.get_parameter(w).ndim > 1)
        return units | dict.fromkeys(alone, ())
