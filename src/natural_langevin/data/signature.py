"""The signature of a network: one tensor, several, or keywords, and which output is used.

Everything behind this file sees one tensor x with the samples first. Several inputs travel as the
columns of one: each is flattened, (B, ...) -> (B, k), and they stand side by side in the
parameters' precision, in which whole numbers up to 2^24 (float32) are exact. Before the network
is called they are taken apart again and get back their shape and kind.

Batches that are padded to their own longest sequence differ in width: each width has its layout.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from natural_langevin._internal.chains import Batch
from natural_langevin.data.checks import as_tensor, check_pair, in_memory, refuse_text, split_pair

log = logging.getLogger("natural_langevin")

#: Names under which a batch that is a dictionary holds its targets.
TARGETS = ("labels", "label", "targets", "target", "y")
#: Names under which a network's output may hold what a likelihood takes.
OUTPUTS = ("logits", "prediction", "predictions", "output", "outputs")


class Part(NamedTuple):
    """One input: its keyword (None: by position), the shape of a sample, and its kind."""

    name: str | None
    shape: tuple[int, ...]
    kind: str  # "real", "whole" or "bool"

    @property
    def size(self) -> int:
        """Numbers per sample."""
        return math.prod(self.shape)


class Signature:
    """How a model is called, found out from its ``forward`` and from the data that it is given.

    ``discrete``: targets are labels. ``raw``: outputs go to the likelihood as they are.
    ``several``: how many inputs there are by position, where that is known beforehand."""

    def __init__(
        self, model: nn.Module, *, discrete: bool = False, raw: bool = False, several: int = 0
    ) -> None:
        self._model, self._discrete, self._raw = model, discrete, raw
        self._layouts: dict[int, tuple[Part, ...]] = {}
        self._dropped: set[str] = set()
        parameters = inspect.signature(model.forward).parameters.values()
        self._any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._names += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        needed = [p for p in parameters if p.default is p.empty]
        self._positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in needed)
        self._variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._takes_tuple = not self._variadic and len(self._names) == 1
        #: Inputs by position; 0: one, or by keyword.
        self.several = several or (self._positional if self._positional > 1 else 0)

    def split(self, item: Any) -> Batch:
        """(x, y) of data or of a batch: a pair, tensors of which the last is the target, a
        dictionary with its targets under one of ``TARGETS``, y alone (unsupervised), or a Dataset
        of these."""
        item = in_memory(item)
        if isinstance(item, Mapping):
            found = [name for name in TARGETS if name in item]
            if len(found) != 1:
                raise TypeError(
                    f"a dictionary of data needs its targets under one of {list(TARGETS)}, got "
                    f"the keys {list(item)}: give the pair (x, y), x a dictionary"
                )
            inputs = {k: v for k, v in item.items() if k != found[0]}
            return self.inputs(inputs), self._targets(item[found[0]])
        if isinstance(item, tuple | list):
            parts = [part for part in item if part is not None]
            if len(parts) == 2 and isinstance(parts[0], Mapping | tuple | list):
                return self.inputs(parts[0]), self._targets(parts[1])
            if len(parts) > 2 and all(isinstance(as_tensor(p), Tensor) for p in parts):
                return self.inputs(parts[:-1]), self._targets(parts[-1])
            if len(parts) == 2:
                for part in parts:
                    refuse_text(part)
                x, y = split_pair((self._one(parts[0]), self._targets(parts[1])))
                return x, y
        return split_pair(self._one(item))

    def labelled(self, x: Any, y: Any = None) -> Batch:
        """(x, y) from the two, or from one of what ``Langevin.sample`` takes: a pair, a dictionary,
        a Dataset or a DataLoader, whose batches are put one after the other."""
        if y is not None:
            x, y = self.split((x, y))
        elif isinstance(x, DataLoader):
            x, y = map(torch.cat, zip(*map(self.split, x), strict=True))
        else:
            x, y = self.split(x)
        check_pair(x, y)
        if not len(x):
            raise ValueError("there is nothing to score: x and y are empty")
        return x, y

    def inputs(self, inputs: Any) -> Tensor:
        """One tensor x: a tensor or an array itself, several or a dictionary side by side."""
        if isinstance(inputs, Mapping):
            return self._by_name(inputs)
        if isinstance(inputs, tuple | list):
            tensors = [as_tensor(part) for part in inputs]
            if not all(isinstance(t, Tensor) for t in tensors):
                kinds = sorted({type(part).__name__ for part in inputs})
                raise TypeError(
                    f"several inputs must be tensors or arrays, got {kinds}: use torch.as_tensor "
                    "on them"
                )
            if len(tensors) == 1:
                return tensors[0]
            self._check_count(len(tensors))
            self.several = len(tensors)
            nameless = self._variadic or self._takes_tuple
            names = [None] * len(tensors) if nameless else self._names[: len(tensors)]
            return self._pack(list(zip(names, tensors, strict=True)))
        return self._one(inputs)

    def batches(self, x: Any, batch_size: int) -> Iterator[Tensor]:
        """Inputs to predict, in batches: a tensor (or what ``inputs`` takes) is split; a DataLoader
        gives its own, of inputs alone or with targets behind them, as a Dataset does."""
        if isinstance(x, Dataset):
            yield from self._of_item(in_memory(x)).split(batch_size)
            return
        several = isinstance(x, tuple | list) and self.several == len(x) > 1
        if several or isinstance(x, Tensor | Mapping) or hasattr(x, "__array__"):
            yield from self.inputs(x).split(batch_size)
            return
        for item in x:
            yield self._of_item(item)

    def arguments(self, x: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the network is called with."""
        layout = self._layouts.get(x.shape[-1]) if x.ndim == 2 else None
        if layout is None:
            return (x,), {}
        values = [
            _restored(value.reshape(len(value), *part.shape), part.kind)
            for value, part in zip(x.split([p.size for p in layout], -1), layout, strict=True)
        ]
        if layout[0].name is None:
            return ((tuple(values),), {}) if self._takes_tuple else (tuple(values), {})
        named = {str(part.name): value for part, value in zip(layout, values, strict=True)}
        return ((), named) if self._by_keyword(named) else ((named,), {})

    def output(self, outputs: Any) -> Any:
        """What the likelihood takes: a tensor, or the one that an output object is made for."""
        if self._raw or isinstance(outputs, Tensor):
            return outputs
        if isinstance(outputs, Mapping):
            found = {k: v for k, v in outputs.items() if isinstance(v, Tensor)}
        else:
            found = {k: v for k, v in _attributes(outputs).items() if isinstance(v, Tensor)}
        for name in OUTPUTS:
            if name in found:
                return found[name]
        if len(found) == 1:
            return next(iter(found.values()))
        listed = f" of {list(found)}" if found else ""
        raise TypeError(
            f"the network's output is a {type(outputs).__name__}{listed}: a likelihood takes one "
            f"tensor, or an output with one of the names {list(OUTPUTS)}. Return that tensor, or "
            "compute the loss from the outputs in likelihoods.LogLoss(fn)"
        )

    def call(self, function: Callable[[Any, Any], Any], x: Tensor) -> Any:
        """``function(args, kwargs)`` on the arguments that ``x`` holds; what counts of it."""
        return self.output(function(*self.arguments(x)))

    def adopt(self, other: Signature) -> None:
        """Takes over how the other signature has put several inputs into one x."""
        self._layouts, self.several = dict(other._layouts), other.several

    @property
    def packed(self) -> bool:
        """Whether inputs came that are not one tensor."""
        return bool(self._layouts)

    def parts(self, x: Tensor) -> list[tuple[Part, Tensor]]:
        """The inputs that ``x`` holds, each with what it is."""
        layout = self._layouts.get(x.shape[-1]) if x.ndim == 2 else None
        if layout is None:
            kind = "real" if x.is_floating_point() else "whole"
            return [(Part(None, tuple(x.shape[1:]), kind), x)]
        return list(zip(layout, x.split([p.size for p in layout], -1), strict=True))

    def _one(self, value: Any) -> Any:
        """Real numbers in the network's precision, whole ones of a tensor as they are. Those of an
        array or a frame become real ones, where the network takes no whole ones."""
        refuse_text(value)
        tensor = as_tensor(value)
        if isinstance(tensor, Tensor) and not tensor.ndim:
            raise TypeError(f"x must have rows, got the number {float(tensor):g}: give x[None]")
        if not isinstance(tensor, Tensor):
            return tensor
        dtype = next((p.dtype for p in self._model.parameters()), torch.get_default_dtype())
        if tensor.is_floating_point():
            return tensor.to(dtype)
        if isinstance(value, Tensor):
            return tensor
        try:
            with torch.no_grad():
                self._model(tensor[:1].to(next(self._model.parameters()).device))
        except (RuntimeError, TypeError, ValueError):
            return tensor.to(dtype)
        return tensor

    def _targets(self, value: Any) -> Any:
        """Labels as whole numbers, numbers as real ones, where an array says neither."""
        refuse_text(value)
        tensor = as_tensor(value)
        if isinstance(value, Tensor) or not isinstance(tensor, Tensor) or self._raw:
            return tensor
        if not self._discrete:
            return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
        if tensor.ndim == 2 and tensor.shape[1] == 1:
            tensor = tensor[:, 0]
        whole = not tensor.is_floating_point() or bool((tensor == tensor.round()).all())
        return tensor.long() if whole else tensor

    def _by_name(self, inputs: Mapping[str, Any]) -> Tensor:
        named = {k: _as_numbers(v) for k, v in inputs.items()}
        if self._by_keyword(named):
            beside = {k for k in named if not self._any and k not in self._names}
            if beside - self._dropped:
                log.info("the network has no argument %s: ignored", sorted(beside))
                self._dropped |= beside
            named = {k: v for k, v in named.items() if k not in beside}
        if len(named) == 1 and [*named] == self._names[:1]:
            return self._one(next(iter(named.values())))
        wrong = [k for k, v in named.items() if not isinstance(v, Tensor)]
        if wrong or not named:
            raise TypeError(
                f"the inputs {wrong or list(inputs)} are not tensors: encode them first, or leave "
                "them out"
            )
        order = [
            *filter(named.__contains__, self._names),
            *(k for k in named if k not in self._names),
        ]
        return self._pack([(name, named[name]) for name in order])

    def _by_keyword(self, named: Mapping[str, Any]) -> bool:
        """Whether a dictionary's entries are arguments; otherwise it is one itself."""
        return self._any or any(name in self._names for name in named)

    def _pack(self, named: Sequence[tuple[str | None, Tensor]]) -> Tensor:
        count = len(named[0][1])
        if any(len(value) != count for _, value in named):
            sizes = {name or k: len(value) for k, (name, value) in enumerate(named)}
            raise ValueError(f"all inputs must have the same number of samples, got {sizes}")
        dtype = next((p.dtype for p in self._model.parameters()), torch.get_default_dtype())
        layout = tuple(Part(name, tuple(v.shape[1:]), _kind(v)) for name, v in named)
        most = 2 ** (53 if dtype == torch.float64 else 24)
        for name, value in named:
            if _kind(value) == "whole" and value.numel() and int(value.abs().max()) > most:
                raise ValueError(
                    f"input {name or ''!r} holds whole numbers beyond {most}, which cannot be "
                    f"held exactly in {dtype}, in which several inputs are packed: use smaller "
                    "indices, or model.double()"
                )
        packed = torch.cat([v.reshape(count, -1).to(dtype) for _, v in named], 1)
        known = self._layouts.setdefault(packed.shape[1], layout)
        if known != layout:
            raise ValueError(
                f"two batches of {packed.shape[1]} numbers per sample are made of different "
                f"inputs, {known} and {layout}: pad all batches to one length"
            )
        return packed

    def _check_count(self, count: int) -> None:
        most = math.inf if self._variadic or self._takes_tuple else len(self._names)
        if not (1 if self._takes_tuple else self._positional) <= count <= most:
            raise TypeError(
                f"the data hold {count} inputs (and targets behind them), but the network's "
                f"forward takes {self._names}: give ((inputs, ...), y); sample weights are not "
                "inputs"
            )

    def _of_item(self, item: Any) -> Tensor:
        """The inputs of a DataLoader's batch, whose targets may stand behind them."""
        if isinstance(item, Mapping):
            return self.inputs({k: v for k, v in item.items() if k not in TARGETS})
        if isinstance(item, tuple | list):
            nested = isinstance(item[0], Mapping | tuple | list)
            item = item[0] if nested else item[: self.several] if self.several else item[0]
        found = self.inputs(item)
        if not isinstance(found, Tensor):
            raise TypeError(
                f"inputs must be a tensor, or batches of tensors such as a DataLoader gives, got "
                f"a batch of type {type(found).__name__}: use torch.as_tensor on arrays"
            )
        return found


def _as_numbers(value: Any) -> Any:
    """A list of numbers, as tokenizers give them, is an array."""
    if isinstance(value, list) and value and not isinstance(value[0], str):
        try:
            value = np.asarray(value)
        except ValueError:  # of different lengths
            return value
    return as_tensor(value)


def _kind(value: Tensor) -> str:
    if value.is_floating_point():
        return "real"
    return "bool" if value.dtype == torch.bool else "whole"


def _restored(value: Tensor, kind: str) -> Tensor:
    if kind == "real":
        return value
    return value.bool() if kind == "bool" else value.long()


def _attributes(outputs: Any) -> dict[str, Any]:
    """Of an output object that is no dictionary: a named tuple or a dataclass."""
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    return dict(vars(outputs)) if hasattr(outputs, "__dict__") else {}
