"""A file of tensors that all processes of a run write together, each the rows of its own chains.

Where everything stands in it is known before anything is written, and chains follow each other. So
the first process makes the file, at its full size, every process writes its rows to their places,
and the first gives the file its name when all have written: until then the folder holds what it
held before. The folder must be one that all processes see.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from natural_langevin._internal import tensorfile
from natural_langevin._internal.atomic import staged
from natural_langevin._internal.processes import Processes
from natural_langevin._internal.tensorfile import FileLayout, Spec, spec


@dataclass(frozen=True)
class Part:
    """What a process has of a tensor: its rows from ``first`` on, of ``total``; None: all of it,
    as all processes have. ``written``: whether this process writes its rows."""

    values: Tensor
    first: int = 0
    total: int | None = None
    written: bool = True

    @property
    def whole(self) -> Spec:
        """The tensor that all parts make up."""
        dtype, shape = spec(self.values)
        return dtype, shape if self.total is None else (self.total, *shape[1:])

    def taken(self, whole: Tensor) -> Tensor:
        """A copy of this process's part of the tensor in the file, where ``values`` are."""
        if self.total is not None:
            whole = whole[self.first : self.first + len(self.values)]
        return whole.to(self.values.device, copy=True)


def chain_part(values: Tensor, processes: Processes) -> Part:
    """The rows of this process's chains."""
    if processes.world == 1:
        return Part(values)
    return Part(values, processes.own.start, processes.chains, processes.writes)


def write(
    path: Path,
    parts: Mapping[str, Part],
    metadata: Mapping[str, str],
    processes: Processes,
    *,
    former: Path | None = None,
) -> None:
    """Writes the file, whole or not at all; called by all processes together. One that is there
    gets the name ``former``, if any. What one process cannot write is an OSError at all."""
    if processes.world == 1:
        with staged(path, former=former) as handle:
            tensorfile.write_tensors(handle, {k: p.values for k, p in parts.items()}, metadata)
        return
    plan = tensorfile.summed_layout({k: part.whole for k, part in parts.items()}, metadata)
    with contextlib.ExitStack() as making:
        made = Path()

        def make() -> None:
            nonlocal made
            if processes.first:
                handle = making.enter_context(staged(path, former=former))
                made = Path(handle.name)
                tensorfile.reserve(handle, plan.size)
                handle.write(plan.header)
                handle.flush()

        def name() -> None:
            if processes.first:
                tensorfile.add_sums(made, plan)
            making.close()

        all_or_none(processes, f"allocating space for {path.name}", make)
        made = Path(processes.exchange(f"naming {path.name}", str(made))[0])
        all_or_none(processes, f"writing {path.name}", lambda: _write(made, plan, parts, processes))
        all_or_none(processes, f"finishing {path.name}", name)


def _write(path: Path, plan: FileLayout, parts: Mapping[str, Part], processes: Processes) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        for name, part in parts.items():
            if not (processes.first if part.total is None else part.written):
                continue
            dtype, shape = spec(part.values)
            at = plan.start[name] + part.first * tensorfile.size_in_bytes((dtype, shape[1:]))
            for piece in tensorfile.pieces(part.values):
                tensorfile.write_at(file, piece, at)
                at += piece.nbytes
        os.fsync(file)
    finally:
        os.close(file)


def all_or_none(processes: Processes, label: str, action: Callable[[], None]) -> None:
    """Does it at every process; an OSError at one of them is one at all, which names it."""
    if processes.world == 1:
        action()
        return
    problem: list[object] = []
    with processes.waiting(label):  # an error of another kind is told to whoever waits
        try:
            action()
        except OSError as error:
            problem = [error.errno, error.strerror or str(error)]
    for rank, text in enumerate(processes.exchange(label, json.dumps(problem))):
        if problem := json.loads(text):
            raise OSError(problem[0], f"{problem[1]} (rank {rank})")
