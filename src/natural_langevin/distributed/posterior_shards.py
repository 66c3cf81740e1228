"""A posterior whose chains are on several processes, and how it is saved.

Saving makes one folder, which ``Posterior.load`` opens in one process.

The files are the same as those of one process. Where everything stands in them is known before
anything is written, and chains follow each other, so every process writes its own chains to their
place in the same file. The first process makes the files beforehand, and names them in the
manifest when all have written: until then the folder holds what it held before. The folder must be
one that all processes see.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from natural_langevin._internal import tensorfile
from natural_langevin._internal.tensorfile import Spec, spec
from natural_langevin.distributed.process_mesh import ProcessMesh
from natural_langevin.likelihoods import Likelihood
from natural_langevin.posterior import storage
from natural_langevin.posterior.chain_shards import ChainShards
from natural_langevin.posterior.posterior import Posterior
from natural_langevin.posterior.stores import write_all

log = logging.getLogger("natural_langevin")

#: Groups of tensors of which every process has the rows of its own chains.
BY_CHAIN = ("mean", "last")


def shard_posterior(posterior: Posterior, mesh: ProcessMesh) -> Posterior:
    """The posterior of this process's chains becomes that of all chains.

    One number per chain (when it diverged, what its likelihood learned, its losses) goes to every
    process; ``samples``, ``mean`` and ``last`` stay where they are. Processes that share
    minibatches must have the same last iterates: they compare sums of them."""
    sums = torch.stack([v.double().flatten(1).sum(1) for v in posterior.last.values()]).nan_to_num()
    if not mesh.same_everywhere(sums):
        log.warning(
            "processes that share minibatches have different parameters by now: are their devices "
            "of different kinds? Use Layout(chains=...) to share minibatches between equal ones"
        )
    posterior.diverged = mesh.gather_chains(posterior.diverged)
    posterior.learned = {k: mesh.gather_chains(v) for k, v in posterior.learned.items()}
    steps, losses = posterior.trace[:, :1], posterior.trace[:, 1:].T.contiguous()
    posterior.trace = torch.cat([steps, mesh.gather_chains(losses).T], dim=1)
    posterior.shards = ChainShards(mesh, functools.partial(write, mesh))
    return posterior


def write(
    mesh: ProcessMesh,
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
    token = mesh.exchange("saving the posterior", secrets.token_hex(8))[0]
    paths = [folder / f"{kind}-{token}.safetensors" for kind in ("samples", "posterior")]
    contents = [(samples, set(samples)), (rest, shared)]
    specs = [_all_chains(tensors, by_chain, mesh.chains) for tensors, by_chain in contents]
    with contextlib.ExitStack() as held, _removed_on_failure(mesh, paths):
        with mesh.together("making room for the posterior"), storage.write_errors(folder):
            if mesh.first:
                held.enter_context(storage.save_lock(folder))
                for path, of in zip(paths, specs, strict=True):
                    _reserve(path, of)
        with mesh.together("writing the posterior"), storage.write_errors(folder):
            for path, of, (tensors, by_chain) in zip(paths, specs, contents, strict=True):
                mine = {k: v for k, v in tensors.items() if k in by_chain and mesh.writes}
                once = {k: v for k, v in tensors.items() if k not in by_chain and mesh.first}
                _write_rows(path, of, mine, first=mesh.own.start)
                _write_rows(path, of, once, first=0)
        with mesh.together("naming the posterior"), storage.write_errors(folder):
            if mesh.first:
                files = [storage.written(p, of) for p, of in zip(paths, specs, strict=True)]
                storage.publish(
                    folder, model=model, likelihood=likelihood, config=config,
                    samples=files[0], rest=files[1],
                )  # fmt: skip


@contextlib.contextmanager
def _removed_on_failure(mesh: ProcessMesh, paths: list[Path]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if mesh.first:
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
