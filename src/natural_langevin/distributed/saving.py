"""Saving a posterior from several processes: one folder, which ``Posterior.load`` opens in one.

The files are the same as those of one process. Where everything stands in them is known before
anything is written, and chains follow each other, so every process writes its own chains to their
place in the same file. The first process makes the files beforehand, and names them in the
manifest when all have written: until then the folder holds what it held before. The folder must be
one that all processes see.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from natural_langevin._internal import tensorfile
from natural_langevin._internal.tensorfile import Spec, spec
from natural_langevin.distributed.place import Place
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior import storage
from natural_langevin.posterior.stores import write_all

#: Groups of tensors of which every process has the rows of its own chains.
BY_CHAIN = ("mean", "last")


def write(
    place: Place,
    folder: Path,
    *,
    model: nn.Module,
    samples: Mapping[str, Tensor],
    groups: Mapping[str, Mapping[str, Tensor]],
    likelihood: Likelihood,
    config: dict[str, Any],
) -> None:
    """``storage.write`` with ``samples`` and the groups ``BY_CHAIN`` of this process's chains."""
    rest = {f"{g}/{name}": v for g, values in groups.items() for name, v in values.items()}
    shared = {name for name in rest if name.partition("/")[0] in BY_CHAIN}
    token = place.group.exchange("saving the posterior", secrets.token_hex(8))[0]
    paths = [folder / f"{kind}-{token}.safetensors" for kind in ("samples", "posterior")]
    contents = [(samples, set(samples)), (rest, shared)]
    specs = [_all_chains(tensors, by_chain, place.chains) for tensors, by_chain in contents]
    with _removed_on_failure(place, paths):
        with place.group.together("making room for the posterior"), _words(folder):
            if place.first:
                folder.mkdir(parents=True, exist_ok=True)
                for path, of in zip(paths, specs, strict=True):
                    _reserve(path, of)
        with place.group.together("writing the posterior"), _words(folder):
            for path, of, (tensors, by_chain) in zip(paths, specs, contents, strict=True):
                mine = {k: v for k, v in tensors.items() if k in by_chain and place.writes}
                once = {k: v for k, v in tensors.items() if k not in by_chain and place.first}
                _write_rows(path, of, mine, first=place.own.start)
                _write_rows(path, of, once, first=0)
        with place.group.together("naming the posterior"), _words(folder):
            if place.first:
                files = [storage.written(p, of) for p, of in zip(paths, specs, strict=True)]
                storage.publish(
                    folder, model=model, likelihood=likelihood, config=config,
                    samples=files[0], rest=files[1],
                )  # fmt: skip


def _words(folder: Path) -> contextlib.AbstractContextManager[None]:
    remedy = "What was saved there before is intact: free some space, or save to another folder"
    return tensorfile.writing(f"the posterior to {folder}", remedy)


@contextlib.contextmanager
def _removed_on_failure(place: Place, paths: list[Path]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if place.first:
            for path in paths:
                path.unlink(missing_ok=True)
        raise


def _all_chains(tensors: Mapping[str, Tensor], by_chain: set[str], chains: int) -> dict[str, Spec]:
    """What the tensors are when all chains' rows are there."""

    def whole(name: str, of: Spec) -> Spec:
        return (of[0], (chains, *of[1][1:])) if name in by_chain else of

    return {name: whole(name, spec(value)) for name, value in tensors.items()}


def _reserve(path: Path, specs: Mapping[str, Spec]) -> None:
    plan = tensorfile.layout(specs, {})
    with path.open("xb") as handle:
        tensorfile.reserve(handle, plan.size)
        handle.write(plan.header)


def _write_rows(
    path: Path, specs: Mapping[str, Spec], tensors: Mapping[str, Tensor], *, first: int
) -> None:
    """Row k of every tensor becomes row ``first + k`` of the tensor in the file."""
    if not tensors:
        return
    plan = tensorfile.layout(specs, {})
    file = os.open(path, os.O_RDWR)
    try:
        for name, value in tensors.items():
            row_bytes = tensorfile.size_in_bytes((specs[name][0], specs[name][1][1:]))
            at = plan.start[name] + first * row_bytes
            for piece in tensorfile.pieces(value):
                write_all(file, piece, at)
                at += piece.nbytes
        os.fsync(file)
    finally:
        os.close(file)
