"""Layers rewritten in operations that vectorise, with their inner linear maps on tape.

``vmap`` over chains has no rule for torch's fused kernels (recurrent layers, bilinear maps, bags of
embeddings, the attention fast path), and a forward hook sees none of what happens inside them. A
private copy's layers change their class to one that computes the same from plain operations;
``restore_layers`` changes it back on networks that are handed out. Names and shapes of parameters
stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from natural_langevin.statistics.tape import CallKey, Tape

#: torch's class -> ours, filled by the files of the families.
REWRITTEN: dict[type[nn.Module], type[nn.Module]] = {}


def rewrites(kind: type[nn.Module]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Marks a class as the rewritten form of ``kind``."""

    def mark(ours: type[nn.Module]) -> type[nn.Module]:
        REWRITTEN[kind] = ours
        return ours

    return mark


def rewrite_layers(model: nn.Module) -> None:
    """On a private copy: every layer of exactly one of torch's classes becomes ours."""
    for module in model.modules():
        if type(module) in REWRITTEN and "forward" not in vars(module):
            module.__class__ = REWRITTEN[type(module)]


def restore_layers(model: nn.Module) -> None:
    """The inverse of ``rewrite_layers``."""
    original = {ours: kind for kind, ours in REWRITTEN.items()}
    for module in model.modules():
        if type(module) in original:
            vars(module).pop("tape_of", None)
            module.__class__ = original[type(module)]
            if isinstance(module, nn.RNNBase):
                module._init_flat_weights()  # torch's own list of the parameters


class CallRecorder:
    """One call of a rewritten layer: a zero is added to what each of its inner maps gives."""

    def __init__(self, module: Any) -> None:
        found: tuple[Tape | None, str] = module.tape_of() if module.tape_of else (None, "")
        self.tape, name = found
        self._key: CallKey = ("", 0) if self.tape is None else self.tape.begin(name)
        self._epsilons = None if self.tape is None else self.tape.epsilon(self._key)
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._used = 0

    def epsilon(self) -> Tensor | None:
        """What the next map has to add to its output."""
        self._used += 1
        return None if self._epsilons is None else self._epsilons[self._used - 1]

    def put(self, a: Tensor | None, output: Tensor) -> None:
        """The input of the map that asked for the last epsilon (None for a parameter), and what
        it gave, of which only the shape counts."""
        self._outputs.append(output)
        if a is not None:
            self._inputs.append(a)

    def add(self, a: Tensor | None, output: Tensor) -> Tensor:
        """Both at once: ``output`` with its epsilon."""
        epsilon = self.epsilon()
        self.put(a, output)
        return output if epsilon is None else output + epsilon

    def close(self) -> None:
        """Hands the call's inputs and outputs to the tape."""
        if self.tape is not None:
            self.tape.record(self._key, self._inputs, self._outputs)


class RewrittenLayer:
    """Mixed into the rewritten layers whose inner maps have a rule."""

    #: Set by the network that records: the running tape and the layer's name.
    tape_of: Callable[[], tuple[Tape | None, str]] | None = None
