"""Kept samples as a stream of networks, from memory or from a file, a few at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from natural_langevin._internal.chains import Params
from natural_langevin._internal.tensorfile import Spec, StorageError, mapped, opened

#: Of networks that are evaluated at a time because inputs are few.
MOST_WEIGHTS = 1 << 20


class OnDisk(dict[str, Tensor]):
    """Samples that live in a file: each value is a memory-mapped tensor (chain, draw, *shape).

    Looking at a mapped tensor leaves the pages that were read in the process's memory until the
    system wants them back. ``read`` copies a few draws instead and leaves nothing behind.
    """

    def __init__(self, path: Path, expected: Mapping[str, Spec]) -> None:
        super().__init__(mapped(path, expected))
        self.path = path
        self._identity, self._stamp = _identity(path), _stamp(path)

    @property
    def replaced(self) -> bool:
        """Whether the file is gone or another one has its name: then only the mapping is left."""
        return _identity(self.path) != self._identity

    def read(self, chain: int, start: int, stop: int) -> Params:
        """Draws ``start`` to ``stop`` of one chain: (draw, *shape) each, in memory of their own."""
        if self.replaced:
            return {name: value[chain, start:stop].clone() for name, value in self.items()}
        if _stamp(self.path) != self._stamp:
            raise StorageError(f"{self.path.name} was changed while it was in use: load it again")
        with opened(self.path) as file:
            try:
                return {name: file.get_slice(name)[chain, start:stop].clone() for name in self}
            except RuntimeError as error:
                raise StorageError(f"cannot read {self.path.name}: {error}") from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stamp(path: Path) -> tuple[int, int]:
    """What changes when a file is written to."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size


def chunks(
    samples: Mapping[str, Tensor],
    chains: Sequence[int],
    size: int,
    *,
    like: Mapping[str, Tensor] | None = None,
) -> Iterator[Params]:
    """At most ``size`` networks at a time, (network, *shape), in the order chain, then draw.

    ``samples[name]`` is (chain, draw, *shape). ``like`` says by example which dtype and device
    the networks shall have (samples may be stored in another precision, or elsewhere).

    >>> samples = {"w": torch.arange(6.0).reshape(2, 3)}
    >>> [c["w"].tolist() for c in chunks(samples, [0, 1], 4)]
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    """
    if size < 1:
        raise ValueError(f"at least one network must be evaluated at a time, got {size}")
    draws = next(iter(samples.values())).shape[1]
    total = len(chains) * draws
    for first in range(0, total, size):
        last = min(first + size, total)
        parts = []
        while first < last:  # a chunk may reach over several chains
            chain, start = divmod(first, draws)
            stop = min(draws, start + last - first)
            parts.append(_read(samples, chains[chain], start, stop))
            first += stop - start
        yield {name: _joined([part[name] for part in parts], like, name) for name in samples}


def at_once(samples: Mapping[str, Tensor], size: int, *, batch_size: int, inputs: int) -> int:
    """How many networks are evaluated at a time: ``size`` on ``batch_size`` inputs, and of fewer
    inputs as many more, while their weights take little memory.

    >>> samples = {"w": torch.zeros(4, 50, 10)}
    >>> [at_once(samples, 16, batch_size=1000, inputs=n) for n in (1000, 250, 2)]
    [16, 64, 8000]
    """
    weights = sum(value[0, :1].numel() for value in samples.values())
    more = min(size * batch_size // max(1, inputs), MOST_WEIGHTS // max(1, weights))
    return max(size, more)


def _read(samples: Mapping[str, Tensor], chain: int, start: int, stop: int) -> Params:
    if isinstance(samples, OnDisk):
        return samples.read(chain, start, stop)
    return {name: value[chain, start:stop] for name, value in samples.items()}


def _joined(parts: list[Tensor], like: Mapping[str, Tensor] | None, name: str) -> Tensor:
    value = parts[0] if len(parts) == 1 else torch.cat(parts)
    return value if like is None else value.to(dtype=like[name].dtype, device=like[name].device)


def specs(params: Mapping[str, Tensor], draws: int, dtype: torch.dtype | None) -> dict[str, Spec]:
    """What ``draws`` samples of every chain will be, for parameters (chain, *shape)."""
    return {
        name: (dtype or p.dtype, (p.shape[0], draws, *p.shape[1:])) for name, p in params.items()
    }
