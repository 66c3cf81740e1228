"""Checks before a run on several processes: same run, same checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch.utils.data import DistributedSampler

from natural_langevin._internal.fingerprints import fingerprint
from natural_langevin._internal.object_store import ObjectFolder, is_url
from natural_langevin._internal.processes import Processes
from natural_langevin.data.streams import InMemory, Loader, Stream
from natural_langevin.run.checkpoint import RunCheckpoint, config_in


def check_same_everywhere(
    mesh: Processes,
    identity: Mapping[str, Any],
    made_by: dict[str, Any],
    stream: Stream,
    where: str | Path,
) -> str | Path:
    """An error at every process unless all are about to do the same run with the same versions.

    A DataLoader's data are known by an example batch. Returns where this process puts its samples:
    in a folder, each of several processes has a folder of its own."""
    if mesh.world == 1:
        return where
    refuse_sampler(stream)
    first = () if isinstance(stream, InMemory) else stream.example()
    mesh.agree(
        "the run",
        {
            **identity,
            "first batch": fingerprint({str(k): v for k, v in enumerate(first)}),
            **made_by["versions"],
            **made_by["code"],
        },
    )
    return where / f"rank-{mesh.rank}" if isinstance(where, Path) else where


def refuse_sampler(stream: Stream) -> None:
    """A DataLoader must give every process the same batches, of which each takes its part."""
    if isinstance(stream, Loader) and isinstance(stream.sampler, DistributedSampler):
        raise ValueError(
            "the DataLoader has a DistributedSampler, which gives every process other data: give "
            "it a plain sampler with the same seed everywhere, and each process takes its part of "
            "every batch by itself"
        )


def resumed_config(folder: str | os.PathLike[str] | None, mesh: Processes) -> dict[str, Any]:
    """What the folder's checkpoint says of its run, {} where there is none, as the first process
    sees it: another may see the folder a moment later, and would take another way."""
    mine = json.dumps(config_in(folder)) if mesh.first else ""
    return cast(dict[str, Any], json.loads(mesh.exchange("looking for a checkpoint", mine)[0]))


class LocalFolders(NamedTuple):
    """Folders of this machine for ``checkpoint=`` and ``store=``; ``commit`` sends what they hold
    to the URLs that they stand for, None where there is none."""

    checkpoint: str | os.PathLike[str] | None
    where: str | Path
    commit: Callable[[], None] | None


@contextlib.contextmanager
def local_folders(
    checkpoint: str | os.PathLike[str] | None, where: str | Path, mesh: Processes
) -> Iterator[LocalFolders]:
    """The two places, URLs among them as local folders, which are committed at the end."""
    urls = [place for place in (where, checkpoint) if isinstance(place, str) and is_url(place)]
    if not urls:
        yield LocalFolders(checkpoint, where, None)
        return
    if mesh.world > 1:
        raise ValueError(
            f"{urls[0]} can be used by a single process only, and this run has {mesh.world}: give "
            "a folder that all of them see"
        )
    with contextlib.ExitStack() as closing:
        folders = {
            url: closing.enter_context(ObjectFolder(url, "sampling")) for url in dict.fromkeys(urls)
        }

        def commit() -> None:
            for folder in folders.values():  # draws first: checkpoints count on them
                folder.commit()

        local = {url: folder.folder for url, folder in folders.items()}
        yield LocalFolders(
            local.get(str(checkpoint), checkpoint), local.get(str(where), where), commit
        )
        commit()


def open_checkpoint(
    folder: str | os.PathLike[str] | None,
    identity: dict[str, Any],
    stream: Stream,
    mesh: Processes,
    made_by: dict[str, Any],
    commit: Callable[[], None] | None = None,
) -> RunCheckpoint | None:
    """Where the run's checkpoints go: a folder that all processes see."""
    if folder is None:
        return None
    if not isinstance(stream, InMemory):
        raise ValueError(
            "checkpoint= needs data in memory: a DataLoader's order cannot be continued. Give the "
            "tensors (x, y), or run without a checkpoint"
        )
    return RunCheckpoint(Path(folder), identity, made_by, mesh, commit)
