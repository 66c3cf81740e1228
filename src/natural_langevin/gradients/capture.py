"""Capture: a forward pass that records what the rules need, for one chain.

Forward hooks on a private copy of the network record every ruled layer's input a and add a zero
epsilon to its output; the vector-Jacobian product with respect to epsilon is the per-sample output
gradient delta. This is the mechanism that survives eager execution, ``torch.compile``, ``vmap``
over chains, both together, a layer called twice, and in-place activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from natural_langevin.gradients.rules import RULES, Call, Rule

CallKey = tuple[str, int]  # (module name, how many calls of it came before)


class Network:
    """A model as a pure function of its trainable parameters, with its layers' calls on tape."""

    def __init__(self, model: nn.Module) -> None:
        """``model`` is a private copy: hooks stay on it for good."""
        self.model = model
        self.rules: dict[str, Rule] = {}
        self._hooked: set[str] = set()
        self._tape: list[tuple[CallKey, Tensor]] = []
        self._epsilons: dict[CallKey, Tensor] | None = None
        self._shapes: dict[CallKey, tuple[torch.Size, torch.dtype]] | None = None

    def trainable(self) -> dict[str, Tensor]:
        """Parameters with ``requires_grad``, detached, by name (a tied one once)."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def watched(self) -> bool:
        """Whether any layer's calls are recorded."""
        return bool(self._hooked)

    def watch(self, names: Iterable[str]) -> None:
        """Records the calls of these layers. Idempotent."""
        for name in names:
            if name not in self._hooked:
                self._hooked.add(name)
                module = self.model.get_submodule(name)
                module.register_forward_hook(self._hook(name), with_kwargs=True)

    def install_hooks(self) -> None:
        """Finds a rule for every layer with trainable parameters, and watches those layers."""
        missing = []
        for name, module in self.model.named_modules():
            own = [k for k, p in module.named_parameters(recurse=False) if p.requires_grad]
            if not own:
                continue
            rule = RULES.get(type(module))
            if rule is None:
                missing.append(f"{name or 'the model itself'} ({type(module).__name__}: {own})")
                continue
            self.rules[name] = rule
        self.watch(self.rules)
        if missing:
            known = ", ".join(sorted(t.__name__ for t in RULES))
            raise TypeError(
                f"no Fisher rule for {'; '.join(missing)}. Layers with a rule: {known}. Use "
                "preconditioners.RMSProp() or Euclidean(), freeze these parameters with "
                "requires_grad_(False), or add a rule to natural_langevin.gradients.rules.RULES"
            )

    def _hook(self, name: str) -> Any:
        def hook(
            module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor
        ) -> Tensor | None:
            key = (name, sum(1 for (other, _), _ in self._tape if other == name))
            if self._shapes is not None:
                self._shapes[key] = (output.shape, output.dtype)
            if self._epsilons is None and self._shapes is None:
                return None
            a = inputs[0] if inputs else next(iter(named.values()))  # layer(x) or layer(input=x)
            self._tape.append((key, a))
            return output if self._epsilons is None else output + self._epsilons[key]

        return hook

    def call(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """The outputs, nothing recorded."""
        return functional_call(self.model, params, (x,), tie_weights=True)

    def call_shapes(
        self, params: dict[str, Tensor], x: Tensor
    ) -> dict[CallKey, tuple[torch.Size, torch.dtype]]:
        """Output shape and dtype of every recorded call for this input (one forward pass)."""
        self._shapes, self._tape = {}, []
        try:
            with torch.no_grad():
                self.call(params, x)
            return self._shapes
        finally:
            self._shapes, self._tape = None, []

    def recorded_call(
        self, params: dict[str, Tensor], epsilons: dict[CallKey, Tensor], x: Tensor
    ) -> tuple[Tensor, dict[CallKey, Tensor]]:
        """Outputs, and the input of every recorded call. The tape is emptied in any case: tensors
        left on it would outlive the transformation (vmap, vjp) they belong to."""
        self._epsilons, self._tape = epsilons, []
        try:
            outputs = self.call(params, x)
            return outputs, dict(self._tape)
        finally:
            self._epsilons, self._tape = None, []

    def calls_by_layer(
        self, inputs: dict[CallKey, Tensor], deltas: dict[CallKey, Tensor]
    ) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = defaultdict(list)
        for key, a in inputs.items():
            calls[key[0]].append(Call(a, deltas[key]))
        return calls

    def units(self) -> dict[str, tuple[str, ...]]:
        """For every trainable bias, the full names of its units' trainable weights.

        A frozen bias is no direction of the posterior, so its units have no bias row."""
        trainable = self.trainable()
        units: dict[str, tuple[str, ...]] = {}
        for name, rule in self.rules.items():
            prefix = f"{name}." if name else ""
            for bias, weights in rule.units(self.model.get_submodule(name)).items():
                full = tuple(prefix + w for w in weights if prefix + w in trainable)
                if prefix + bias in trainable and full:
                    units[prefix + bias] = full
        return units


def prepare_model(model: nn.Module, log: Any) -> None:
    """Makes a private copy's forward pass deterministic, or refuses what cannot be."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ValueError(
                f"layer {name!r} ({type(module).__name__}) is in training mode: its output for one "
                "sample depends on the others, so the likelihood has no per-sample form. Call "
                "model.eval() first, or use GroupNorm or LayerNorm"
            )
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            module.eval()
            log.info("dropout layer %r is switched off: sampling replaces it", name)
