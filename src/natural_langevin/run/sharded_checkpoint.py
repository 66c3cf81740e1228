"""Checkpoints of a run on several processes, which as many or as few others can go on from.

Every chain has entries of its own, so which rank has which chains does not matter: a rank writes
those of its chains, and reads those of its chains. What ranks hold in common (the step, the counts,
and every chain of a group that shares minibatches) is written once.

The folder holds ``sharded-000007/`` and the one before it. A checkpoint is there from the moment
in which its index is (see ``shard_storage``): a rank that dies earlier leaves the one before it the
newest. What a run on one process wrote (``RunCheckpoint``, one file for all chains) is gone on
from too.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils import _pytree as pytree

from natural_langevin._internal import tensorfile
from natural_langevin._internal.atomic import check_writable, remove_leftovers, sync_folder
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin._internal.processes import Processes
from natural_langevin._internal.tensorfile import StorageError, WriteError
from natural_langevin.distributed.group import Group, GroupError
from natural_langevin.run.checkpoint import (
    NEW_ENTRIES,
    NEWEST,
    PREVIOUS,
    SHARDED,
    SHARDED_INDEX,
    About,
    CheckpointError,
    OtherRunError,
    check_checkpoint_of,
    left_after_failure,
    log_fallback,
    named,
    read_config,
    read_field,
    way_in,
)
from natural_langevin.run.shard_storage import ShardReader, ShardWriter, read_index

_NAME = re.compile(rf"{SHARDED}\d{{6,}}")

#: Entries that all ranks hold alike; all others have a chain axis.
_SHARED_ENTRIES = ("['state'].step", "['collector']['counts']")
#: The trace of losses has a column for the step, and then one for every chain.
_TRACE = "['collector']['trace']"
_SAMPLES = "['collector']['samples']"
#: How ranks know that a problem is not damage.
_OTHER_RUN = "another run: "


class ShardedCheckpoint:
    """The checkpoint of one run in a folder that all ranks see; ``load`` and ``save`` as
    ``RunCheckpoint`` has them, called by all ranks together.

    ``chains``: the numbers, among all chains of the run, of those that this rank's trees hold."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        group: Group | Processes,
        chains: Sequence[int],
        made_by: dict[str, Any] | None = None,
    ) -> None:
        self._folder, self._group, self._chains = folder, group, chains
        self._config, self._made_by = json.loads(json.dumps(config)), made_by or {}
        self.way = ""
        self._damaged: set[str] = set()  # generations that could not be read
        self._lock: FolderLock | None = None
        self._token = f".{secrets.token_hex(8)}.part"
        with group.together("locking the checkpoint folder"):
            if group.first:
                self._claim()
        with tensorfile.writing(f"checkpoints to {folder}", remedy="Give another folder"):
            self._on_rank_zero("opening the checkpoint folder", self._open)
        self._check_shared()
        self._number = self._seen_by_rank_zero(lambda: [0, *map(_number, _generations(folder))])[-1]

    def _claim(self) -> None:
        with contextlib.suppress(OSError):  # a folder that cannot be had: opening it says why
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self._folder, "sampling (checkpoint=)")

    def close(self) -> None:
        """Leaves the folder to others."""
        if self._lock is not None:
            self._lock.release()

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        check_writable(self._folder)
        remove_leftovers(self._folder)
        for path in _generations(self._folder):
            if not (path / SHARDED_INDEX).exists():  # somebody died while it was written
                shutil.rmtree(path)
        (self._folder / self._token).touch()

    def _check_shared(self) -> None:
        """Whether all ranks see the file that rank 0 has just made."""
        label, mine = "comparing checkpoint folders", json.dumps([str(self._folder), self._token])
        folder, token = json.loads(self._group.exchange(label, mine)[0])
        seen = self._group.exchange(label, "yes" if (self._folder / token).exists() else "")
        if self._group.first:
            (self._folder / token).unlink()
        if not all(seen):
            blind = [rank for rank, answer in enumerate(seen) if not answer]
            raise CheckpointError(
                f"ranks {blind} do not see the folder {folder} of rank 0: checkpoint= needs a "
                "folder that all nodes share, under the same name"
            )

    def _on_rank_zero(self, label: str, action: Callable[[], None]) -> None:
        """Rank 0 does it; where it cannot, the same OSError on all ranks."""
        problem = ""
        if self._group.first:
            try:
                action()
            except OSError as error:
                problem = error.strerror or str(error)
        problem = self._group.exchange(label, problem)[0]
        if problem:
            raise OSError(problem)

    def save(self, tree: Any, way: str = "") -> None:
        """Writes a checkpoint; at every moment of it, one whole checkpoint is in the folder."""
        self._number += 1
        path = self._folder / f"{SHARDED}{self._number:06d}"
        made_by = self._made_by | {"way": way}
        about = {"config": self._config, "ranks": self._group.world, "made_by": made_by}
        with tensorfile.writing(f"a checkpoint to {self._folder}", self._what_is_left):
            self._on_rank_zero("making room for a checkpoint", path.mkdir)
            with self._group.waiting("writing a checkpoint"), _rank_errors():
                save(
                    self._entries(tree),
                    storage_writer=ShardWriter(path, about),
                    planner=DefaultSavePlanner(flatten_state_dict=False),
                    no_dist=self._group.world == 1,
                )
        if self._group.first:
            self._remove_older()

    def _what_is_left(self) -> str:
        with contextlib.suppress(OSError):
            return left_after_failure(bool(self._candidates()))
        return left_after_failure(False)

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None in an empty folder.

        Where one rank cannot read its part, all ranks take the checkpoint before."""
        for name in (names := self._seen_by_rank_zero(self._candidates)):
            found, problem = None, ""
            try:
                found = self._read(self._folder / name, like)
            except OtherRunError as error:
                problem = f"{_OTHER_RUN}{error}"
            except StorageError as error:
                problem = str(error)
            problems = self._group.exchange(f"reading the checkpoint {name}", problem)
            if not any(problems):
                return found
            problem = next(text for text in problems if text)
            if name == names[-1] or problem.startswith(_OTHER_RUN):
                raise CheckpointError(problem.removeprefix(_OTHER_RUN))
            self._damaged.add(name)
            log_fallback(self._folder / name, CheckpointError(problem))
        return None

    def _candidates(self) -> list[str]:
        """Names in the folder, the newest first."""
        single = [name for name in (NEWEST, PREVIOUS) if (self._folder / name).exists()]
        return [path.name for path in reversed(_whole(self._folder))] + single

    def _read(self, path: Path, like: Any) -> Any:
        tree = pytree.tree_map(torch.zeros_like, like)
        if path.name in (NEWEST, PREVIOUS):
            made_by = read_field(path, "made_by")
            self._check((read_config(path), made_by))
            self.way = way_in(made_by)
            self._check_files(like, 1)
            self._read_single(path, named(tree))
            return tree
        about = read_index(path)
        if not isinstance(about.get("config"), dict):
            raise CheckpointError(f"{path.name} does not say which run it is of")
        made_by = about.get("made_by") or {}
        self._check((about["config"], made_by))
        self.way = way_in(made_by)
        self._check_files(like, about.get("ranks"))
        entries = self._entries(tree)  # views: what is loaded into them is in the tree
        for name in entries.keys() - about.get("tensors", {}).keys():
            if name.endswith(NEW_ENTRIES):
                del entries[name]
        with _rank_errors():
            load(
                entries,
                storage_reader=ShardReader(path),
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                no_dist=True,  # every rank reads for itself, and they compare notes afterwards
            )
        return tree

    def _check(self, there: About) -> None:
        check_checkpoint_of(self._folder, there, (self._config, self._made_by))

    def _read_single(self, path: Path, into: dict[str, Tensor]) -> None:
        """This rank's chains, out of a file that has them all."""
        tensorfile.check_sum(path)
        with tensorfile.opened(path) as file:
            found = tensorfile.specs_in(file)
            for name, leaf in into.items():
                if name in NEW_ENTRIES and name not in found:
                    continue
                if name not in found or found[name][0] != leaf.dtype:
                    raise StorageError(f"{path.name} does not hold {name} as {leaf.dtype}")
                value = file.get_tensor(name)
                if name == _TRACE:
                    value = value[:, [0, *(1 + chain for chain in self._chains)]]
                elif name not in _SHARED_ENTRIES and not _is_file(name, leaf):
                    value = value[list(self._chains)]
                if value.shape != leaf.shape:
                    raise StorageError(f"{path.name}: {name} has an unexpected shape")
                leaf.copy_(value)

    def _entries(self, tree: Any) -> dict[str, Tensor]:
        """Views of the tree's tensors, those with a chain axis chain by chain."""
        entries = {}
        for name, leaf in named(tree).items():
            if name in _SHARED_ENTRIES:
                entries[name] = leaf
            elif _is_file(name, leaf):
                entries[f"rank {self._group.rank} {name}"] = leaf
            else:
                by_chain: Sequence[Tensor] = leaf.unbind(0)
                if name == _TRACE:
                    entries[f"{name} steps"], *by_chain = leaf.unbind(1)
                entries |= {
                    f"chain {chain} {name}": part
                    for chain, part in zip(self._chains, by_chain, strict=True)
                }
        return entries

    def _check_files(self, like: Any, ranks: Any) -> None:
        """Samples in files of their own can be gone on with by the ranks that wrote them."""
        files = any(_is_file(name, leaf) for name, leaf in named(like).items())
        if files and ranks != self._group.world:
            raise CheckpointError(
                f"this run has its samples in a folder of each of {ranks} processes (store=), and "
                f"there are {self._group.world} now: continue with {ranks}. Samples in memory, "
                'store="device" or "cpu", can be resumed by any number of processes'
            )

    def _seen_by_rank_zero(self, look: Callable[[], list[Any]]) -> list[Any]:
        """What rank 0 finds, at every rank: others may see the folder a moment later."""
        mine = json.dumps(look() if self._group.first else [])
        return json.loads(self._group.exchange("looking for checkpoints", mine)[0])

    def _remove_older(self) -> None:
        """All but the newest two. What cannot be removed does no harm."""
        sync_folder(self._folder)
        kept = [p for p in _whole(self._folder) if p.name not in self._damaged][-2:]
        for path in _generations(self._folder):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
        if len(kept) == 2:
            for name in (NEWEST, PREVIOUS):
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)


def _is_file(name: str, leaf: Tensor) -> bool:
    """Whether this stands for samples in a file (``stores.InFolder``), of which every rank has its
    own, rather than for the samples of a parameter."""
    return name.startswith(_SAMPLES) and not leaf.is_floating_point()


def _generations(folder: Path) -> list[Path]:
    """Checkpoints, whole or not, the oldest first."""
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=_number)


def _whole(folder: Path) -> list[Path]:
    """The checkpoints that were written to the end."""
    return [path for path in _generations(folder) if (path / SHARDED_INDEX).exists()]


def _number(path: Path) -> int:
    return int(path.name.removeprefix(SHARDED))


@contextlib.contextmanager
def _rank_errors() -> Iterator[None]:
    """Torch's error of one or more ranks as the error that it is about; no talk of single
    processes, which are meant."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        if isinstance(cause, OSError) and not isinstance(cause, WriteError):
            raise OSError(cause.errno, f"{cause.strerror} (rank {rank})") from error
        if isinstance(cause, KeyboardInterrupt | StorageError | GroupError):
            raise cause from error
        raise CheckpointError(f"rank {rank}: {cause}") from error
