"""Checkpoints: a tree of tensors on disk as safetensors, whole or not at all. Never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal import tensorfile
from natural_langevin._internal.atomic import check_writable, remove_leftovers, staged
from natural_langevin._internal.same_run import check_same_run
from natural_langevin._internal.tensorfile import StorageError, spec


class CheckpointError(StorageError):
    """A checkpoint that cannot be read, or is not of the expected run."""


def save_tree(path: Path, tree: Any, metadata: dict[str, str] | None = None) -> None:
    """Writes every tensor of the tree under its path in it; scalars as 0-d tensors stay 0-d."""
    with staged(path) as handle:
        tensorfile.write_tensors(handle, named(tree), metadata or {})


def named(tree: Any) -> dict[str, Tensor]:
    """Every tensor under its path in the tree."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {pytree.keystr(where): leaf for where, leaf in leaves}


def load_tree(path: Path, like: Any) -> tuple[Any, dict[str, str]]:
    """Reads a tree of the same names, shapes and dtypes as ``like``, on ``like``'s devices."""
    expected = named(like)
    try:
        found = tensorfile.mapped(path, {name: spec(leaf) for name, leaf in expected.items()})
        metadata = _metadata(path)
        tensorfile.check_sum(path)
    except StorageError as error:
        raise CheckpointError(str(error)) from error
    loaded = [found[k].to(leaf.device, copy=True) for k, leaf in expected.items()]
    return pytree.tree_unflatten(loaded, pytree.tree_structure(like)), metadata


def _metadata(path: Path) -> dict[str, str]:
    with tensorfile.opened(path) as file:
        return file.metadata() or {}


#: The names that a ``RunCheckpoint`` has in its folder, the newest first.
NEWEST, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
#: How the checkpoints of several processes begin (``distributed.checkpoint``).
SHARDED, SHARDED_INDEX = "sharded-", "index.json"


class Saved(Protocol):
    """What a run needs from the place where its checkpoints go."""

    def save(self, tree: Any) -> None:
        """Writes a checkpoint; whatever happens meanwhile, one whole checkpoint is there."""

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None where there is none."""


class RunCheckpoint:
    """The checkpoint of one run in a folder: the newest, and the one before it.

    ``config`` says which run it is; a folder of another run is refused with the difference named.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._newest = folder / NEWEST
        self._previous = folder / PREVIOUS
        self._config = json.loads(json.dumps(config))
        with tensorfile.writing(f"checkpoints to {folder}", "Give another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            check_writable(folder)
            remove_leftovers(folder)

    def save(self, tree: Any) -> None:
        """At every moment of this, one whole checkpoint is there."""
        remedy = (
            "The checkpoint before it is intact: free some space, and run the same again to go on"
        )
        what = f"a checkpoint to {self._newest.parent}"
        with tensorfile.writing(what, remedy), staged(self._newest) as handle:
            tensorfile.write_tensors(handle, named(tree), {"config": json.dumps(self._config)})
            handle.flush()
            os.fsync(handle.fileno())  # on the disk before the older one loses its name
            if self._newest.exists():
                self._newest.replace(self._previous)

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None in an empty folder."""
        there = [path for path in (self._newest, self._previous) if path.exists()]
        for path in there:
            try:
                check_checkpoint_of(path.parent, read_config(path), self._config)
                return load_tree(path, like)[0]
            except CheckpointError:
                if path == there[-1]:
                    raise
        return None


def read_config(path: Path) -> dict[str, Any]:
    """Which run a checkpoint is of."""
    try:
        found = json.loads(_metadata(path).get("config", "{}"))
        if not isinstance(found, dict):
            raise StorageError(f"{path.name} does not say which run it is of")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path.name}: {error}") from error
    return found


def check_checkpoint_of(folder: Path, there: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuses a checkpoint of another run, and says in which arguments the two differ."""
    check_same_run(
        folder, there, config, what="a checkpoint of another run", error=CheckpointError,
        remedy="Use another folder, or the same settings and data",
    )  # fmt: skip


def config_in(folder: str | os.PathLike[str] | None) -> dict[str, Any]:
    """What the folder's checkpoint says of its run; {} where there is none that can be read."""
    if folder is None:
        return {}
    here = Path(folder)
    indices = sorted(
        here.glob(f"{SHARDED}*/{SHARDED_INDEX}"),
        key=lambda path: (len(path.parent.name), path.parent.name),  # their numbers may grow
        reverse=True,
    )
    for path in (*indices, here / NEWEST, here / PREVIOUS):
        try:
            sharded = path.name == SHARDED_INDEX
            found = json.loads(path.read_bytes())["config"] if sharded else read_config(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, StorageError):
            continue
        if isinstance(found, dict):
            return found
    return {}
