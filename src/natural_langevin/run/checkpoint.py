"""Checkpoints: a tree of tensors on disk as safetensors, whole or not at all. Never pickle."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from torch.utils import _pytree as pytree

from natural_langevin._internal import tensorfile
from natural_langevin._internal.atomic import check_writable, remove_leftovers, staged
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin._internal.provenance import check_provenance
from natural_langevin._internal.same_run import check_same_run, differing
from natural_langevin._internal.tensorfile import StorageError, spec

log = logging.getLogger("natural_langevin")


class CheckpointError(StorageError):
    """A checkpoint that cannot be read, or is not of the expected run."""


class OtherRunError(CheckpointError):
    """A whole checkpoint, but of another run, or of one whose code has changed."""


def named(tree: Any) -> dict[str, Tensor]:
    """Every tensor under its path in the tree."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {pytree.keystr(where): leaf for where, leaf in leaves}


#: Entries that version 0.1 did not write: where they are missing, ``like``'s own stand for them.
NEW_ENTRIES = ("['collector']['samples']['checks']",)


def load_tree(path: Path, like: Any) -> Any:
    """Reads a tree of the same names, shapes and dtypes as ``like``, on ``like``'s devices."""
    expected = named(like)
    try:
        with tensorfile.opened(path) as file:
            there = set(file.keys())
        known = {k: spec(v) for k, v in expected.items() if k in there or k not in NEW_ENTRIES}
        found = expected | tensorfile.mapped(path, known)
        tensorfile.check_sum(path)
    except StorageError as error:
        raise CheckpointError(str(error)) from error
    loaded = [found[k].to(leaf.device, copy=True) for k, leaf in expected.items()]
    return pytree.tree_unflatten(loaded, pytree.tree_structure(like))


#: The names that a ``RunCheckpoint`` has in its folder, the newest first.
NEWEST, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
#: How the checkpoints of several processes begin (``distributed.checkpoint``).
SHARDED, SHARDED_INDEX = "sharded-", "index.json"


class Saved(Protocol):
    """What a run needs from the place where its checkpoints go."""

    #: How the steps before the checkpoint that was loaded were run; "" where that is not known.
    way: str

    def save(self, tree: Any, way: str = "") -> None:
        """Writes a checkpoint; whatever happens meanwhile, one whole checkpoint is there.
        ``way``: how steps are run (``Engine.arithmetic``)."""

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None where there is none."""

    def close(self) -> None:
        """Leaves the folder to others."""


class RunCheckpoint:
    """The checkpoint of one run in a folder: the newest, and the one before it.

    ``config`` says which run it is; a folder of another run is refused with the difference named.
    ``made_by`` (see ``provenance``) tells which versions and code started it. The folder is locked
    until ``close``."""

    def __init__(
        self, folder: Path, config: dict[str, Any], made_by: dict[str, Any] | None = None
    ) -> None:
        self._newest, self._previous = folder / NEWEST, folder / PREVIOUS
        self._config, self._made_by = json.loads(json.dumps(config)), made_by or {}
        self._newest_is_good = False  # until it has been read or written
        self.way = ""
        with tensorfile.writing(f"checkpoints to {folder}", remedy="Give another folder"):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder, "sampling (checkpoint=)")
            check_writable(folder)
            remove_leftovers(folder)

    def save(self, tree: Any, way: str = "") -> None:
        """Writes a checkpoint; at every moment a whole one is there, and two where there were any.

        A damaged file never takes the name of the good one before it."""
        made_by = self._made_by | {"way": way}
        about = {"config": json.dumps(self._config), "made_by": json.dumps(made_by)}
        with (
            tensorfile.writing(f"a checkpoint to {self._newest.parent}", self._what_is_left),
            staged(self._newest) as handle,
        ):
            tensorfile.write_tensors(handle, named(tree), about)
            handle.flush()
            os.fsync(handle.fileno())  # on the disk before the older one loses its name
            if self._newest_is_good and self._newest.exists():
                self._newest.replace(self._previous)
        self._newest_is_good = True

    def _what_is_left(self) -> str:
        return left_after_failure(self._newest.exists() or self._previous.exists())

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None in an empty folder."""
        paths = [path for path in (self._newest, self._previous) if path.exists()]
        for path in paths:
            try:
                there = read_config(path), read_field(path, "made_by")
                check_checkpoint_of(path.parent, there, (self._config, self._made_by))
                found = load_tree(path, like)
            except OtherRunError:
                raise
            except CheckpointError as error:
                if path == paths[-1]:
                    raise
                log_fallback(path, error)
                continue
            self._newest_is_good = path == self._newest
            self.way = way_in(there[1])
            return found
        return None

    def close(self) -> None:
        """Leaves the folder to others."""
        self._lock.release()


def left_after_failure(checkpoint: bool) -> str:
    """What a run that could not write a checkpoint has left."""
    if checkpoint:
        return "The checkpoint before it is intact: run the same again to go on from there"
    return "There is no checkpoint before it: the run will start anew"


def log_fallback(path: Path, error: Exception) -> None:
    """A damaged checkpoint is passed over, and that is said."""
    log.warning("%s cannot be used (%s): going on from the checkpoint before it", path, error)


def read_config(path: Path) -> dict[str, Any]:
    """Which run a checkpoint is of."""
    return read_field(path, "config")


def read_field(path: Path, name: str) -> dict[str, Any]:
    """A JSON object in the file's metadata; {} where there is none of that name."""
    try:
        tensorfile.check_header(path)
        with tensorfile.opened(path) as file:
            found = json.loads((file.metadata() or {}).get(name, "{}"))
        if not isinstance(found, dict):
            raise StorageError(f"{path.name} does not say which run it is of")
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path.name}: {error}") from error
    return found


#: What a checkpoint says of its run: its settings, and its provenance.
About = tuple[dict[str, Any], dict[str, Any]]


def check_checkpoint_of(folder: Path, there: About, here: About) -> None:
    """Refuses a checkpoint of another run, and says in which arguments or code the two differ."""
    (theirs, made_by), (ours, our_code) = there, here
    remedy = "Use another folder, or the same settings and data"
    if "model" in differing(ours, theirs):
        remedy = (
            "The network is another one, or has other weights: make it with the same ones, by "
            "torch.manual_seed(0) before it is made or load_state_dict, or use another folder"
        )
    check_same_run(
        folder, theirs, ours, what="a checkpoint of another run", error=OtherRunError,
        remedy=remedy,
    )  # fmt: skip
    check_provenance(folder, made_by, our_code, error=OtherRunError)


def way_in(made_by: dict[str, Any]) -> str:
    """How the steps before a checkpoint were run; "" where an older version wrote it."""
    return str(made_by.get("way", ""))


#: What gives back a way that steps were run, by a word in its name; the first that is there.
_SWITCHES = {
    "eager": "compile=False",
    "compiled": "compile=True where torch.compile works",
    "native": 'compile="auto" where there is a C compiler ($CC, cc, gcc or clang), and without '
    "NATURAL_LANGEVIN_NATIVE=off",
    "triton": 'compile="auto" on a GPU with Triton',
}


def check_same_way(there: str, here: str) -> None:
    """Refuses to go on with another arithmetic (``Engine.arithmetic``) than that of the steps
    before: the run would end with other bits."""
    if not there or there == here:
        return
    known = (switch for word, switch in _SWITCHES.items() if word in there)
    raise OtherRunError(
        f"the steps before this checkpoint were run another way ({there:.40} there, {here} here), "
        f"and the run would end with other bits: continue with {next(known, 'the same version')}, "
        "or start again in another folder"
    )


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
