"""Checkpoints: a tree of tensors on disk as safetensors, written atomically. Never pickle.

Before a run on several processes: whether all are about to do the same run, and see the same
checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DistributedSampler

from natural_langevin._internal import shared_file, tensorfile
from natural_langevin._internal.atomic import check_writable, remove_leftovers
from natural_langevin._internal.fingerprints import fingerprint
from natural_langevin._internal.folder_lock import FolderLock
from natural_langevin._internal.object_store import ObjectFolder, is_url
from natural_langevin._internal.processes import Processes
from natural_langevin._internal.provenance import check_provenance, check_same_run, differing
from natural_langevin._internal.shared_file import Part, all_or_none, chain_part
from natural_langevin._internal.tensorfile import StorageError
from natural_langevin.data.loaders import Loader
from natural_langevin.data.streams import InMemory, Stream

log = logging.getLogger("natural_langevin")


class CheckpointError(StorageError):
    """A checkpoint that cannot be read, or is not of the expected run."""


class OtherRunError(CheckpointError):
    """A whole checkpoint, but of another run, or of one whose code has changed."""


def named(tree: Any) -> dict[str, Tensor]:
    """Every tensor under its path in the tree."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {pytree.keystr(where): leaf for where, leaf in leaves}


#: The names that a ``RunCheckpoint`` has in its folder, the newest first.
NEWEST, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
#: Entries that all processes hold alike; all others of a run have a chain axis, but those that say
#: which file has the samples (``stores.InFolder``), of which every process has its own.
_ALIKE = ("['state'].step", "['collector']['counts']", "['collector']['looks']")
_SAMPLES = "['collector']['samples']"
#: How processes know that a problem is not damage.
_OTHER_RUN = "another run: "


class RunCheckpoint:
    """The checkpoint of one run in a folder: the newest, and the one before it.

    A file holds all chains, whichever process has them, so another number of processes can continue
    from it. ``config`` identifies the run; a folder of another run is refused, and the error names
    the difference. ``made_by`` (see ``provenance``) holds the versions and code that started it.
    The folder, which all ``processes`` share, is locked until ``close``. ``commit``, if given, is
    called after every save."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        made_by: dict[str, Any] | None = None,
        processes: Processes | None = None,
        commit: Callable[[], None] | None = None,
    ) -> None:
        self._folder, self._processes = folder, processes or Processes(1)
        self._config, self._made_by = json.loads(json.dumps(config)), made_by or {}
        self._commit, self._newest_is_good = commit, False  # until it has been read or written
        #: How the steps before the checkpoint that was loaded were run; "" where none was.
        self.way = ""
        self._lock: FolderLock | None = None
        with tensorfile.writing(f"checkpoints to {folder}", remedy="Give another folder"):
            all_or_none(self._processes, "opening the checkpoint folder", self._open)
        if self._processes.world > 1:
            self._check_shared()

    def _open(self) -> None:
        if self._processes.first:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self._folder, "sampling (checkpoint=)")
            check_writable(self._folder)
            remove_leftovers(self._folder)

    def _check_shared(self) -> None:
        """Whether all processes see a file that the first makes."""
        label, token = "comparing checkpoint folders", f".{secrets.token_hex(8)}.part"
        if self._processes.first:
            (self._folder / token).touch()
        mine = json.dumps([str(self._folder), token])
        folder, token = json.loads(self._processes.exchange(label, mine)[0])
        seen = self._processes.exchange(label, "yes" if (self._folder / token).exists() else "")
        if self._processes.first:
            (self._folder / token).unlink()
        if not all(seen):
            blind = [rank for rank, answer in enumerate(seen) if not answer]
            raise CheckpointError(
                f"ranks {blind} do not see the folder {folder} of rank 0: checkpoint= needs a "
                "folder that all nodes share, under the same name"
            )

    def save(self, tree: Any, way: str = "") -> None:
        """Writes a checkpoint; at every moment a complete one exists.

        A damaged file never takes the name of the good one before it. ``way``: how steps are run
        (``Engine.arithmetic``)."""
        made_by = self._made_by | {"way": way}
        about = {"config": json.dumps(self._config), "made_by": json.dumps(made_by)}
        with tensorfile.writing(f"a checkpoint to {self._folder}", self._what_is_left):
            shared_file.write(
                self._folder / NEWEST, self._parts(tree), about, self._processes,
                former=self._folder / PREVIOUS if self._newest_is_good else None,
            )  # fmt: skip
        self._newest_is_good = True
        if self._commit is not None:
            self._commit()

    def _parts(self, tree: Any) -> dict[str, Part]:
        """What this process has of every tensor in the file."""
        mesh, parts = self._processes, dict[str, Part]()
        for name, leaf in named(tree).items():
            if name in _ALIKE:
                parts[name] = Part(leaf)
            elif _is_file(name, leaf):
                parts[name] = Part(leaf, mesh.rank, mesh.world)
            else:
                parts[name] = chain_part(leaf, mesh)
        return parts

    def _what_is_left(self) -> str:
        if self._there():
            return (
                "The previous checkpoint is intact: run the same command again to continue from it"
            )
        return "There is no previous checkpoint: the run will start from the beginning"

    def _there(self) -> list[str]:
        return [name for name in (NEWEST, PREVIOUS) if (self._folder / name).exists()]

    def load(self, like: Any) -> Any | None:
        """The newest readable checkpoint of this run, or None in an empty folder.

        Where one process cannot read it, all take the one before."""
        mine = json.dumps(self._there())  # others may see the folder a moment later
        names = json.loads(self._processes.exchange("looking for checkpoints", mine)[0])
        for name in names:
            found, problem = None, ""
            try:
                found = self._read(self._folder / name, like)
            except OtherRunError as error:
                problem = f"{_OTHER_RUN}{error}"
            except StorageError as error:
                problem = str(error)
            problems = self._processes.exchange(f"reading the checkpoint {name}", problem)
            problem = next((text for text in problems if text), "")
            if not problem:
                self._newest_is_good = name == NEWEST
                return found
            if problem.startswith(_OTHER_RUN):
                raise OtherRunError(problem.removeprefix(_OTHER_RUN))
            if name == names[-1]:
                raise CheckpointError(problem)
            log.warning(
                "%s cannot be used (%s): continuing from the previous checkpoint",
                self._folder / name, problem,
            )  # fmt: skip
        return None

    def _read(self, path: Path, like: Any) -> Any:
        """A tree of the same names, shapes and dtypes as ``like``, on its devices."""
        there = read_field(path, "config"), read_field(path, "made_by")
        check_checkpoint_of(self._folder, there, (self._config, self._made_by))
        parts = self._parts(like)
        self._check_files(path, parts)
        found = tensorfile.mapped(path, {name: part.whole for name, part in parts.items()})
        if self._processes.first:
            tensorfile.check_sum(path)
        self.way = str(there[1].get("way", ""))
        taken = [part.taken(found[name]) for name, part in parts.items()]
        return pytree.tree_unflatten(taken, pytree.tree_structure(like))

    def _check_files(self, path: Path, parts: dict[str, Part]) -> None:
        """Samples stored in separate files can be continued only by the processes that wrote
        them."""
        files = [name for name, part in parts.items() if _is_file(name, part.values)]
        if not files:
            return
        with tensorfile.opened(path) as file:
            found = tensorfile.specs_in(file).get(files[0])
        if found is not None and found[1][:1] != (self._processes.world,):
            ranks = found[1][0]
            raise CheckpointError(
                f"this run has its samples in a folder of each of {ranks} processes (store=), and "
                f"there are {self._processes.world} now: continue with {ranks}. Samples in memory, "
                'store="device" or "cpu", can be resumed by any number of processes'
            )

    def close(self) -> None:
        """Unlocks the folder."""
        if self._lock is not None:
            self._lock.release()


def _is_file(name: str, leaf: Tensor) -> bool:
    """Whether this stands for samples in a file rather than for the samples of a parameter."""
    return name.startswith(_SAMPLES) and not leaf.is_floating_point()


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
            "The network differs, or its initial weights do: build it with the same weights "
            "(torch.manual_seed(0) before, or load_state_dict), or use another folder"
        )
    check_same_run(
        folder, theirs, ours, what="a checkpoint of another run", error=OtherRunError,
        remedy=remedy,
    )  # fmt: skip
    check_provenance(folder, made_by, our_code, error=OtherRunError)


#: What gives back a way that steps were run, by a word in its name; the first that is there.
_SWITCHES = {
    "eager": "compile=False",
    "compiled": "compile=True where torch.compile works",
    "native": 'compile="auto" where there is a C compiler ($CC, cc, gcc or clang), and without '
    "NATURAL_LANGEVIN_NATIVE=off",
    "triton": 'compile="auto" on a GPU with Triton',
}


def check_same_way(there: str, here: str) -> None:
    """Refuses to continue with another arithmetic (``Engine.arithmetic``) than that of the previous
    steps: the result would not have the same bits."""
    if not there or there == here:
        return
    known = (switch for word, switch in _SWITCHES.items() if word in there)
    raise OtherRunError(
        f"the steps before this checkpoint were executed differently ({there:.40} there, {here} "
        "here), so the result would not be bit-identical: continue with "
        f"{next(known, 'the same version')}, or start again in another folder"
    )


def config_in(folder: str | os.PathLike[str] | None) -> dict[str, Any]:
    """What the folder's checkpoint says of its run; {} where there is none that can be read."""
    if folder is None:
        return {}
    for name in (NEWEST, PREVIOUS):
        with contextlib.suppress(OSError, StorageError):
            return read_field(Path(folder) / name, "config")
    return {}


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
